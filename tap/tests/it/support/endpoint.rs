use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// What an endpoint does with a request, in order. Afterwards it keeps the connection for the next one.
#[derive(Clone, Default)]
pub struct Script {
    acts: Vec<Act>,
}

#[derive(Clone)]
pub enum Act {
    /// Writes this at once.
    Send(Vec<u8>),
    /// Waits for the test.
    Wait(Arc<Notify>),
    /// Waits for the other side to go away, and notes that it did.
    UntilGone,
    /// Closes the connection in good form.
    Close,
    /// Breaks the connection.
    Reset,
}

impl Script {
    /// A whole reply with a length.
    pub fn reply(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut head = format!(
            "HTTP/1.1 {status} Reason\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        head.extend_from_slice(body);
        Self {
            acts: vec![Act::Send(head)],
        }
    }

    pub fn json(status: u16, body: impl AsRef<[u8]>) -> Self {
        Self::reply(status, "content-type: application/json\r\n", body)
    }

    /// The head of a stream.
    pub fn stream() -> Self {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        Self {
            acts: vec![Act::Send(head.as_bytes().to_vec())],
        }
    }

    /// A stream with this body, written in parts of `part` bytes, each a write and an HTTP chunk of its own.
    pub fn events(body: &[u8], part: usize) -> Self {
        body.chunks(part)
            .fold(Self::stream(), |script, part| script.chunk(part))
            .finish()
    }

    /// A part of a stream.
    pub fn chunk(self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        let mut bytes = format!("{:x}\r\n", part.len()).into_bytes();
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
        self.then(Act::Send(bytes))
    }

    /// The proper end of a stream.
    pub fn finish(self) -> Self {
        self.then(Act::Send(b"0\r\n\r\n".to_vec()))
    }

    /// The same with all that is sent in one write.
    pub fn at_once(self) -> Self {
        let sent = self.acts.into_iter().filter_map(|act| match act {
            Act::Send(bytes) => Some(bytes),
            _ => None,
        });
        Self::raw(sent.collect::<Vec<_>>().concat())
    }

    pub fn raw(bytes: impl AsRef<[u8]>) -> Self {
        Self::default().then(Act::Send(bytes.as_ref().to_vec()))
    }

    /// What the other script does, after this one.
    pub fn and(mut self, other: Self) -> Self {
        self.acts.extend(other.acts);
        self
    }

    pub fn then(mut self, act: Act) -> Self {
        self.acts.push(act);
        self
    }
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Request line and headers.
    pub head: String,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

type Director = dyn Fn(usize, &Asked) -> Script + Send + Sync;

/// A server that follows scripts.
pub struct FakeEndpoint {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    gone: watch::Receiver<usize>,
    _serving: JoinSet<()>,
}

impl FakeEndpoint {
    /// `script` is asked with the number of the request, from 0, and the request.
    pub async fn start(script: impl Fn(usize, &Asked) -> Script + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (noted, gone) = watch::channel(0);
        let script: Arc<Director> = Arc::new(script);
        let mut serving = JoinSet::new();
        let seen = asked.clone();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            let noted = Arc::new(noted);
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                socket.set_nodelay(true).unwrap();
                connections.spawn(converse(socket, seen.clone(), script.clone(), noted.clone()));
            }
        });
        Self {
            address,
            asked,
            gone,
            _serving: serving,
        }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Waits until `count` connections were given up by the other side in the middle of a script.
    pub async fn until_gone(&self, count: usize) {
        let mut gone = self.gone.clone();
        super::soon("the gateway's going away", gone.wait_for(|gone| *gone >= count))
            .await
            .unwrap();
    }
}

async fn converse(
    mut socket: TcpStream,
    asked: Arc<Mutex<Vec<Asked>>>,
    script: Arc<Director>,
    gone: Arc<watch::Sender<usize>>,
) {
    let mut buffer = Vec::new();
    while let Some(request) = receive(&mut socket, &mut buffer).await {
        let number = {
            let mut asked = asked.lock().unwrap();
            asked.push(request.clone());
            asked.len() - 1
        };
        for act in script(number, &request).acts {
            match act {
                Act::Send(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        gone.send_modify(|gone| *gone += 1);
                        return;
                    }
                }
                Act::Wait(gate) => gate.notified().await,
                Act::UntilGone => {
                    let mut rest = [0; 64];
                    while !matches!(socket.read(&mut rest).await, Ok(0) | Err(_)) {}
                    gone.send_modify(|gone| *gone += 1);
                    return;
                }
                Act::Close => return,
                Act::Reset => {
                    socket.set_zero_linger().unwrap();
                    return;
                }
            }
        }
    }
}

async fn receive(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Asked> {
    let end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer.drain(..end).collect()).unwrap();
    let request = Asked {
        head,
        body: Vec::new(),
    };
    let length = request
        .header("content-length")
        .map_or(0, |length| length.parse().unwrap());
    while buffer.len() < length {
        if socket.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked {
        body: buffer.drain(..length).collect(),
        ..request
    })
}
