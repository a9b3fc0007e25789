use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a reply may be silent before a test has failed.
pub const SILENCE: Duration = Duration::from_secs(30);

/// A request that is being made.
#[derive(Clone)]
pub struct Request {
    address: SocketAddr,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request {
    pub fn new(address: SocketAddr, method: &str, target: &str) -> Self {
        let headers = vec![("host".into(), address.to_string())];
        Self {
            address,
            method: method.into(),
            target: target.into(),
            headers,
            body: None,
        }
    }

    /// Sets a header; one of this name that was there goes.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self.header("content-type", content_type)
    }

    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string())
    }

    /// The bytes before the body.
    pub fn head(&self) -> String {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head + "\r\n"
    }

    /// The bytes of a body that is text.
    pub fn body_text(&self) -> String {
        String::from_utf8(self.body.clone().unwrap_or_default()).unwrap()
    }

    /// Sends it and reads the head of the reply.
    #[track_caller]
    pub fn open(self) -> Open {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SILENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(self.head().as_bytes()).unwrap();
        if let Some(body) = &self.body {
            // A server that refuses a body need not read it.
            _ = stream.write_all(body);
        }
        Open::read(stream).unwrap()
    }

    /// Sends it and reads the whole reply.
    #[track_caller]
    pub fn send(self) -> Reply {
        let is_head = self.method == "HEAD";
        let mut open = self.header("connection", "close").open();
        // A reply that is cut short is none.
        let mut body = Vec::new();
        if !is_head {
            open.body.read_to_end(&mut body).unwrap();
        }
        Reply {
            status: open.status,
            headers: open.headers,
            body,
        }
    }
}

/// A reply whose head was read.
pub struct Open {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: BodyReader,
}

impl Open {
    pub fn read(stream: TcpStream) -> io::Result<Self> {
        let mut reader = BufReader::new(stream);
        let line = line(&mut reader)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("no status: {line:?}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self::line(&mut reader)?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let value = |name| header(&headers, name);
        let length = match (value("transfer-encoding"), value("content-length")) {
            (Some(_), _) => Length::Chunks { left: 0 },
            (None, Some(length)) => Length::Known {
                left: length.parse().unwrap(),
            },
            (None, None) => Length::ToTheEnd,
        };
        Ok(Self {
            status,
            headers,
            body: BodyReader {
                reader,
                length,
                over: false,
            },
        })
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status);
        self
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The connection, once it speaks another protocol, with what was read of that already.
    pub fn into_parts(self) -> (TcpStream, Vec<u8>) {
        let read = self.body.reader.buffer().to_vec();
        (self.body.reader.into_inner(), read)
    }
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

/// The body of a reply, as it arrives.
pub struct BodyReader {
    reader: BufReader<TcpStream>,
    length: Length,
    over: bool,
}

enum Length {
    Known { left: usize },
    Chunks { left: usize },
    ToTheEnd,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.over {
            return Ok(0);
        }
        let left = match &mut self.length {
            Length::ToTheEnd => return self.reader.read(buffer),
            Length::Known { left } => left,
            Length::Chunks { left } => {
                if *left == 0 {
                    let size = line(&mut self.reader)?;
                    *left = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
                    if *left == 0 {
                        self.over = true;
                        return Ok(0);
                    }
                }
                left
            }
        };
        if *left == 0 {
            return Ok(0);
        }
        let most = buffer.len().min(*left);
        let count = self.reader.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= count;
        if *left == 0 && matches!(self.length, Length::Chunks { .. }) {
            line(&mut self.reader)?;
        }
        Ok(count)
    }
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{} {error}: {}", self.status, self.text()))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// A failure in the shape that all of REST has; gives message, hint and details.
    #[track_caller]
    pub fn expect_error(self, status: u16, code: &str) -> Value {
        let reply = self.expect(status);
        let body = reply.json();
        let error = &body["error"];
        assert_eq!(error["code"], code, "{body}");
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|message| !message.is_empty()),
            "{body}"
        );
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        for key in error.as_object().unwrap().keys() {
            assert!(
                ["code", "message", "hint", "details"].contains(&key.as_str()),
                "{body}"
            );
        }
        error.clone()
    }
}

/// One server-sent event.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    pub id: String,
    pub event: String,
    pub data: Value,
}

/// Reads server-sent events as they arrive.
pub struct Events {
    reader: BufReader<BodyReader>,
}

impl Events {
    pub fn of(open: Open) -> Self {
        assert_eq!(open.status, 200);
        assert_eq!(header(&open.headers, "content-type"), Some("text/event-stream"));
        Self {
            reader: BufReader::new(open.body),
        }
    }

    /// Reads on until an event that is so.
    #[track_caller]
    pub fn until(&mut self, so: impl Fn(&Sent) -> bool) -> Vec<Sent> {
        let mut read = Vec::new();
        for event in self.by_ref() {
            let found = so(&event);
            read.push(event);
            if found {
                return read;
            }
        }
        panic!("the stream ended before: {read:#?}");
    }
}

impl Iterator for Events {
    type Item = Sent;

    fn next(&mut self) -> Option<Sent> {
        let (mut id, mut event, mut data) = (String::new(), String::new(), None);
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line).unwrap() == 0 {
                assert!(data.is_none(), "the stream ended within an event");
                return None;
            }
            match line.trim_end().split_once(':') {
                Some(("id", value)) => id = value.trim().into(),
                Some(("event", value)) => event = value.trim().into(),
                // MCP begins with one that says nothing, so that a client can come back.
                Some(("data", value)) if value.trim().is_empty() => {}
                Some(("data", value)) => data = Some(serde_json::from_str(value).unwrap()),
                Some(("" | "retry", _)) => {}
                Some(other) => panic!("{other:?}"),
                None => {
                    if let Some(data) = data.take() {
                        return Some(Sent { id, event, data });
                    }
                }
            }
        }
    }
}
