use super::{Reader, ScanError, ScanProblem};
use std::borrow::Cow;

/// The text of a string value without its quotes, escapes as they are; `None` for any other value.
#[must_use]
pub fn string_body(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', body @ .., b'"'] => Some(body),
        _ => None,
    }
}

/// The text that the body of a string stands for. Lone surrogates and bytes that are not UTF-8 become U+FFFD; an
/// escape JSON does not have stands for itself.
#[must_use]
pub fn decode_string(body: &[u8]) -> Cow<'_, str> {
    if memchr::memchr(b'\\', body).is_none() {
        // Looked at first, since the lossy reader is slow with what is in order.
        return std::str::from_utf8(body).map_or_else(|_| String::from_utf8_lossy(body), Cow::Borrowed);
    }
    let mut text = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(rest.get(..at).unwrap_or_default());
        rest = rest.get(at + 1..).unwrap_or_default();
        let Some((escape, tail)) = rest.split_first() else {
            break;
        };
        rest = tail;
        match escape {
            b'b' => text.push(8),
            b'f' => text.push(12),
            b'n' => text.push(b'\n'),
            b'r' => text.push(b'\r'),
            b't' => text.push(b'\t'),
            b'u' => {
                let (letter, tail) = decode_unicode(rest);
                text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = tail;
            }
            other => text.push(*other),
        }
    }
    text.extend_from_slice(rest);
    Cow::Owned(match String::from_utf8(text) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    })
}

/// The letter of what follows `\u`, which may take a second escape, and what comes after.
pub(super) fn decode_unicode(rest: &[u8]) -> (char, &[u8]) {
    let Some((high, tail)) = hex(rest) else {
        return (char::REPLACEMENT_CHARACTER, rest);
    };
    if let Some(letter) = char::from_u32(high) {
        return (letter, tail);
    }
    let low = tail.strip_prefix(b"\\u").and_then(hex);
    match low {
        Some((low @ 0xDC00..0xE000, after)) if high < 0xDC00 => {
            let code = 0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), after)
        }
        _ => (char::REPLACEMENT_CHARACTER, tail),
    }
}

/// Four hexadecimal digits, and what comes after.
fn hex(rest: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, tail) = rest.split_at_checked(4)?;
    let value = digits.iter().try_fold(0, |value, digit| {
        Some(value << 4 | char::from(*digit).to_digit(16)?)
    });
    Some((value?, tail))
}

/// Appends a text as a JSON string, with its quotes.
pub fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest
        .iter()
        .position(|byte| *byte < 0x20 || matches!(byte, b'"' | b'\\'))
    {
        let (plain, tail) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        out.extend_from_slice(plain);
        let Some((byte, tail)) = tail.split_first() else {
            break;
        };
        rest = tail;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            other => {
                let digit =
                    |value: u8| char::from_digit(u32::from(value), 16).map_or(b'0', |digit| digit as u8);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(other >> 4), digit(other & 15)]);
            }
        }
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

/// A number, exactly as Rust reads its text; `NaN` and the infinities too. `None` for any other value.
#[must_use]
pub fn parse_f64(value: &[u8]) -> Option<f64> {
    match value {
        b"NaN" => Some(f64::NAN),
        b"Infinity" => Some(f64::INFINITY),
        b"-Infinity" => Some(f64::NEG_INFINITY),
        [b'0'..=b'9' | b'-', .., b'0'..=b'9'] | [b'0'..=b'9'] => {
            std::str::from_utf8(value).ok()?.parse().ok()
        }
        _ => None,
    }
}

/// A whole number of at least 0, written without fraction or exponent. `None` for any other value.
#[must_use]
pub fn parse_u64(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads an array of ids and appends them. Returns false, having appended nothing, where the value is `null`.
///
/// # Errors
/// The value is something else, or an item is not a whole number below 2^32.
pub fn parse_u32_array(reader: &mut Reader<'_>, ids: &mut Vec<u32>) -> Result<bool, ScanError> {
    if reader.peek() == Some(b'n') {
        reader.skip()?;
        return Ok(false);
    }
    let mut more = reader.enter(b'[')?;
    while more {
        let value = reader.skip()?;
        let id = parse_u64(reader.slice(value)).and_then(|id| u32::try_from(id).ok());
        ids.push(id.ok_or_else(|| reader.error(ScanProblem::Literal))?);
        more = reader.next(b']')?;
    }
    Ok(true)
}
