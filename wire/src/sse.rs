//! Server-sent events, split out of any sequence of byte chunks.
//!
//! An event is given with its raw bytes, from its first line to the blank line that ends it, so that it can be passed
//! on unchanged, and with its data. Any split of a stream into chunks gives the same events. A chunk that holds whole
//! events is read in place; only an event that spans chunks is copied, once.
//!
//! Lines end with LF, CRLF or CR. A blank line that ends with CR is complete only when the next byte is known, unless
//! the line before it ended with a bare CR: then the stream ends its lines so, and waiting would delay the event.

use bytes::{Buf, BytesMut};
use memchr::memchr2;
use std::borrow::Cow;
use std::ops::Range;

/// How much of a chunk is added at once to an event that began in an earlier one: its end is near, as a rule.
const PART_BYTES: usize = 4096;

/// Splits a stream into events.
#[derive(Debug)]
pub struct Splitter {
    limit_bytes: usize,
    /// Bytes of the event that is not yet whole.
    rest: BytesMut,
    /// How far `rest` was scanned.
    scan: Scan,
    /// Bytes at the front of `rest` given out by the last call, dropped by the next.
    given: usize,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// All its bytes, the blank line included.
    pub raw: &'a [u8],
    data: Data,
}

/// Where the data lines of an event are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// Nowhere: comments, or other fields alone.
    None,
    /// In one line: start and end of its value in the raw bytes.
    Line(usize, usize),
    /// In several.
    Lines,
}

/// An event is larger than the splitter was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event is larger than {limit_bytes} bytes")]
pub struct EventTooLarge {
    /// The most it may be.
    pub limit_bytes: usize,
}

/// How far an event was scanned, relative to its start.
#[derive(Clone, Copy, Debug)]
struct Scan {
    /// Where to go on.
    at: usize,
    /// Where the line began that `at` is in.
    line: usize,
    /// The line before ended with a bare CR.
    bare_cr: bool,
    data: Data,
}

impl Scan {
    const START: Self = Self {
        at: 0,
        line: 0,
        bare_cr: false,
        data: Data::None,
    };

    /// Goes on to the end of the event in `bytes`, which start with the event. Returns the length of the event, or
    /// `None` if it ends later. `whole` says that no byte follows.
    fn advance(&mut self, bytes: &[u8], whole: bool) -> Option<usize> {
        loop {
            let found = bytes.get(self.at..).and_then(|tail| memchr2(b'\n', b'\r', tail));
            let Some(end) = found.map(|offset| self.at + offset) else {
                self.at = bytes.len();
                return None;
            };
            let blank = end == self.line;
            let bare_cr_before = self.bare_cr;
            let mut next = end + 1;
            self.bare_cr = false;
            if bytes.get(end) == Some(&b'\r') {
                if blank && bare_cr_before {
                    return Some(next);
                }
                match bytes.get(next) {
                    Some(b'\n') => next += 1,
                    Some(_) => self.bare_cr = true,
                    None if whole => {}
                    None => {
                        self.bare_cr = bare_cr_before;
                        self.at = end;
                        return None;
                    }
                }
            }
            if blank {
                return Some(next);
            }
            self.line(bytes, end);
            self.at = next;
            self.line = next;
        }
    }

    /// Notes the line from `self.line` to `end`.
    fn line(&mut self, bytes: &[u8], end: usize) {
        if let Some(value) = data_value(bytes, self.line..end) {
            self.data = match self.data {
                Data::None => Data::Line(value.start, value.end),
                Data::Line(..) | Data::Lines => Data::Lines,
            };
        }
    }
}

/// The value of a line if it is a data line.
fn data_value(bytes: &[u8], line: Range<usize>) -> Option<Range<usize>> {
    let text = bytes.get(line.clone())?;
    let value = text.strip_prefix(b"data")?;
    let value = match value {
        [] => value,
        [b':', b' ', value @ ..] | [b':', value @ ..] => value,
        _ => return None,
    };
    Some(line.end - value.len()..line.end)
}

/// The lines of an event without their ends.
fn lines(raw: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let tail = raw.get(at..).filter(|tail| !tail.is_empty())?;
        let length = memchr2(b'\n', b'\r', tail).unwrap_or(tail.len());
        let line = at..at + length;
        at = line.end
            + if tail.get(length..).is_some_and(|end| end.starts_with(b"\r\n")) {
                2
            } else {
                1
            };
        Some(line)
    })
}

