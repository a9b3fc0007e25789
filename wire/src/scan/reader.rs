use super::block::{first_end_of_literal, first_quote_or_backslash, marks};
use super::{ScanError, ScanProblem};
use memchr::memchr2;
use std::ops::Range;

/// Goes through a JSON text once, from front to back.
///
/// ```
/// use dressage_wire::scan::Reader;
/// let text = br#"{"a":[1,2],"b":"c"}"#;
/// let mut reader = Reader::new(text);
/// let mut more = reader.enter(b'{')?;
/// while more {
///     let key = reader.key()?;
///     let value = reader.skip()?;
///     println!("{:?} is {:?}", text.get(key), text.get(value));
///     more = reader.next(b'}')?;
/// }
/// reader.end()?;
/// # Ok::<(), dressage_wire::scan::ScanError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

/// A member of an object, as positions in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name, without its quotes, escapes as they are.
    pub key: Range<usize>,
    /// The value, strings with their quotes.
    pub value: Range<usize>,
}

impl<'a> Reader<'a> {
    /// Starts at the front of a text.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Starts at a position of a text.
    #[must_use]
    pub fn starting_at(text: &'a [u8], at: usize) -> Self {
        Self { text, at }
    }

    /// The position.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The whole text.
    #[must_use]
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// The bytes of a span of the text.
    #[must_use]
    pub fn slice(&self, span: Range<usize>) -> &'a [u8] {
        self.text.get(span).unwrap_or_default()
    }

    /// The next byte that is no white space, not consumed.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            if byte > b' ' || !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Consumes an opening bracket. Returns whether the object or array has anything in it; if not, the closing
    /// bracket is consumed too.
    ///
    /// # Errors
    /// Something else stands there.
    #[inline]
    pub fn enter(&mut self, open: u8) -> Result<bool, ScanError> {
        self.expect(open)?;
        // In ASCII a closing bracket is two after its opening one.
        if self.peek() == Some(open + 2) {
            self.at += 1;
            return Ok(false);
        }
        Ok(true)
    }

    /// After a member or item: consumes the comma and returns true, or the closing bracket and returns false.
    ///
    /// # Errors
    /// Something else stands there.
    #[inline]
    pub fn next(&mut self, close: u8) -> Result<bool, ScanError> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                Ok(false)
            }
            found => Err(self.wrong(found)),
        }
    }

    /// Consumes a member's name and the colon. Returns the name without its quotes.
    ///
    /// # Errors
    /// Something else stands there.
    #[inline]
    pub fn key(&mut self) -> Result<Range<usize>, ScanError> {
        let span = self.string()?;
        self.expect(b':')?;
        Ok(span)
    }

    /// Consumes a string. Returns it without its quotes.
    ///
    /// # Errors
    /// Something else stands there, or the string is not closed.
    #[inline]
    pub fn string(&mut self) -> Result<Range<usize>, ScanError> {
        self.expect(b'"')?;
        let start = self.at;
        let end = self.close_string()?;
        Ok(start..end)
    }

    /// Consumes the value that comes next. Returns it, strings with their quotes.
    ///
    /// # Errors
    /// No value stands there, or a string or bracket is not closed.
    #[inline]
    pub fn skip(&mut self) -> Result<Range<usize>, ScanError> {
        match self.peek() {
            Some(b'"') => {
                let start = self.at;
                self.at += 1;
                self.close_string()?;
                Ok(start..self.at)
            }
            Some(b'{' | b'[') => self.skip_brackets(),
            Some(_) => self.literal(),
            None => Err(self.error(ScanProblem::End)),
        }
    }

    /// Checks that nothing but white space is left.
    ///
    /// # Errors
    /// Something is.
    pub fn end(&mut self) -> Result<(), ScanError> {
        match self.peek() {
            None => Ok(()),
            found => Err(self.wrong(found)),
        }
    }

    /// An error at the position.
    #[must_use]
    #[cold]
    pub fn error(&self, problem: ScanProblem) -> ScanError {
        ScanError { at: self.at, problem }
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), ScanError> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            found => Err(self.wrong(found)),
        }
    }

    #[cold]
    fn wrong(&self, found: Option<u8>) -> ScanError {
        self.error(if found.is_some() {
            ScanProblem::Unexpected
        } else {
            ScanProblem::End
        })
    }

    /// From inside a string to after its closing quote. Returns the position of that quote.
    #[inline]
    fn close_string(&mut self) -> Result<usize, ScanError> {
        loop {
            let Some(block) = self.text.get(self.at..).and_then(|tail| tail.first_chunk()) else {
                return self.close_string_near_end();
            };
            let offset = first_quote_or_backslash(block);
            let end = self.at + offset;
            match self.text.get(end) {
                _ if offset == block.len() => {
                    self.at = end;
                    if self.text.len() - end > LONG_BYTES {
                        return self.close_string_near_end();
                    }
                }
                Some(b'"') => {
                    self.at = end + 1;
                    return Ok(end);
                }
                _ => self.at = end + 2,
            }
        }
    }

    fn close_string_near_end(&mut self) -> Result<usize, ScanError> {
        loop {
            let tail = self.text.get(self.at..).unwrap_or_default();
            let Some(offset) = memchr2(b'"', b'\\', tail) else {
                self.at = self.text.len();
                return Err(self.error(ScanProblem::End));
            };
            let end = self.at + offset;
            if self.text.get(end) == Some(&b'"') {
                self.at = end + 1;
                return Ok(end);
            }
            self.at = end + 2;
        }
    }

    /// From an opening bracket to after the one that closes it. Blocks of bytes are looked at together; inside a block
    /// each bracket counts only if the number of those that close could end the value.
    fn skip_brackets(&mut self) -> Result<Range<usize>, ScanError> {
        let start = self.at;
        let mut depth = 0_u64;
        let (mut in_string, mut escaped) = (0_u64, 0_u64);
        loop {
            let tail = self.text.get(self.at..).unwrap_or_default();
            let mut padded = [0; 64];
            let block = match tail.first_chunk() {
                Some(block) => block,
                None if tail.is_empty() => return Err(self.error(ScanProblem::End)),
                None => {
                    padded.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
                    &padded
                }
            };
            let marks = marks(block);
            let quotes = marks.quotes & !escapes(marks.backslashes, &mut escaped);
            let strings = until_next(quotes) ^ in_string;
            in_string = if strings >> 63 == 1 { u64::MAX } else { 0 };
            let (opens, closes) = (marks.opens & !strings, marks.closes & !strings);
            if depth > u64::from(closes.count_ones()) {
                depth = depth + u64::from(opens.count_ones()) - u64::from(closes.count_ones());
            } else {
                let mut brackets = opens | closes;
                while brackets != 0 {
                    let bit = brackets & brackets.wrapping_neg();
                    brackets ^= bit;
                    if opens & bit != 0 {
                        depth += 1;
                        continue;
                    }
                    depth -= 1;
                    if depth == 0 {
                        self.at += bit.trailing_zeros() as usize + 1;
                        return Ok(start..self.at);
                    }
                }
            }
            self.at += tail.len().min(block.len());
        }
    }

    #[inline]
    fn literal(&mut self) -> Result<Range<usize>, ScanError> {
        let start = self.at;
        let mut end = start;
        loop {
            let tail = self.text.get(end..).unwrap_or_default();
            let Some(block) = tail.first_chunk() else {
                let ends = |byte: &u8| {
                    *byte <= b' ' || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']')
                };
                end += tail.iter().position(ends).unwrap_or(tail.len());
                break;
            };
            let offset = first_end_of_literal(block);
            end += offset;
            if offset < block.len() {
                break;
            }
        }
        let known = match self.slice(start..end) {
            [b'0'..=b'9', ..] | [b'-', b'0'..=b'9', ..] => true,
            word => matches!(
                word,
                b"null" | b"true" | b"false" | b"NaN" | b"Infinity" | b"-Infinity"
            ),
        };
        if !known {
            let nothing = start == end;
            return Err(self.error(if nothing {
                ScanProblem::Unexpected
            } else {
                ScanProblem::Literal
            }));
        }
        self.at = end;
        Ok(start..end)
    }
}

