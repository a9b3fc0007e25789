use super::{MAX_DEPTH, Reader, ScanError, ScanProblem, decode_string, write_string};
use std::ops::Range;

/// The one form of all texts that say the same: no white space, members sorted by name, strings escaped only where they
/// must be, numbers as they were written. Members of the outermost value named in `without` are left out.
///
/// # Errors
/// The text is not JSON in every detail, or is nested too deeply.
pub fn canonical(text: &[u8], without: &[&str]) -> Result<Vec<u8>, ScanError> {
    if let Err(error) = std::str::from_utf8(text) {
        return Err(ScanError {
            at: error.valid_up_to(),
            problem: ScanProblem::Utf8,
        });
    }
    let mut writer = Writer {
        reader: Reader::new(text),
        out: Vec::with_capacity(text.len()),
    };
    writer.value(0, without)?;
    writer.reader.end()?;
    Ok(writer.out)
}

struct Writer<'a> {
    reader: Reader<'a>,
    out: Vec<u8>,
}

impl Writer<'_> {
    fn value(&mut self, depth: u32, without: &[&str]) -> Result<(), ScanError> {
        match self.reader.peek() {
            Some(b'{' | b'[') if depth == MAX_DEPTH => Err(self.reader.error(ScanProblem::Depth)),
            Some(b'{') => self.object(depth, without),
            Some(b'[') => self.array(depth),
            Some(b'"') => {
                let body = self.reader.string()?;
                self.string(body)
            }
            _ => {
                let at = self.reader.at();
                let span = self.reader.skip()?;
                let literal = self.reader.slice(span);
                if !is_literal(literal) {
                    return Err(ScanError {
                        at,
                        problem: ScanProblem::Literal,
                    });
                }
                self.out.extend_from_slice(literal);
                Ok(())
            }
        }
    }

    fn array(&mut self, depth: u32) -> Result<(), ScanError> {
        self.out.push(b'[');
        let mut more = self.reader.enter(b'[')?;
        while more {
            self.value(depth + 1, &[])?;
            more = self.reader.next(b']')?;
            if more {
                self.out.push(b',');
            }
        }
        self.out.push(b']');
        Ok(())
    }

    /// Writes the members as they come, each with a comma, and puts them in order where they are not.
    fn object(&mut self, depth: u32, without: &[&str]) -> Result<(), ScanError> {
        self.out.push(b'{');
        let start = self.out.len();
        let mut written: Vec<(Vec<u8>, Range<usize>)> = Vec::new();
        let mut more = self.reader.enter(b'{')?;
        while more {
            let from = self.out.len();
            let body = self.reader.key()?;
            let name = decode_string(self.reader.slice(body.clone())).into_owned();
            self.string(body)?;
            self.out.push(b':');
            self.value(depth + 1, &[])?;
            self.out.push(b',');
            if without.contains(&name.as_str()) {
                self.out.truncate(from);
            } else {
                written.push((name.into_bytes(), from..self.out.len()));
            }
            more = self.reader.next(b'}')?;
        }
        if !written.is_sorted_by(|one, other| one.0 <= other.0) {
            written.sort_by(|one, other| one.0.cmp(&other.0));
            let spans = written.iter().filter_map(|(_, span)| self.out.get(span.clone()));
            let sorted = spans.collect::<Vec<_>>().concat();
            self.out.truncate(start);
            self.out.extend_from_slice(&sorted);
        }
        if self.out.len() > start {
            self.out.pop();
        }
        self.out.push(b'}');
        Ok(())
    }

    fn string(&mut self, body: Range<usize>) -> Result<(), ScanError> {
        let start = body.start;
        let bytes = self.reader.slice(body);
        let control = bytes.iter().fold(false, |found, byte| found | (*byte < 0x20));
        if control {
            let offset = bytes.iter().position(|byte| *byte < 0x20).unwrap_or(0);
            return Err(ScanError {
                at: start + offset,
                problem: ScanProblem::Unexpected,
            });
        }
        match escapes(bytes) {
            Escapes::Bad(offset) => Err(ScanError {
                at: start + offset,
                problem: ScanProblem::Literal,
            }),
            Escapes::Needed => {
                self.out.push(b'"');
                self.out.extend_from_slice(bytes);
                self.out.push(b'"');
                Ok(())
            }
            Escapes::Chosen => {
                write_string(&decode_string(bytes), &mut self.out);
                Ok(())
            }
        }
    }
}

/// The body of a string with no more escapes than it needs.
#[cfg(feature = "translated")]
pub(crate) fn least_escaped(body: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    if escapes(body) == Escapes::Needed {
        return body.into();
    }
    let mut quoted = Vec::with_capacity(body.len() + 2);
    write_string(&decode_string(body), &mut quoted);
    super::string_body(&quoted).unwrap_or_default().to_vec().into()
}

/// What escapes a string's body has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escapes {
    /// None, or only such as the one form has too.
    Needed,
    /// Others, for which the letter could stand.
    Chosen,
    /// One that JSON does not have, at that position.
    Bad(usize),
}

/// Looks at the escapes of a string's body.
pub(super) fn escapes(body: &[u8]) -> Escapes {
    let mut found = Escapes::Needed;
    let mut at = 0;
    while let Some(offset) = body.get(at..).and_then(|tail| memchr::memchr(b'\\', tail)) {
        let escape = at + offset;
        at = escape + 2;
        match body.get(escape + 1) {
            Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't') => {}
            Some(b'/') => found = Escapes::Chosen,
            Some(b'u')
                if body
                    .get(at..at + 4)
                    .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) =>
            {
                found = Escapes::Chosen;
            }
            _ => return Escapes::Bad(escape),
        }
    }
    found
}

/// Whether a text is one of JSON's words or numbers.
fn is_literal(text: &[u8]) -> bool {
    if matches!(text, b"null" | b"true" | b"false") {
        return true;
    }
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = text.strip_prefix(b"-").unwrap_or(text);
    let whole = digits(rest);
    if whole == 0 || whole > 1 && rest.starts_with(b"0") {
        return false;
    }
    let mut rest = rest.get(whole..).unwrap_or_default();
    if let Some(fraction) = rest.strip_prefix(b".") {
        let length = digits(fraction);
        if length == 0 {
            return false;
        }
        rest = fraction.get(length..).unwrap_or_default();
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent = exponent
            .strip_prefix(b"+")
            .or_else(|| exponent.strip_prefix(b"-"))
            .unwrap_or(exponent);
        let length = digits(exponent);
        if length == 0 {
            return false;
        }
        rest = exponent.get(length..).unwrap_or_default();
    }
    rest.is_empty()
}
