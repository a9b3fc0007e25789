use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use std::io::SeekFrom;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncSeekExt, ReadBuf};
use tokio::time::Instant;

/// Words of browsers in it would make E2B's proxy answer in HTML.
const AGENT: &str = concat!("dressage/", env!("CARGO_PKG_VERSION"));

/// Tries after the first, as the SDK of E2B has them (version 2.63.0).
const RETRIES: u32 = 3;

/// Idle connections are given up before the proxies of providers do so.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// What is read of a file at once.
const PIECE_BYTES: usize = 64 << 10;

/// The longest pause between two tries that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Makes calls. HTTP/1.1 only: E2B's proxy pads downloads with empty frames of HTTP/2, which clients take for an attack.
/// Redirects are not followed, since calls carry keys.
#[derive(Clone, Debug)]
pub(crate) struct HttpClient(Client<HttpsConnector<HttpConnector>, UnsyncBoxBody<Bytes, std::io::Error>>);

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Content,
}

/// The body of a call.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Bytes(Bytes),
    /// A file of this machine, sent as it is read.
    File(PathBuf),
    /// A part of one.
    Part {
        path: PathBuf,
        offset: u64,
        length: u64,
    },
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl Content {
    /// Its length in bytes.
    pub(crate) async fn length(&self) -> std::io::Result<u64> {
        Ok(match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(path) => tokio::fs::metadata(path).await?.len(),
            Self::Part { length, .. } => *length,
        })
    }

    /// A part of it, which must be there.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Self {
        match self {
            Self::Bytes(bytes) => {
                let at = |number| usize::try_from(number).unwrap_or(usize::MAX).min(bytes.len());
                Self::Bytes(bytes.slice(at(offset)..at(offset.saturating_add(length))))
            }
            Self::File(path) => Self::Part {
                path: path.clone(),
                offset,
                length,
            },
            Self::Part {
                path, offset: begin, ..
            } => Self::Part {
                path: path.clone(),
                offset: begin + offset,
                length,
            },
        }
    }

    async fn open(&self) -> std::io::Result<UnsyncBoxBody<Bytes, std::io::Error>> {
        Ok(match self {
            Self::Bytes(bytes) => Full::new(bytes.clone())
                .map_err(|never| match never {})
                .boxed_unsync(),
            Self::File(path) => {
                let file = tokio::fs::File::open(path).await?;
                let left = file.metadata().await?.len();
                FileBody { file, left }.boxed_unsync()
            }
            Self::Part { path, offset, length } => {
                let mut file = tokio::fs::File::open(path).await?;
                file.seek(SeekFrom::Start(*offset)).await?;
                FileBody { file, left: *length }.boxed_unsync()
            }
        })
    }
}

