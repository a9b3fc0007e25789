//! Listeners of a server's feed of all events: how many each got, whether any is missing or came twice, and how long
//! events were on their way.

use memchr::memmem;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

/// What a listener, or all of them, heard.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Heard {
    /// Events.
    pub events: u64,
    /// Events that never came: the number of the one before was too small for that.
    pub missing: u64,
    /// Events whose number had been reached before.
    pub doubled: u64,
    /// Milliseconds from where an event happened until it was read, in no order.
    #[serde(skip)]
    pub delays_ms: Vec<u32>,
}

/// Why a listener heard nothing more.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    /// The server said something else than a feed.
    #[error("no feed: {line:?}")]
    NoFeed {
        /// What it said.
        line: String,
    },
    /// The feed ended.
    #[error("the feed ended")]
    Ended,
}

/// A listener that has been told where the feed is.
#[derive(Debug)]
pub struct Listener {
    lines: Lines<BufReader<TcpStream>>,
    /// The number of the next event.
    next: u64,
    heard: Heard,
}

impl Listener {
    /// Asks for the feed, and waits until it begins.
    ///
    /// # Errors
    /// No feed of a server.
    pub async fn open(address: SocketAddr) -> Result<Self, ListenError> {
        let mut stream = TcpStream::connect(address).await?;
        // Of version 1.0: the body then comes as it is, in no chunks.
        let request = format!("GET /api/v1/events HTTP/1.0\r\nhost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut listener = Self {
            lines: BufReader::new(stream).lines(),
            next: 0,
            heard: Heard::default(),
        };
        let status = listener.line().await?;
        if !status.contains(" 200") {
            return Err(ListenError::NoFeed { line: status });
        }
        loop {
            if let Some(number) = number(&listener.line().await?) {
                listener.next = number;
                return Ok(listener);
            }
        }
    }

    /// The number of the event that comes next.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Listens until the event before number `end` has come.
    ///
    /// # Errors
    /// The feed ends sooner.
    pub async fn until(mut self, end: u64) -> Result<Heard, ListenError> {
        while self.next < end {
            self.one().await?;
        }
        Ok(self.heard)
    }

    /// Reads a line. Can be dropped and called again.
    ///
    /// # Errors
    /// The feed has ended.
    pub async fn one(&mut self) -> Result<(), ListenError> {
        let line = self.line().await?;
        // An event is its id, its type and its data, in whatever order; the numbers of two are never the same.
        if let Some(number) = number(&line) {
            self.count(number);
        } else if line.starts_with("data:") {
            self.heard.delays_ms.extend(delay(&line, unix_ms()));
        }
        Ok(())
    }

    /// Takes the place in the feed behind an event.
    fn count(&mut self, number: u64) {
        if number <= self.next {
            self.heard.doubled += 1;
            return;
        }
        self.heard.events += 1;
        self.heard.missing += number - self.next - 1;
        self.next = number;
    }

    async fn line(&mut self) -> Result<String, ListenError> {
        self.lines.next_line().await?.ok_or(ListenError::Ended)
    }
}

/// The number in a line such as `id: 0123abcd-42`.
fn number(line: &str) -> Option<u64> {
    line.strip_prefix("id:")?.rsplit('-').next()?.trim().parse().ok()
}

/// How long the event of a line of data was on its way.
fn delay(line: &str, now_unix_ms: u64) -> Option<u32> {
    const MEMBER: &str = "\"unix_ms\":";
    let at = memmem::find(line.as_bytes(), MEMBER.as_bytes())?;
    let rest = line.get(at + MEMBER.len()..)?;
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    let happened: u64 = digits.parse().ok()?;
    u32::try_from(now_unix_ms.saturating_sub(happened)).ok()
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn what_is_missing_and_what_comes_twice_is_counted() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            _ = stream.read(&mut [0; 512]).await.unwrap();
            let mut said = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: position\nid: ab-5\ndata: {}\n\n".to_owned();
            for number in [6, 7, 7, 10] {
                said += &format!(
                    "id: ab-{number}\nevent: queued\ndata: {{\"unix_ms\":{}}}\n\n",
                    unix_ms()
                );
            }
            stream.write_all(said.as_bytes()).await.unwrap();
        });
        let listener = Listener::open(address).await.unwrap();
        assert_eq!(listener.next(), 5);
        let heard = listener.until(10).await.unwrap();
        assert_eq!((heard.events, heard.missing, heard.doubled), (3, 2, 1));
        assert!(heard.delays_ms.iter().all(|delay| *delay < 10_000));
    }

    #[test]
    fn a_delay_is_taken_from_the_time_of_the_event() {
        let line = r#"data: {"rollout":"x","sequence":3,"unix_ms":1000,"event":{"type":"queued"}}"#;
        assert_eq!(delay(line, 1012), Some(12));
        assert_eq!(delay("data: {}", 1012), None);
    }
}
