use crate::capture::RequestError;
use crate::scan::{Reader, decode_string, members, write_string};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::HashSet;

/// An object as its members in order, each value as the bytes it came in. The object of a request, or one in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Body<'a> {
    members: Vec<(Cow<'a, str>, Cow<'a, [u8]>)>,
}

impl<'a> Body<'a> {
    /// Reads an object. A name that is there twice is an error: readers do not agree on which one counts.
    pub(super) fn read(text: &'a [u8]) -> Result<Self, RequestError> {
        let spans = members(text)?;
        let mut read = Vec::with_capacity(spans.len() + 8);
        for member in spans {
            let name = decode_string(text.get(member.key).unwrap_or_default());
            read.push((name, Cow::Borrowed(text.get(member.value).unwrap_or_default())));
        }
        let mut seen = HashSet::with_capacity(read.len());
        if let Some((name, _)) = read.iter().find(|(name, _)| !seen.insert(name.as_ref())) {
            return Err(RequestError::DuplicateMember {
                member: name.to_string(),
            });
        }
        Ok(Self { members: read })
    }

    /// The value of a member.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.members
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_ref())
    }

    /// Sets a member where it stands, or as the last.
    pub(super) fn set(&mut self, name: &str, value: Vec<u8>) {
        match self.members.iter_mut().find(|(known, _)| known == name) {
            Some((_, old)) => *old = Cow::Owned(value),
            None => self
                .members
                .push((Cow::Owned(name.to_owned()), Cow::Owned(value))),
        }
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, name: &str) {
        self.members.retain(|(known, _)| known != name);
    }

    /// The names, in order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|(name, _)| name.as_ref())
    }

    /// The object without some members and with another at its end.
    pub(super) fn with(mut self, without: &[&str], name: &str, value: &[u8]) -> Vec<u8> {
        self.members
            .retain(|(known, _)| !without.contains(&known.as_ref()));
        self.set(name, value.to_vec());
        self.write().to_vec()
    }

    /// The object as JSON text.
    pub(super) fn write(&self) -> Bytes {
        let length: usize = self
            .members
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum();
        let mut out = Vec::with_capacity(length + 2);
        out.push(b'{');
        for (position, (name, value)) in self.members.iter().enumerate() {
            if position > 0 {
                out.push(b',');
            }
            write_string(name, &mut out);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
        Bytes::from(out)
    }
}

/// Whether a value says nothing: `null`, `false`, or a string, array or object with nothing in it.
pub(super) fn is_empty(value: &[u8]) -> bool {
    match value {
        b"null" | b"false" | b"\"\"" => true,
        [open @ (b'{' | b'['), ..] => Reader::new(value).enter(*open) == Ok(false),
        _ => false,
    }
}
