use super::client::{Open, Request};
use super::server::Server;
use serde_json::Value;
use std::net::TcpStream;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

/// A WebSocket of a client.
pub struct Socket {
    socket: WebSocket<TcpStream>,
}

/// A request that asks for a socket.
pub fn upgrade(request: Request) -> Request {
    request
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

impl Socket {
    #[track_caller]
    pub fn open(server: &Server, target: &str) -> Self {
        Self::of(upgrade(server.request("GET", target)).open())
    }

    #[track_caller]
    pub fn of(open: Open) -> Self {
        assert_eq!(open.status, 101);
        assert_eq!(
            open.header("sec-websocket-accept"),
            Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        );
        let (stream, read) = open.into_parts();
        Self {
            socket: WebSocket::from_partially_read(stream, read, Role::Client, None),
        }
    }

    #[track_caller]
    pub fn send(&mut self, message: Message) {
        self.socket.send(message).unwrap();
    }

    #[track_caller]
    pub fn say(&mut self, message: &Value) {
        self.send(Message::text(message.to_string()));
    }

    /// The next message that is not about the connection.
    #[track_caller]
    pub fn hear(&mut self) -> Value {
        loop {
            match self.socket.read().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[track_caller]
    pub fn ask(&mut self, message: &Value) -> Value {
        self.say(message);
        self.hear()
    }

    /// Sends a ping and waits for its pong, which must be the next that comes.
    #[track_caller]
    pub fn ping(&mut self, payload: &'static [u8]) {
        self.send(Message::Ping(payload.into()));
        loop {
            match self.socket.read().unwrap() {
                Message::Pong(answer) => return assert_eq!(&answer[..], payload),
                Message::Ping(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the server ends the connection; the code that it gave.
    #[track_caller]
    pub fn closed(mut self) -> u16 {
        let mut code = None;
        loop {
            match self.socket.read() {
                Ok(Message::Close(frame)) => code = frame.map(|frame| frame.code.into()),
                Ok(Message::Ping(_) | Message::Pong(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(tungstenite::Error::ConnectionClosed) => return code.unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Whether the next that comes is a ping, which is answered.
    #[track_caller]
    pub fn pinged(&mut self) -> bool {
        let is_ping = self.socket.read().unwrap().is_ping();
        self.socket.flush().unwrap();
        is_ping
    }

    /// Ends the connection as clients do, and waits until it is over.
    pub fn close(mut self) {
        _ = self.socket.close(None);
        while self.socket.read().is_ok() {}
    }

    /// The connection, for what no client sends.
    pub fn into_stream(self) -> TcpStream {
        self.socket.get_ref().try_clone().unwrap()
    }
}
