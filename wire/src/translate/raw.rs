use crate::scan::{Reader, decode_string, has_doubtful_escape, least_escaped, sound, string_body};
use std::borrow::Cow;

/// A value of a request, as its text, which was found to be JSON in every detail before.
///
/// Requests are hundreds of kilobytes that are for the most part passed on as they are: nothing is copied but into the
/// request that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raw<'a>(&'a [u8]);

impl AsRef<[u8]> for Raw<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0
    }
}

impl<'a> Raw<'a> {
    /// The value that a text is.
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self(text.trim_ascii())
    }

    /// What stands between the quotes, where it is a string.
    pub(crate) fn body(self) -> Option<&'a [u8]> {
        string_body(self.0)
    }

    /// What it says, where it is a string.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        self.body().map(decode_string)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0 == b"null"
    }

    pub(crate) fn is_object(self) -> bool {
        self.0.starts_with(b"{")
    }

    /// Whether it is a list or an object with nothing in it.
    pub(crate) fn is_empty(self) -> bool {
        match self.0 {
            [open @ (b'{' | b'['), ..] => Reader::new(self.0).enter(*open) == Ok(false),
            _ => false,
        }
    }

    /// The number that it is.
    pub(crate) fn number(self) -> Option<f64> {
        let is_number = matches!(self.0, [b'0'..=b'9' | b'-', ..]);
        std::str::from_utf8(self.0)
            .ok()
            .filter(|_| is_number)
            .and_then(|text| text.parse().ok())
    }

    /// The items, where it is a list.
    pub(crate) fn items(self) -> Option<Items<'a>> {
        let mut reader = Reader::new(self.0);
        let more = reader.enter(b'[').ok()?;
        Some(Items { reader, more })
    }

    /// The members, where it is an object.
    pub(crate) fn members(self) -> Option<Members<'a>> {
        let mut reader = Reader::new(self.0);
        let more = reader.enter(b'{').ok()?;
        Some(Members { reader, more })
    }

    /// The same as agents can read it in an event: without line ends, which in JSON are white space and would end the line,
    /// and without halves of surrogate pairs, which JSON allows and readers refuse.
    pub(crate) fn in_one_line(self) -> Cow<'a, [u8]> {
        let text = if has_doubtful_escape(self.0) {
            sound(self.0).unwrap_or(Cow::Borrowed(b"null"))
        } else {
            self.0.into()
        };
        if memchr::memchr2(b'\n', b'\r', &text).is_none() {
            return text;
        }
        let blank = |byte: &u8| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        };
        text.iter().map(blank).collect::<Vec<_>>().into()
    }

    /// Appends it as models write JSON, with a space after `,` and `:` and no more escapes than are needed: what stands
    /// between the quotes of a string that says so. Agents parse the arguments of a call and send them as a value; written
    /// so, they are most often the text that was sampled.
    pub(crate) fn write_spaced(self, out: &mut Vec<u8>) {
        let mut at = 0;
        while let Some(byte) = self.0.get(at) {
            let mut reader = Reader::starting_at(self.0, at);
            at += 1;
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => {}
                b',' | b':' => out.extend_from_slice(&[*byte, b' ']),
                b'{' | b'}' | b'[' | b']' => out.push(*byte),
                b'"' => {
                    let body = reader.string().map(|body| reader.slice(body)).unwrap_or_default();
                    out.extend_from_slice(b"\\\"");
                    escape_again(&least_escaped(body), out);
                    out.extend_from_slice(b"\\\"");
                    at = reader.at().max(at);
                }
                _ => {
                    let literal = reader.skip().map(|literal| reader.slice(literal));
                    out.extend_from_slice(literal.unwrap_or_default());
                    at = reader.at().max(at);
                }
            }
        }
    }
}

/// Appends the body of a string as it stands in another string.
fn escape_again(body: &[u8], out: &mut Vec<u8>) {
    let mut rest = body;
    while let Some((plain, [byte, tail @ ..])) =
        memchr::memchr2(b'"', b'\\', rest).and_then(|found| rest.split_at_checked(found))
    {
        out.extend_from_slice(plain);
        out.extend_from_slice(&[b'\\', *byte]);
        rest = tail;
    }
    out.extend_from_slice(rest);
}

/// The items of a list.
#[derive(Debug)]
pub(crate) struct Items<'a> {
    reader: Reader<'a>,
    more: bool,
}

impl<'a> Iterator for Items<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        let item = if self.more { self.reader.skip().ok() } else { None };
        self.more = item.is_some() && self.reader.next(b']') == Ok(true);
        item.map(|item| Raw(self.reader.slice(item)))
    }
}

/// The members of an object: names as they read, and values.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    reader: Reader<'a>,
    more: bool,
}

impl<'a> Iterator for Members<'a> {
    type Item = (Cow<'a, str>, Raw<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = if self.more { self.reader.key().ok() } else { None }?;
        let value = self.reader.skip().ok();
        self.more = value.is_some() && self.reader.next(b'}') == Ok(true);
        value.map(|value| {
            (
                decode_string(self.reader.slice(key)),
                Raw(self.reader.slice(value)),
            )
        })
    }
}

/// The member under which arguments that are no JSON object are handed over where an object is wanted, as Anthropic's
/// documentation of fine-grained tool streaming has it.
pub(super) const NOT_JSON: &str = "INVALID_JSON";

/// The arguments of a call, which are a value in other dialects, as the body of the string that they are in chat
/// completions.
pub(crate) fn arguments_body(value: Raw<'_>) -> Cow<'_, [u8]> {
    let mut members = value.members().into_iter().flatten();
    if let (Some((name, only)), None) = (members.next(), members.next())
        && name == NOT_JSON
        && let Some(body) = only.body()
    {
        return body.into();
    }
    let mut out = Vec::with_capacity(value.0.len() + 64);
    value.write_spaced(&mut out);
    out.into()
}
