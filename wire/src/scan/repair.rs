use super::canonical::{Escapes, escapes};
use super::value::decode_unicode;
use super::{Reader, decode_string, write_string};
use std::borrow::Cow;

/// A text as valid JSON: what [`Reader`] lets pass in strings and words is put right. `NaN` and the infinities become
/// `null`; control characters in strings are escaped; bytes that are not UTF-8 and halves of surrogate pairs become
/// U+FFFD. A text that is valid stays as it is. `None` where its brackets, commas or words are wrong.
#[must_use]
pub fn sound(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if !has_doubtful_escape(text) && is_json(text) {
        return Some(Cow::Borrowed(text));
    }
    let repaired = repair(text);
    is_json(&repaired).then_some(Cow::Owned(repaired))
}

/// Whether an escape is none of JSON's, or may be half of a surrogate pair, which JSON allows and readers refuse. Only
/// strings have escapes; a backslash elsewhere counts as one.
#[must_use]
pub fn has_doubtful_escape(text: &[u8]) -> bool {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        rest = match rest.get(at + 1..).and_then(<[u8]>::split_first) {
            Some((b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', tail)) => tail,
            // Half a pair and what is no escape are read as this letter. Where the letter itself is meant, it is doubtful
            // too, which costs time only.
            Some((b'u', tail)) => match decode_unicode(tail) {
                (char::REPLACEMENT_CHARACTER, _) => return true,
                (_, tail) => tail,
            },
            _ => return true,
        };
    }
    false
}

fn is_json(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text);
    text.is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

fn repair(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let mut reader = Reader::starting_at(text, at);
        if byte == b'"'
            && let Ok(body) = reader.string()
        {
            repair_string(reader.slice(body), &mut out);
            at = reader.at();
        } else if matches!(byte, b'N' | b'I' | b'-')
            && let Ok(word) = reader.skip()
            && matches!(reader.slice(word), b"NaN" | b"Infinity" | b"-Infinity")
        {
            out.extend_from_slice(b"null");
            at = reader.at();
        } else {
            out.push(byte);
            at += 1;
        }
    }
    out
}

fn repair_string(body: &[u8], out: &mut Vec<u8>) {
    let plain = escapes(body) == Escapes::Needed
        && !body.iter().any(|byte| *byte < 0x20)
        && std::str::from_utf8(body).is_ok();
    if plain {
        out.push(b'"');
        out.extend_from_slice(body);
        out.push(b'"');
    } else {
        write_string(&decode_string(body), out);
    }
}