impl<'a> Event<'a> {
    /// Its data: the values of its data lines, joined by LF. `None` where it has none, as comments do.
    #[must_use]
    pub fn data(&self) -> Option<Cow<'a, [u8]>> {
        match self.data {
            Data::None => None,
            Data::Line(start, end) => self.raw.get(start..end).map(Cow::Borrowed),
            Data::Lines => {
                let values = self.values().filter_map(|value| self.raw.get(value));
                Some(Cow::Owned(values.collect::<Vec<_>>().join(&b'\n')))
            }
        }
    }

    /// The value of its `event` field.
    #[must_use]
    pub fn name(&self) -> Option<&'a [u8]> {
        let raw = self.raw;
        let values = lines(raw).filter_map(|line| raw.get(line)?.strip_prefix(b"event:"));
        values
            .last()
            .map(|value| value.strip_prefix(b" ").unwrap_or(value))
    }

    /// What stands before and after its data; `None` where that is not in one line.
    #[must_use]
    pub fn frame(&self) -> Option<(&'a [u8], &'a [u8])> {
        match self.data {
            Data::Line(start, end) => Some((self.raw.get(..start)?, self.raw.get(end..)?)),
            Data::None | Data::Lines => None,
        }
    }

    /// Appends the event with other data in the place of its own; other lines stay as they are.
    pub fn write_with(&self, data: &[u8], out: &mut BytesMut) {
        match self.data {
            Data::Line(start, end) if memchr2(b'\n', b'\r', data).is_none() => {
                out.extend_from_slice(self.raw.get(..start).unwrap_or_default());
                out.extend_from_slice(data);
                out.extend_from_slice(self.raw.get(end..).unwrap_or_default());
            }
            _ => {
                let others = lines(self.raw)
                    .filter(|line| !line.is_empty() && data_value(self.raw, line.clone()).is_none());
                for line in others.filter_map(|line| self.raw.get(line)) {
                    out.extend_from_slice(line);
                    out.extend_from_slice(b"\n");
                }
                for line in lines(data).filter_map(|line| data.get(line)) {
                    out.extend_from_slice(b"data: ");
                    out.extend_from_slice(line);
                    out.extend_from_slice(b"\n");
                }
                out.extend_from_slice(b"\n");
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = Range<usize>> {
        lines(self.raw).filter_map(|line| data_value(self.raw, line))
    }
}

impl Splitter {
    /// A splitter for events of at most `limit_bytes` bytes.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            rest: BytesMut::new(),
            scan: Scan::START,
            given: 0,
        }
    }

    /// Takes a chunk. Its events are to be taken from what is returned until there are none; what is left then is kept
    /// for the next chunk.
    pub fn push<'s>(&'s mut self, chunk: &'s [u8]) -> Events<'s> {
        Events {
            splitter: self,
            chunk,
        }
    }

    /// The event that is left when the stream ends without the blank line that would end it.
    #[must_use]
    pub fn rest(&mut self) -> Option<Event<'_>> {
        self.drop_given();
        if self.rest.is_empty() {
            return None;
        }
        let whole = self.scan.advance(&self.rest, true).is_some();
        if !whole && self.scan.line < self.rest.len() {
            self.scan.line(&self.rest, self.rest.len());
            self.scan.line = self.rest.len();
        }
        Some(Event {
            raw: &self.rest,
            data: self.scan.data,
        })
    }

    fn drop_given(&mut self) {
        self.rest.advance(self.given);
        self.given = 0;
    }
}

/// The events that a chunk completes.
#[derive(Debug)]
pub struct Events<'s> {
    splitter: &'s mut Splitter,
    chunk: &'s [u8],
}

impl Events<'_> {
    /// The next event; `None` when the chunk is used up.
    ///
    /// # Errors
    /// An event is too large; so is every later one.
    #[expect(
        clippy::should_implement_trait,
        reason = "an event borrows from the splitter until the next call"
    )]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, EventTooLarge> {
        let Self { splitter, chunk } = self;
        splitter.drop_given();
        let limit_bytes = splitter.limit_bytes;
        if splitter.rest.is_empty() {
            let mut scan = Scan::START;
            let found = scan.advance(chunk, false);
            if found.unwrap_or(chunk.len()) > limit_bytes {
                return Err(EventTooLarge { limit_bytes });
            }
            if let Some((raw, tail)) = found.and_then(|length| chunk.split_at_checked(length)) {
                *chunk = tail;
                return Ok(Some(Event { raw, data: scan.data }));
            }
            splitter.rest.extend_from_slice(chunk);
            splitter.scan = scan;
            *chunk = &[];
            return Ok(None);
        }
        while !chunk.is_empty() {
            let before = splitter.rest.len();
            let (part, tail) = chunk.split_at_checked(PART_BYTES).unwrap_or((chunk, &[]));
            splitter.rest.extend_from_slice(part);
            let found = splitter.scan.advance(&splitter.rest, false);
            if found.unwrap_or(splitter.rest.len()) > limit_bytes {
                return Err(EventTooLarge { limit_bytes });
            }
            if let Some(length) = found {
                splitter.rest.truncate(length);
                splitter.given = length;
                *chunk = chunk.get(length.saturating_sub(before)..).unwrap_or_default();
                let Scan { data, .. } = std::mem::replace(&mut splitter.scan, Scan::START);
                return Ok(Some(Event {
                    raw: &splitter.rest,
                    data,
                }));
            }
            *chunk = tail;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
