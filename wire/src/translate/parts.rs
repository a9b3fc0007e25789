//! Parts of messages in chat completions.

use super::Json;
use std::borrow::Cow;

/// Something that a message says.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// A text: what stands between the quotes of a string.
    Text(Cow<'a, [u8]>),
    /// Something else, as the JSON text of a part.
    Other(Vec<u8>),
}

impl<'a> Part<'a> {
    /// A text, given as what stands between the quotes of a string.
    pub(crate) fn text(body: impl Into<Cow<'a, [u8]>>) -> Self {
        Self::Text(body.into())
    }

    /// An image by its URL, given as what stands between the quotes of a string; `detail` is a JSON text.
    pub(crate) fn image(url: &[u8], detail: Option<&[u8]>) -> Self {
        let part = Json::from("{\"type\":\"image_url\",\"image_url\":{\"url\":").quoted(url);
        let part = match detail {
            None => part,
            Some(detail) => part.raw(",\"detail\":").raw(detail),
        };
        Self::Other(part.raw("}}").into_bytes())
    }

    /// The same for an image that comes with the request; both are given as what stands between quotes.
    pub(crate) fn image_data(media_type: &[u8], base64: &[u8]) -> Self {
        Self::image(&[b"data:", media_type, b";base64,", base64].concat(), None)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Text(body) => {
                out.extend_from_slice(b"{\"type\":\"text\",\"text\":\"");
                out.extend_from_slice(body);
                out.extend_from_slice(b"\"}");
            }
            Self::Other(json) => out.extend_from_slice(json),
        }
    }
}

/// Appends parts as a list.
pub(super) fn write_list(parts: &[Part<'_>], out: &mut Vec<u8>) {
    out.push(b'[');
    for (position, part) in parts.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        part.write(out);
    }
    out.push(b']');
}

/// Appends parts as one string where all of them are texts, else as a list. `between` is what stands between the quotes of
/// a string.
pub(super) fn write_joined(parts: &[Part<'_>], between: &str, out: &mut Vec<u8>) {
    if parts.iter().any(|part| matches!(part, Part::Other(_))) {
        write_list(parts, out);
        return;
    }
    out.push(b'"');
    for (position, part) in parts.iter().enumerate() {
        if position > 0 {
            out.extend_from_slice(between.as_bytes());
        }
        if let Part::Text(body) = part {
            out.extend_from_slice(body);
        }
    }
    out.push(b'"');
}
