use bytes::{Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request, whole.
pub struct Request {
    pub method: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
}

/// Where its answer goes.
pub struct Out {
    pub connection: TcpStream,
    left: Option<usize>,
}

impl Request {
    pub async fn read(mut connection: TcpStream) -> io::Result<(Self, Out)> {
        let mut received = BytesMut::new();
        let end = loop {
            if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                break end;
            }
            if connection.read_buf(&mut received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head = String::from_utf8(received.split_to(end + 4).to_vec()).unwrap();
        let mut lines = head.lines();
        let mut first = lines.next().unwrap().split(' ');
        let (method, target) = (first.next().unwrap().to_owned(), first.next().unwrap());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (decode(name), decode(value)))
            .collect();
        let mut request = Self {
            method,
            path: decode(path),
            query,
            headers,
            body: Bytes::new(),
        };
        let length: usize = request
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        while received.len() < length {
            if connection.read_buf(&mut received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        request.body = received.freeze();
        Ok((request, Out::of(connection)))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|header| header.0 == name);
        found.map(|header| header.1.as_str())
    }

    pub fn query(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|pair| pair.0 == name);
        found.map(|pair| pair.1.as_str())
    }

    /// As it is replayed to a server in a sandbox.
    pub fn replayed(&self, path: &str, without: &[&str]) -> Vec<u8> {
        let mut head = format!("{} {path} HTTP/1.1\r\n", self.method);
        for (name, value) in &self.headers {
            if !without.contains(&name.as_str()) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Out {
    pub fn of(connection: TcpStream) -> Self {
        Self {
            connection,
            left: None,
        }
    }

    pub fn cut_after(&mut self, bytes: usize) {
        self.left = Some(bytes);
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(left) = &mut self.left else {
            return self.connection.write_all(bytes).await;
        };
        let count = bytes.len().min(*left);
        *left -= count;
        let is_cut = *left == 0;
        self.connection.write_all(&bytes[..count]).await?;
        if is_cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok(())
    }

    pub async fn answer(&mut self, status: u16, body: &[u8]) -> io::Result<()> {
        let length = body.len();
        let head = format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        self.write(&[head.as_bytes(), body].concat()).await
    }

    pub async fn begin(&mut self, kind: &str) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        self.connection.write_all(head.as_bytes()).await
    }

    pub async fn piece(&mut self, bytes: &[u8]) -> io::Result<()> {
        let framed = [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        self.write(&framed).await
    }

    pub async fn end(&mut self) -> io::Result<()> {
        self.write(b"0\r\n\r\n").await
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}
