use super::server::{Server, decoded};
use crate::remote::http::HttpError;
use crate::remote::machine::{Ended, Machine, MachineError, Running, Said};
use crate::remote::scripts;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// What is asked for of each of its outputs at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Questions for news that may be lost one after the other.
const LOSSES: u32 = 6;

/// A program in the background, whose output goes to files. The provider keeps none of it, and text only of what runs in the
/// foreground, where nothing is found again after a lost connection: here any question can be asked again.
pub(super) struct Background {
    server: Server,
    id: String,
    folder: String,
    /// Whether its exit code is written to a file; otherwise it is the process's own.
    is_told: bool,
    out: u64,
    err: u64,
    /// How much of both was there when it had ended: what it has left behind may write on.
    ends_at: Option<[u64; 2]>,
    heard: VecDeque<Said>,
    is_over: bool,
    losses: u32,
}

/// What there is of a program.
#[derive(Debug, PartialEq, Eq)]
struct News {
    code: Option<i32>,
    /// The lengths of both files, after the code was looked for.
    written: [u64; 2],
    out: Bytes,
    err: Bytes,
}

impl Background {
    pub(super) fn new(server: Server, id: String, folder: String, is_told: bool) -> Self {
        Self {
            server,
            id,
            folder,
            is_told,
            out: 0,
            err: 0,
            ends_at: None,
            heard: VecDeque::new(),
            is_over: false,
            losses: 0,
        }
    }

    async fn ask(&self) -> Result<News, MachineError> {
        let argv: Vec<String> = [
            "/bin/sh",
            "-c",
            scripts::NEWS,
            "dressage",
            &self.folder,
            &self.out.to_string(),
            &self.err.to_string(),
            &PIECE_BYTES.to_string(),
        ]
        .map(str::to_owned)
        .into();
        let ran = self.server.exec(&argv, &BTreeMap::new(), None).await?;
        read_news(&ran.stdout).ok_or_else(|| HttpError::Malformed("news that are none".into()).into())
    }

    /// As [`Background::ask`], through losses of the connection.
    async fn news(&mut self) -> Result<News, MachineError> {
        loop {
            let error = match self.ask().await {
                Ok(news) => {
                    self.losses = 0;
                    return Ok(news);
                }
                Err(error) => error,
            };
            let is_given_up = !error.is_unclear() || self.losses >= LOSSES;
            if is_given_up || self.server.lives().await == Some(false) {
                return Err(error);
            }
            self.losses += 1;
            tokio::time::sleep(Duration::from_millis(50 << self.losses)).await;
        }
    }

    /// Takes news, and says whether there were any.
    fn take(&mut self, news: &News) -> bool {
        if news.code.is_some() {
            self.ends_at.get_or_insert(news.written);
        }
        let [out_end, err_end] = self.ends_at.unwrap_or([u64::MAX; 2]);
        let out = up_to(&news.out, out_end.saturating_sub(self.out));
        let err = up_to(&news.err, err_end.saturating_sub(self.err));
        self.out += out.len() as u64;
        self.err += err.len() as u64;
        if !out.is_empty() {
            self.heard.push_back(Said::Stdout(out));
        }
        if !err.is_empty() {
            self.heard.push_back(Said::Stderr(err));
        }
        if let Some(code) = news.code
            && self.out >= out_end
            && self.err >= err_end
        {
            self.end(code);
        }
        !self.heard.is_empty()
    }

    /// By the convention of shells: what ended is not asked by which of the two.
    fn end(&mut self, code: i32) {
        self.is_over = true;
        self.heard.push_back(Said::Ended(match code - 128 {
            signal @ 1..=64 => Ended::by(signal),
            _ => Ended { code, signal: None },
        }));
    }
}

fn up_to(piece: &Bytes, most: u64) -> Bytes {
    piece.slice(..piece.len().min(usize::try_from(most).unwrap_or(usize::MAX)))
}

#[async_trait]
impl Running for Background {
    fn id(&self) -> &str {
        &self.id
    }

    async fn next(&mut self) -> Result<Said, MachineError> {
        loop {
            if let Some(said) = self.heard.pop_front() {
                return Ok(said);
            }
            if self.is_over {
                return Err(MachineError::Cut);
            }
            let news = self.news().await?;
            if self.take(&news) {
                continue;
            }
            // Nothing for a while: is it still there?
            let listed = self.server.process(&self.id).await?;
            if listed.as_ref().is_some_and(|listed| listed.running) {
                continue;
            }
            // It may have ended in between, and what it wrote at last be there now.
            let news = self.news().await?;
            if self.take(&news) {
                continue;
            }
            match listed {
                Some(listed) if !self.is_told => {
                    self.end(listed.exit_code.unwrap_or(128 + libc::SIGKILL));
                }
                _ => return Err(MachineError::Vanished(self.id.clone())),
            }
        }
    }
}

fn read_news(text: &[u8]) -> Option<News> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines();
    let mut line = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let mut told = line("code")?.split(' ');
    let code = match told.next()? {
        "-" => None,
        code => Some(code.parse().ok()?),
    };
    let written = [told.next()?.parse().ok()?, told.next()?.parse().ok()?];
    let out = decoded(line("out")?.as_bytes()).ok()?.into();
    let err = decoded(line("err")?.as_bytes()).ok()?.into();
    Some(News {
        code,
        written,
        out,
        err,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_whole_or_not_at_all() {
        let news = |code, out: &'static str, err: &'static str| News {
            code,
            written: [3, 4],
            out: out.into(),
            err: err.into(),
        };
        assert_eq!(
            read_news(b"code - 3 4\nout aGkK\nerr \n").unwrap(),
            news(None, "hi\n", "")
        );
        assert_eq!(
            read_news(b"code 7 3 4\nout \nerr aGkK\n").unwrap(),
            news(Some(7), "", "hi\n")
        );
        for cut in [
            "code - 3 4\nout aGkK\n",
            "code - 3 4\nout aGk",
            "code x 3 4\nout \nerr \n",
            "code 7 3\nout \nerr \n",
            "code 7\nout \nerr \n",
            "",
        ] {
            assert_eq!(read_news(cut.as_bytes()), None, "{cut}");
        }
    }
}
