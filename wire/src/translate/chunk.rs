use crate::scan::{Reader, ScanError, parse_u64, string_body};
use std::borrow::Cow;

/// What a text of a chat completion says, an event or the whole: of its first choice only, since more are never asked
/// for. Strings are given as what stands between their quotes.
#[derive(Debug, Default)]
pub(crate) struct Chunk<'a> {
    pub(crate) id: Option<&'a [u8]>,
    pub(crate) model: Option<&'a [u8]>,
    pub(crate) created: Option<u64>,
    /// It has a choice, though that may say nothing.
    pub(crate) has_choice: bool,
    pub(crate) reasoning: Cow<'a, [u8]>,
    pub(crate) content: Cow<'a, [u8]>,
    pub(crate) refusal: Cow<'a, [u8]>,
    pub(crate) calls: Vec<Fragment<'a>>,
    pub(crate) finish_reason: Option<&'a [u8]>,
    /// The text that ended the turn.
    pub(crate) stop_text: Option<&'a [u8]>,
    pub(crate) usage: Option<Counts>,
    /// An error in the place of a reply; the value.
    pub(crate) error: Option<&'a [u8]>,
}

/// A piece of a call.
#[derive(Debug, Default)]
pub(crate) struct Fragment<'a> {
    pub(crate) index: Option<u64>,
    pub(crate) id: &'a [u8],
    pub(crate) name: &'a [u8],
    pub(crate) arguments: Cow<'a, [u8]>,
}

/// What the endpoint counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) prompt: u64,
    /// Of these, taken from a cache.
    pub(crate) cached: u64,
    pub(crate) completion: u64,
    /// Of these, reasoning.
    pub(crate) reasoning: u64,
}

impl<'a> Chunk<'a> {
    /// Reads a text.
    pub(crate) fn read(text: &'a [u8]) -> Result<Self, ScanError> {
        let mut chunk = Self::default();
        let mut reader = Reader::new(text);
        let mut error_object = false;
        each(&mut reader, |key, reader| {
            match key {
                b"id" => chunk.id = string_body(value(reader)?),
                b"model" => chunk.model = string_body(value(reader)?),
                b"created" => chunk.created = parse_u64(value(reader)?),
                b"choices" if reader.peek() == Some(b'[') => {
                    let mut more = reader.enter(b'[')?;
                    while more {
                        let choice = value(reader)?;
                        if choice.starts_with(b"{") {
                            chunk.read_choice(choice)?;
                        }
                        more = reader.next(b']')?;
                    }
                }
                b"usage" => chunk.usage = Counts::read(value(reader)?)?.or(chunk.usage),
                b"error" => chunk.error = Some(value(reader)?).filter(|error| *error != b"null"),
                b"object" => error_object = value(reader)? == b"\"error\"",
                _ => {
                    reader.skip()?;
                }
            }
            Ok(())
        })?;
        reader.end()?;
        if error_object {
            chunk.error = chunk.error.or(Some(text));
        }
        Ok(chunk)
    }

    fn read_choice(&mut self, choice: &'a [u8]) -> Result<(), ScanError> {
        let (mut index, mut message, mut finish, mut stop) = (0, None, None, None);
        each(&mut Reader::new(choice), |key, reader| {
            let value = value(reader)?;
            match key {
                b"index" => index = parse_u64(value).unwrap_or(0),
                b"delta" | b"message" => message = Some(value).filter(|value| value.starts_with(b"{")),
                b"finish_reason" => finish = string_body(value),
                b"stop_reason" => stop = string_body(value),
                _ => {}
            }
            Ok(())
        })?;
        if index > 0 {
            return Ok(());
        }
        self.has_choice = true;
        self.finish_reason = finish;
        self.stop_text = stop;
        message.map_or(Ok(()), |message| self.read_message(message))
    }