/// A file on its way. One that changes its length meanwhile is an error, since the length was told before.
struct FileBody {
    file: tokio::fs::File,
    left: u64,
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let wanted = usize::try_from(self.left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let mut piece = vec![0; wanted];
        let mut buffer = ReadBuf::new(&mut piece);
        ready!(Pin::new(&mut self.file).poll_read(context, &mut buffer))?;
        let count = buffer.filled().len();
        let left = self.left.checked_sub(count as u64);
        match (count, left) {
            (1.., Some(left)) => {
                self.left = left;
                piece.truncate(count);
                Poll::Ready(Some(Ok(Frame::data(piece.into()))))
            }
            _ => Poll::Ready(Some(Err(std::io::ErrorKind::UnexpectedEof.into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Whether an answer that asks for it is followed by another try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// 429, 502, 503, 504, or what the header `Should-Retry` says, and connections that could not be made.
    Answered,
    /// As the former, and where the connection was lost: for what can be done twice.
    Repeatable,
    /// 429 and 503, where nothing was done, and connections that could not be made: for what must not be done twice.
    Undone,
    /// Never.
    No,
}

/// Why there is no good answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    /// The address makes no request.
    #[error("`{0}` is no address of a server")]
    Address(String),
    /// No connection: nothing was sent.
    #[error("no connection to the server")]
    Connect(#[source] hyper_util::client::legacy::Error),
    /// Sent, and no answer.
    #[error("the connection was lost")]
    Lost(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Sent, and no whole answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// An answer longer than can be meant.
    #[error("an answer of more than {0} bytes")]
    TooLong(usize),
    /// An answer that is not what the protocol says.
    #[error("an answer that is not what was asked for: {0}")]
    Malformed(String),
    /// A refusal.
    #[error("{status}: {message}")]
    Status {
        status: StatusCode,
        /// What the server said, cut.
        message: String,
    },
}

impl HttpError {
    pub(crate) fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether what was asked for may have been done although this came back.
    pub(crate) fn may_have_happened(&self) -> bool {
        match self {
            Self::Address(_) | Self::Connect(_) => false,
            Self::Lost(_) | Self::TimedOut(_) | Self::TooLong(_) | Self::Malformed(_) => true,
            Self::Status { status, .. } => {
                let undone = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::NOT_IMPLEMENTED];
                status.is_server_error() && !undone.contains(status)
            }
        }
    }

    /// Whether the same may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Address(_) => false,
            Self::Status { status, .. } => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
            _ => true,
        }
    }
}

/// A whole answer of status 2xx.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl HttpClient {
    pub(crate) fn new() -> Self {
        Self::keeping(usize::MAX)
    }

    /// One that uses each connection once.
    pub(crate) fn unpooled() -> Self {
        Self::keeping(0)
    }

    fn keeping(idle: usize) -> Self {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(Duration::from_secs(10)));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_webpki_roots()
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Self(
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .timer(TokioTimer::new())
                .pool_idle_timeout(POOL_IDLE)
                .pool_max_idle_per_host(idle)
                .build(connector),
        )
    }

    /// The beginning of an answer, whatever its status.
    pub(crate) async fn open(&self, call: &Call) -> Result<Response<Incoming>, HttpError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.url)
            .body(
                call.body
                    .open()
                    .await
                    .map_err(|error| HttpError::Lost(Box::new(error)))?,
            )
            .map_err(|_| HttpError::Address(shown(&call.url)))?;
        *request.headers_mut() = call.headers.clone();
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(AGENT));
        self.0.request(request).await.map_err(|error| {
            if error.is_connect() {
                HttpError::Connect(error)
            } else {
                HttpError::Lost(Box::new(error))
            }
        })
    }

    /// A whole answer of at most `limit` bytes, by `within` from now, tries included.
    pub(crate) async fn call(
        &self,
        call: &Call,
        retry: Retry,
        within: Duration,
        limit: usize,
    ) -> Result<Answer, HttpError> {
        let deadline = Instant::now() + within;
        let mut tried = 0;
        loop {
            let once = async {
                let response = self.open(call).await?;
                let (status, headers) = (response.status(), response.headers().clone());
                let body = collect(response.into_body(), limit).await?;
                Ok((status, headers, body))
            };
            let outcome = tokio::time::timeout_at(deadline, once)
                .await
                .unwrap_or(Err(HttpError::TimedOut(within)));
            let (error, pause) = match outcome {
                Ok((status, headers, body)) if status.is_success() => return Ok(Answer { headers, body }),
                Ok((status, headers, body)) => {
                    let again = should_retry(retry, status, &headers, &body).then(|| pause(tried, &headers));
                    let message = said(&body, &call.headers);
                    (HttpError::Status { status, message }, again)
                }
                Err(error @ HttpError::Connect(_)) => (error, Some(pause(tried, &HeaderMap::new()))),
                Err(error @ HttpError::Lost(_)) if retry == Retry::Repeatable => {
                    (error, Some(pause(tried, &HeaderMap::new())))
                }
                Err(error) => (error, None),
            };
            match pause {
                Some(pause) if retry != Retry::No && tried < RETRIES && Instant::now() + pause < deadline => {
                    tokio::time::sleep(pause).await;
                }
                _ => return Err(error),
            }
            tried += 1;
        }
    }
}

