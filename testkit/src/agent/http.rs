//! A blocking HTTP/1.1 client, as small as it can be: POST a document, read the reply line by line as it comes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest silence that is waited out, as OpenCode's `chunkTimeout`.
const SILENCE: Duration = Duration::from_secs(300);

/// A reply whose body is still to be read.
pub(super) struct Response {
    /// HTTP status.
    pub status: u16,
    /// The body, its transfer coding undone. Ends with an error where the connection breaks inside it.
    pub body: Box<dyn BufRead>,
}

/// Posts a JSON document to `http://authority/…`.
pub(super) fn post(url: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Response> {
    let bad = |message: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{url}: {message}"));
    let rest = url
        .strip_prefix("http://")
        .ok_or_else(|| bad("only http:// is spoken"))?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = if authority.contains(':') {
        authority.to_owned()
    } else {
        format!("{authority}:80")
    };
    let mut stream = TcpStream::connect(&address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let length = body.len();
    let mut request = format!(
        "POST /{path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         connection: close\r\n"
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    request.push_str(body);
    stream.write_all(request.as_bytes())?;
    read_head(BufReader::new(stream))
}

fn read_head(mut stream: BufReader<TcpStream>) -> io::Result<Response> {
    let line = read_line(&mut stream)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| broken(format!("no status line: {line:?}")))?;
    let mut length = None;
    let mut chunked = false;
    loop {
        let line = read_line(&mut stream)?.to_ascii_lowercase();
        match line.split_once(':').map(|(name, value)| (name, value.trim())) {
            Some(("content-length", value)) => length = value.parse::<u64>().ok(),
            Some(("transfer-encoding", value)) => chunked = value.contains("chunked"),
            Some(_) => {}
            None => break,
        }
    }
    let body: Box<dyn BufRead> = match (chunked, length) {
        (true, _) => Box::new(BufReader::new(Chunked {
            stream,
            left: 0,
            ended: false,
        })),
        (false, Some(length)) => Box::new(BufReader::new(Sized { stream, left: length })),
        (false, None) => Box::new(stream),
    };
    Ok(Response { status, body })
}

fn read_line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.take(64 << 10).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn broken(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

/// A body whose length was told.
struct Sized {
    stream: BufReader<TcpStream>,
    left: u64,
}

impl Read for Sized {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.by_ref().take(self.left).read(buffer)?;
        if count == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

/// A body in chunks.
struct Chunked {
    stream: BufReader<TcpStream>,
    left: u64,
    ended: bool,
}

impl Read for Chunked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            let line = read_line(&mut self.stream)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            self.left =
                u64::from_str_radix(size, 16).map_err(|_| broken(format!("no chunk size: {line:?}")))?;
            self.ended = self.left == 0;
        }
        if self.ended || buffer.is_empty() {
            return Ok(0);
        }
        let count = self.stream.by_ref().take(self.left).read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        if self.left == 0 {
            read_line(&mut self.stream)?;
        }
        Ok(count)
    }
}
