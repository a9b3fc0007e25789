use bytes::Bytes;
use dressage_tap::Session;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

/// An agent's connection to its session. Dropping it is the agent's going away.
pub struct Agent {
    sender: SendRequest<Full<Bytes>>,
    token: String,
    connection: JoinHandle<()>,
}

/// A reply that was read to its end.
#[derive(Debug)]
pub struct Received {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    /// Whether the connection broke before the end.
    pub broken: bool,
}

impl Received {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The message of an error in OpenAI's shape.
    pub fn error(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

impl Agent {
    /// Over a pipe in memory that the session serves.
    pub async fn connect(session: &Arc<Session>) -> Self {
        let (near, far) = tokio::io::duplex(64 << 10);
        tokio::spawn(session.clone().serve_connection(far));
        Self::over(near, session.token().expose_secret()).await
    }

    /// Over any connection that somebody serves.
    pub async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, token: &str) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
            .await
            .unwrap();
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self {
            sender,
            token: token.to_owned(),
            connection,
        }
    }

    pub fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    pub fn post(&self, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        self.request("POST", "/v1/chat/completions", body)
    }

    pub fn request(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1")
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .unwrap()
    }

    /// Sends a request and waits for the head of the reply.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        super::soon("a reply", async {
            self.sender.ready().await.unwrap();
            self.sender.send_request(request).await.unwrap()
        })
        .await
    }

    /// Sends a request to the chat route and reads the whole reply.
    pub async fn chat(&mut self, body: impl Into<Bytes>) -> Received {
        let request = self.post(body);
        read(self.send(request).await).await
    }

    /// Goes away, without a word.
    pub fn leave(self) {
        self.connection.abort();
    }
}

/// Reads a reply to its end.
pub async fn read(response: Response<Incoming>) -> Received {
    let (head, mut body) = response.into_parts();
    let mut received = Received {
        status: head.status,
        headers: head.headers,
        body: Vec::new(),
        broken: false,
    };
    loop {
        match super::soon("more of a reply", body.frame()).await {
            None => return received,
            Some(Ok(frame)) => received.body.extend_from_slice(frame.data_ref().unwrap()),
            Some(Err(_)) => {
                received.broken = true;
                return received;
            }
        }
    }
}

/// The next part of a reply.
pub async fn part(body: &mut Incoming) -> String {
    let frame = super::soon("a part of a reply", body.frame())
        .await
        .unwrap()
        .unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}