/// From so many bytes on, a search made for long texts is faster.
const LONG_BYTES: usize = 256;

/// The bytes of a block that a backslash before them escapes. `carried` is 1 where the first byte is escaped, from one
/// block to the next.
#[inline]
fn escapes(mut backslashes: u64, carried: &mut u64) -> u64 {
    let mut escaped = std::mem::take(carried);
    backslashes &= !escaped;
    while backslashes != 0 {
        let bit = backslashes & backslashes.wrapping_neg();
        let next = bit << 1;
        escaped |= next;
        *carried |= u64::from(next == 0);
        backslashes &= !(bit | next);
    }
    escaped
}

/// For each byte, whether an odd number of quotes comes up to it: whether a string is open after it.
#[inline]
fn until_next(quotes: u64) -> u64 {
    let mut bits = quotes;
    for shift in [1, 2, 4, 8, 16, 32] {
        bits ^= bits << shift;
    }
    bits
}

/// The members of a text that is one object, in order.
///
/// # Errors
/// The text is not an object, or goes on after it.
pub fn members(text: &[u8]) -> Result<Vec<Member>, ScanError> {
    let mut reader = Reader::new(text);
    let mut found = Vec::new();
    let mut more = reader.enter(b'{')?;
    while more {
        let key = reader.key()?;
        let value = reader.skip()?;
        found.push(Member { key, value });
        more = reader.next(b'}')?;
    }
    reader.end()?;
    Ok(found)
}
