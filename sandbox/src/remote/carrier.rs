use super::http::{Call, HttpClient, HttpError, collect, said};
use crate::Channel;
use crate::received::give;
use bytes::Bytes;
use futures_util::{Sink, Stream};
use http::header::{CONNECTION, HeaderMap, HeaderValue, UPGRADE};
use http::{Method, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};

/// For a WebSocket to be there.
const WITHIN: Duration = Duration::from_secs(20);

/// The longest message: a relay sends a sixteenth of it.
const MESSAGE_BYTES: usize = 1 << 20;

/// The most that is sent as one message.
const SENT_BYTES: usize = 64 << 10;

/// A WebSocket as a stream of bytes. What comes out of it is untrusted.
struct Carrier {
    socket: WebSocketStream<TokioIo<Upgraded>>,
    received: Bytes,
}

/// Opens a WebSocket at `url`, an address of `http` or `https`, with `headers` besides its own.
pub(crate) async fn dial(
    http: &HttpClient,
    url: String,
    mut headers: HeaderMap,
) -> Result<Box<dyn Channel>, HttpError> {
    let key = generate_key();
    let malformed = |what: &str| HttpError::Malformed(what.to_owned());
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
    headers.insert(
        "sec-websocket-key",
        HeaderValue::from_str(&key).map_err(|_| malformed("a key that is no header"))?,
    );
    let call = Call {
        method: Method::GET,
        url,
        headers,
        body: Bytes::new().into(),
    };
    let dialling = async {
        let answer = http.open(&call).await?;
        let status = answer.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = collect(answer.into_body(), 64 << 10).await?;
            let message = said(&body, &call.headers);
            return Err(HttpError::Status { status, message });
        }
        let accepted = answer.headers().get("sec-websocket-accept");
        if accepted.map(HeaderValue::as_bytes) != Some(derive_accept_key(key.as_bytes()).as_bytes()) {
            return Err(malformed("another's WebSocket"));
        }
        let upgraded = hyper::upgrade::on(answer)
            .await
            .map_err(|error| HttpError::Lost(Box::new(error)))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES))
            .max_frame_size(Some(MESSAGE_BYTES));
        let socket =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, Some(config)).await;
        Ok(Box::new(Carrier {
            socket,
            received: Bytes::new(),
        }) as Box<dyn Channel>)
    };
    tokio::time::timeout(WITHIN, dialling)
        .await
        .unwrap_or(Err(HttpError::TimedOut(WITHIN)))
}

impl AsyncRead for Carrier {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if give(&mut self.received, into) {
                return Poll::Ready(Ok(()));
            }
            match ready!(Pin::new(&mut self.socket).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => self.received = bytes,
                None | Some(Ok(Message::Close(_))) => return Poll::Ready(Ok(())),
                // Pings are answered below this.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
            }
        }
    }
}

impl AsyncWrite for Carrier {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(context)).map_err(io::Error::other)?;
        let sent = bytes.get(..bytes.len().min(SENT_BYTES)).unwrap_or_default();
        Pin::new(&mut self.socket)
            .start_send(Message::Binary(Bytes::copy_from_slice(sent)))
            .map_err(io::Error::other)?;
        Poll::Ready(Ok(sent.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket)
            .poll_flush(context)
            .map_err(io::Error::other)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket)
            .poll_close(context)
            .map_err(io::Error::other)
    }
}