/// The bytes of an answer, bounded.
pub(crate) async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, HttpError> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| HttpError::Lost(Box::new(error)))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > limit {
                return Err(HttpError::TooLong(limit));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

/// A quota is not waited for: whoever schedules is to hold back.
fn should_retry(retry: Retry, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> bool {
    match headers.get("should-retry").and_then(|value| value.to_str().ok()) {
        Some("false") => false,
        _ if status == StatusCode::TOO_MANY_REQUESTS && is_quota(&said(body, headers)) => false,
        _ if retry == Retry::Undone => matches!(status.as_u16(), 429 | 503),
        Some("true") => true,
        _ => matches!(status.as_u16(), 429 | 502..=504),
    }
}

/// Whether a refusal is of a limit on sandboxes at once, and not on calls.
pub(crate) fn is_quota(message: &str) -> bool {
    message.contains("maximum number of concurrent")
}

fn pause(tried: u32, headers: &HeaderMap) -> Duration {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    // Hugging Face says it as `RateLimit: "api";r=0;t=55`.
    let window = text("ratelimit").and_then(|text| text.rsplit_once(";t="));
    let asked = text(RETRY_AFTER.as_str()).or(window.map(|(_, seconds)| seconds));
    let asked = asked
        .and_then(|text| text.trim().parse().ok())
        .map(Duration::from_secs);
    // Half of it at random, so that many do not come again at once.
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let own = Duration::from_millis(100 * (1 << tried.min(6)));
    let own = own.mul_f64(0.5 + f64::from(nanos % 1_000_000) / 2_000_000.0);
    asked.unwrap_or(own).min(LONGEST_PAUSE)
}

/// What a refusal says: the `message` or `error` of JSON; nothing of a page in HTML, nor of the secrets among the headers of the
/// call that it answers.
pub(crate) fn said(body: &[u8], headers: &HeaderMap) -> String {
    const MOST: usize = 300;
    let text = match serde_json::from_slice::<serde_json::Value>(body) {
        Ok(json) => ["message", "error"]
            .iter()
            .find_map(|name| json.get(name)?.as_str().map(str::to_owned))
            .unwrap_or_default(),
        Err(_) => {
            let text = String::from_utf8_lossy(body);
            if text.trim_start().starts_with('<') {
                "a page in HTML, which is not the provider's API".into()
            } else {
                text.into_owned()
            }
        }
    };
    hide(&text, headers)
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .take(MOST)
        .collect()
}

/// A text without the secrets among headers: some servers repeat what they were shown.
pub(crate) fn hide(text: &str, headers: &HeaderMap) -> String {
    let secrets = headers
        .values()
        .filter(|value| value.is_sensitive())
        .filter_map(|value| value.to_str().ok()?.rsplit(' ').next())
        // Shorter ones are none, and would stand in many a word.
        .filter(|secret| secret.len() >= 8);
    secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "[secret]"))
}

/// An address to be shown and kept: without a name and a password, and without what is asked there.
pub(crate) fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (host, path) = rest
        .split_at_checked(rest.find('/').unwrap_or(rest.len()))
        .unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// Adds a header whose value is a secret.
pub(crate) fn secret_header(
    headers: &mut HeaderMap,
    name: &'static str,
    value: &str,
) -> Result<(), HttpError> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| HttpError::Malformed(format!("the value for `{name}` is not one of a header")))?;
    value.set_sensitive(true);
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}

