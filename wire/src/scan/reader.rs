use super::{MAX_DEPTH, ScanError, ScanProblem};
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
    /// No value stands there, a string or bracket is not closed, or the brackets do not match.
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
        // Most strings are short: a look at each byte beats a call.
        let near = self.text.get(self.at..).unwrap_or_default();
        for (offset, byte) in near.iter().take(NEAR_BYTES).enumerate() {
            match byte {
                b'"' => {
                    let end = self.at + offset;
                    self.at = end + 1;
                    return Ok(end);
                }
                b'\\' => {
                    self.at += offset;
                    return self.close_long_string();
                }
                _ => {}
            }
        }
        self.at += near.len().min(NEAR_BYTES);
        self.close_long_string()
    }

    fn close_long_string(&mut self) -> Result<usize, ScanError> {
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

    fn skip_brackets(&mut self) -> Result<Range<usize>, ScanError> {
        let start = self.at;
        let (mut depth, mut objects) = (0_u32, 0_u128);
        while let Some(&byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => {
                    self.close_string()?;
                }
                b'{' | b'[' => {
                    if depth == MAX_DEPTH {
                        return Err(self.error(ScanProblem::Depth));
                    }
                    depth += 1;
                    objects = objects << 1 | u128::from(byte == b'{');
                }
                b'}' | b']' => {
                    if (objects & 1 == 1) != (byte == b'}') {
                        self.at -= 1;
                        return Err(self.error(ScanProblem::Unexpected));
                    }
                    depth -= 1;
                    objects >>= 1;
                    if depth == 0 {
                        return Ok(start..self.at);
                    }
                }
                _ => {}
            }
        }
        Err(self.error(ScanProblem::End))
    }

    fn literal(&mut self) -> Result<Range<usize>, ScanError> {
        let start = self.at;
        let tail = self.text.get(start..).unwrap_or_default();
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
        let length = tail.iter().position(|byte| !word(byte)).unwrap_or(tail.len());
        let text = tail.get(..length).unwrap_or_default();
        let number = text.first().is_some_and(|byte| byte.is_ascii_digit())
            || text.len() > 1 && text.starts_with(b"-") && text.get(1).is_some_and(u8::is_ascii_digit);
        if !number
            && !matches!(
                text,
                b"null" | b"true" | b"false" | b"NaN" | b"Infinity" | b"-Infinity"
            )
        {
            return Err(self.error(match text {
                b"" => ScanProblem::Unexpected,
                _ => ScanProblem::Literal,
            }));
        }
        self.at += length;
        Ok(start..self.at)
    }
}

/// How far a string is looked at byte by byte.
const NEAR_BYTES: usize = 24;

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