    fn read_message(&mut self, message: &'a [u8]) -> Result<(), ScanError> {
        // Servers have two names for it, and some send both.
        let mut other_reasoning = Cow::Borrowed(&b""[..]);
        each(&mut Reader::new(message), |key, reader| {
            let value = value(reader)?;
            match key {
                b"content" => self.content = text(value)?,
                b"reasoning_content" => self.reasoning = text(value)?,
                b"reasoning" => other_reasoning = text(value)?,
                b"refusal" => self.refusal = text(value)?,
                b"tool_calls" if value.starts_with(b"[") => {
                    let mut calls = Reader::new(value);
                    let mut more = calls.enter(b'[')?;
                    while more {
                        let call = calls.skip()?;
                        self.calls.push(Fragment::read(calls.slice(call))?);
                        more = calls.next(b']')?;
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        if self.reasoning.is_empty() {
            self.reasoning = other_reasoning;
        }
        Ok(())
    }
}

impl<'a> Fragment<'a> {
    fn read(call: &'a [u8]) -> Result<Self, ScanError> {
        let mut fragment = Self::default();
        if !call.starts_with(b"{") {
            return Ok(fragment);
        }
        let mut function = None;
        each(&mut Reader::new(call), |key, reader| {
            let value = value(reader)?;
            match key {
                b"index" => fragment.index = parse_u64(value),
                b"id" => fragment.id = string_body(value).unwrap_or_default(),
                b"function" => function = Some(value).filter(|value| value.starts_with(b"{")),
                _ => {}
            }
            Ok(())
        })?;
        let Some(function) = function else {
            return Ok(fragment);
        };
        each(&mut Reader::new(function), |key, reader| {
            let value = value(reader)?;
            match key {
                b"name" => fragment.name = string_body(value).unwrap_or_default(),
                b"arguments" if value.starts_with(b"{") => fragment.arguments = Cow::Owned(as_body(value)),
                b"arguments" => fragment.arguments = string_body(value).unwrap_or_default().into(),
                _ => {}
            }
            Ok(())
        })?;
        Ok(fragment)
    }
}

impl Counts {
    /// Tokens of prompt and completion together.
    pub(crate) fn total(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }

    fn read(usage: &[u8]) -> Result<Option<Self>, ScanError> {
        if !usage.starts_with(b"{") {
            return Ok(None);
        }
        let mut counts = Self::default();
        each(&mut Reader::new(usage), |key, reader| {
            let value = value(reader)?;
            match key {
                b"prompt_tokens" => counts.prompt = parse_u64(value).unwrap_or(0),
                b"completion_tokens" => counts.completion = parse_u64(value).unwrap_or(0),
                b"prompt_tokens_details" => counts.cached = nested(value, b"cached_tokens")?,
                b"completion_tokens_details" => counts.reasoning = nested(value, b"reasoning_tokens")?,
                _ => {}
            }
            Ok(())
        })?;
        // A part is not more than the whole, whatever the endpoint says.
        counts.cached = counts.cached.min(counts.prompt);
        counts.reasoning = counts.reasoning.min(counts.completion);
        Ok(Some(counts))
    }
}

/// A number in an object; 0 where either is not there.
fn nested(object: &[u8], name: &[u8]) -> Result<u64, ScanError> {
    let mut number = 0;
    if object.starts_with(b"{") {
        each(&mut Reader::new(object), |key, reader| {
            let value = value(reader)?;
            if key == name {
                number = parse_u64(value).unwrap_or(0);
            }
            Ok(())
        })?;
    }
    Ok(number)
}

/// Goes through the members of the object that comes next. `take` is to consume the value of each.
fn each<'a>(
    reader: &mut Reader<'a>,
    mut take: impl FnMut(&'a [u8], &mut Reader<'a>) -> Result<(), ScanError>,
) -> Result<(), ScanError> {
    let mut more = reader.enter(b'{')?;
    while more {
        let key = reader.key()?;
        let key = reader.slice(key);
        take(key, reader)?;
        more = reader.next(b'}')?;
    }
    Ok(())
}

fn value<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], ScanError> {
    let value = reader.skip()?;
    Ok(reader.slice(value))
}

/// A text that is a string, or a list of parts of which some are texts.
fn text(value: &[u8]) -> Result<Cow<'_, [u8]>, ScanError> {
    if let Some(body) = string_body(value) {
        return Ok(body.into());
    }
    let mut joined = Vec::new();
    if value.starts_with(b"[") {
        let mut reader = Reader::new(value);
        let mut more = reader.enter(b'[')?;
        while more {
            let part = reader.skip()?;
            let part = reader.slice(part);
            if part.starts_with(b"{") {
                each(&mut Reader::new(part), |key, reader| {
                    let value = self::value(reader)?;
                    if key == b"text" {
                        joined.extend_from_slice(string_body(value).unwrap_or_default());
                    }
                    Ok(())
                })?;
            }
            more = reader.next(b']')?;
        }
    }
    Ok(joined.into())
}

/// A text as what would stand between the quotes of a string that says it.
fn as_body(text: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::new();
    crate::scan::write_string(&String::from_utf8_lossy(text), &mut quoted);
    string_body(&quoted).unwrap_or_default().to_vec()
}
