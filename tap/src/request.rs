use crate::session::{Room, Session};
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

/// A request body that is not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unread {
    /// The agent went away before it was whole.
    #[error("the request body broke off")]
    Gone,
    /// It is larger than allowed.
    #[error("the request body is larger than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    /// The bodies of the calls under way are larger than allowed, taken together.
    #[error("the request bodies of the calls under way are larger than {limit_bytes} bytes together")]
    NoRoom { limit_bytes: usize },
}

impl Unread {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Gone => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NoRoom { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// Reads the body of a request, within the session's limits. What it takes is held as long as the room is.
pub(crate) async fn read(session: &Session, mut body: Incoming) -> Result<(Bytes, Room), Unread> {
    let limits = session.config.limits;
    let too_large = Unread::TooLarge {
        limit_bytes: limits.request_bytes,
    };
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > limits.request_bytes {
        return Err(too_large);
    }
    let mut room = session.room();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Unread::Gone)?.into_data() else {
            continue;
        };
        if whole.len() + data.len() > limits.request_bytes {
            return Err(too_large);
        }
        if !room.take(data.len()) {
            return Err(Unread::NoRoom {
                limit_bytes: limits.requests_bytes,
            });
        }
        if whole.is_empty() {
            if data.len() == announced {
                return Ok((data, room));
            }
            // What was announced is believed only so far as memory is cheap.
            whole.reserve(announced.min(1 << 20));
        }
        whole.extend_from_slice(&data);
    }
    Ok((whole.freeze(), room))
}