/// A text as a part of an address.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// What an answer says, in JSON.
pub(crate) fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, HttpError> {
    serde_json::from_slice(body).map_err(|error| {
        // Serde's text can quote values, among which are tokens.
        HttpError::Malformed(format!("{:?} at byte {}", error.classify(), error.column()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_not_tried_again_and_the_servers_word_goes_before() {
        let none = HeaderMap::new();
        let told = |value| {
            HeaderMap::from_iter([(
                HeaderName::from_static("should-retry"),
                HeaderValue::from_static(value),
            )])
        };
        let quota = br#"{"code":429,"message":"you have reached the maximum number of concurrent E2B sandboxes (20)"}"#;
        let limited = br#"{"code":429,"message":"Rate limit exceeded"}"#;
        let status = StatusCode::TOO_MANY_REQUESTS;
        assert!(!should_retry(Retry::Answered, status, &none, quota));
        assert!(should_retry(Retry::Answered, status, &none, limited));
        assert!(!should_retry(Retry::Answered, status, &told("false"), limited));
        assert!(should_retry(
            Retry::Answered,
            StatusCode::INTERNAL_SERVER_ERROR,
            &told("true"),
            b""
        ));
        assert!(!should_retry(
            Retry::Answered,
            StatusCode::INTERNAL_SERVER_ERROR,
            &none,
            b""
        ));
        // What must not be done twice is repeated only where nothing was done, whatever the server thinks of it.
        for (number, again) in [(429, true), (503, true), (502, false), (504, false)] {
            let status = StatusCode::from_u16(number).unwrap();
            assert_eq!(
                should_retry(Retry::Undone, status, &none, limited),
                again,
                "{number}"
            );
        }
        assert!(!should_retry(
            Retry::Undone,
            StatusCode::GATEWAY_TIMEOUT,
            &told("true"),
            b""
        ));
        assert!(!should_retry(Retry::Undone, status, &none, quota));
    }

    #[test]
    fn a_pause_is_as_long_as_the_server_says_and_no_longer_than_a_minute() {
        let said = |name: &'static str, value: &'static str| {
            pause(
                0,
                &HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]),
            )
        };
        assert_eq!(said("retry-after", "7"), Duration::from_secs(7));
        assert_eq!(said("ratelimit", "\"api\";r=0;t=55"), Duration::from_secs(55));
        assert_eq!(said("retry-after", "900"), Duration::from_secs(60));
        assert!(said("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT") < Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_part_of_a_file_is_that_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "0123456789").unwrap();
        let content = Content::File(path);
        assert_eq!(content.length().await.unwrap(), 10);
        for part in [
            content.part(3, 4),
            Content::from(Bytes::from_static(b"0123456789")).part(3, 4),
            content.part(1, 8).part(2, 4),
        ] {
            assert_eq!(part.length().await.unwrap(), 4);
            let body = part.open().await.unwrap().collect().await.unwrap();
            assert_eq!(body.to_bytes(), "3456");
        }
    }

    #[test]
    fn a_page_in_html_is_named_and_not_quoted() {
        let none = HeaderMap::new();
        assert!(said(b"<!doctype html><p>hello", &none).contains("HTML"));
        assert_eq!(said(br#"{"error":"no\u001b[31m"}"#, &none), "no [31m");
    }

    #[test]
    fn a_secret_that_is_repeated_is_left_out_and_so_is_what_an_address_holds() {
        let mut headers = HeaderMap::new();
        secret_header(&mut headers, "x-api-key", "e2b_0123456789").unwrap();
        secret_header(&mut headers, "authorization", "Bearer hf_0123456789").unwrap();
        headers.insert("e2b-sandbox-port", HeaderValue::from_static("49983"));
        for (body, told) in [
            (r#"{"message":"no key e2b_0123456789!"}"#, "no key [secret]!"),
            ("Bearer hf_0123456789 at 49983", "Bearer [secret] at 49983"),
        ] {
            assert_eq!(said(body.as_bytes(), &headers), told);
        }
        // One that is cut after its beginning was none before.
        let long = format!("{}{}", "x".repeat(295), "e2b_0123456789");
        assert!(!said(long.as_bytes(), &headers).contains("e2b_"));
        for (url, told) in [
            (
                "https://me:hf_x@hub.example/api?token=hf_x#y",
                "https://hub.example/api",
            ),
            ("http://127.0.0.1:1/", "http://127.0.0.1:1/"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(shown(url), told);
        }
    }
}
