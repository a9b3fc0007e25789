use super::header::{FIELD_MAX, Time};

/// What is said of an entry by headers before its own.
#[derive(Debug, Default)]
pub(super) struct Said {
    extended: bool,
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<Time>,
    pub(super) long_name: Option<Vec<u8>>,
    pub(super) long_link: Option<Vec<u8>>,
}

impl Said {
    pub(super) fn is_empty(&self) -> bool {
        let names = [&self.path, &self.link, &self.long_name, &self.long_link];
        !self.extended && names.iter().all(|name| name.is_none())
    }

    /// Takes the content of a header that goes before an entry's own; an error says what is wrong with it.
    pub(super) fn take_in(&mut self, kind: u8, text: &[u8]) -> Result<(), &'static str> {
        match kind {
            b'L' => set(&mut self.long_name, until_zero(text)),
            b'K' => set(&mut self.long_link, until_zero(text)),
            _ => self.read(text, kind == b'g'),
        }
    }

    /// Reads records of an extended header. One for all entries that follow may say nothing that matters here.
    fn read(&mut self, mut text: &[u8], global: bool) -> Result<(), &'static str> {
        if !global && std::mem::replace(&mut self.extended, true) {
            return Err("has two extended headers");
        }
        const MALFORMED: &str = "has an extended header that is malformed";
        while !text.is_empty() {
            let blank = text.iter().position(|byte| *byte == b' ').ok_or(MALFORMED)?;
            let (digits, _) = text.split_at(blank);
            let length: usize = std::str::from_utf8(digits)
                .ok()
                .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))
                .and_then(|digits| digits.parse().ok())
                .ok_or(MALFORMED)?;
            let record = text.get(blank + 1..length).ok_or(MALFORMED)?;
            text = text.get(length..).unwrap_or_default();
            let record = record.strip_suffix(b"\n").ok_or(MALFORMED)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
            let (name, value) = record.split_at(equals);
            let value = value.get(1..).unwrap_or_default();
            if name.starts_with(b"GNU.sparse.") {
                return Err("is stored with holes");
            }
            match name {
                b"path" | b"linkpath" | b"size" if global => {
                    return Err("has a header that renames all that follow");
                }
                b"path" => set(&mut self.path, value)?,
                b"linkpath" => set(&mut self.link, value)?,
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or("has a length that is no number")?);
                }
                b"mtime" if !global => {
                    self.mtime = Some(time(value).ok_or("has a time that is no number")?);
                }
                // Other times, owners, attributes: none of it is kept.
                _ => {}
            }
        }
        Ok(())
    }
}

fn set(place: &mut Option<Vec<u8>>, value: &[u8]) -> Result<(), &'static str> {
    match place.replace(value.to_vec()) {
        None => Ok(()),
        Some(_) => Err("has two names"),
    }
}

fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Seconds with a fraction, cut after nine digits.
fn time(value: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(value).ok()?;
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    if is_negative {
        return Some(Time::default());
    }
    let nine = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    Some(Time {
        seconds: whole.parse().unwrap_or(FIELD_MAX).min(FIELD_MAX),
        nanoseconds: nine.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')),
    })
}
