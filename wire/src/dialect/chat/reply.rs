use super::layout::{ChoiceLayout, Layout, Name, Part};
use super::message::Message;
use super::tokens::{Keep, Tokens};
use crate::call::Usage;
use crate::scan::{Reader, ScanError, decode_string, parse_u32_array, parse_u64, sound, string_body};

/// The most choices that are read of a reply.
const MAX_CHOICES: usize = 1024;

/// What is taken of a reply, from its one body or from all its events.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// Ids of the prompt, from wherever they were first.
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    /// By arrival; [`Choice::index`] says which.
    pub(super) choices: Vec<Choice>,
    /// The last count.
    pub(super) usage: Option<Usage>,
    /// Members of the outermost object that are not captured, the last that was not null, in order of arrival.
    pub(super) members: Vec<RawMember>,
    /// What the reply says went wrong.
    pub(super) error: Option<String>,
    /// Something of it could not be read.
    pub(super) incomplete: bool,
}

/// A member as it came.
#[derive(Debug)]
pub(super) struct RawMember {
    /// The name without its quotes.
    pub(super) key: Vec<u8>,
    /// The value.
    pub(super) value: Vec<u8>,
}

/// One choice of a reply.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) index: u32,
    pub(super) tokens: Tokens,
    /// Put together from deltas; empty for a whole reply.
    pub(super) message: Message,
    /// The string's body.
    pub(super) finish_reason: Option<Vec<u8>>,
    pub(super) stop_reason: Option<Vec<u8>>,
    /// Members that are not captured.
    pub(super) members: Vec<RawMember>,
}

/// Whether messages come whole or in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Delta,
}

impl Reply {
    /// Takes what is captured from one text, and notes where its members are. `kept` says how much.
    pub(super) fn read(
        &mut self,
        text: &[u8],
        form: Form,
        kept: Keep,
        layout: &mut Layout,
    ) -> Result<(), ScanError> {
        layout.top.clear();
        layout.parts.clear();
        layout.choices.clear();
        layout.empty_role = false;
        let mut reader = Reader::new(text);
        let mut more = reader.enter(b'{')?;
        while more {
            reader.peek();
            let start = reader.at();
            let key = reader.key()?;
            let key = reader.slice(key);
            reader.peek();
            let value_start = reader.at();
            let name = match key {
                b"choices" => {
                    self.read_choices(&mut reader, form, kept, layout)?;
                    Name::Choices
                }
                b"usage" => {
                    let value = reader.skip()?;
                    self.read_usage(reader.slice(value));
                    Name::Usage
                }
                b"prompt_token_ids" => {
                    self.read_prompt(&mut reader)?;
                    Name::PromptTokenIds
                }
                b"prompt_logprobs" => {
                    reader.skip()?;
                    Name::PromptLogprobs
                }
                b"prompt_text" => {
                    reader.skip()?;
                    Name::PromptText
                }
                b"error" => {
                    let value = reader.skip()?;
                    self.read_error(reader.slice(value));
                    Name::Other
                }
                _ => {
                    let value = reader.skip()?;
                    let value = reader.slice(value);
                    if key == b"object" && value == b"\"error\"" {
                        self.read_error(text);
                    }
                    keep(&mut self.members, key, value);
                    match key {
                        b"id" | b"object" | b"created" | b"model" => Name::Head,
                        _ => Name::Other,
                    }
                }
            };
            layout.members_end = reader.at();
            layout.top.push(Part {
                name,
                start,
                value_start,
                value_end: reader.at(),
            });
            more = reader.next(b'}')?;
        }
        reader.end()
    }

    fn read_choices(
        &mut self,
        reader: &mut Reader<'_>,
        form: Form,
        kept: Keep,
        layout: &mut Layout,
    ) -> Result<(), ScanError> {
        if reader.peek() == Some(b'n') {
            return reader.skip().map(|_| ());
        }
        let mut more = reader.enter(b'[')?;
        while more {
            if reader.peek() == Some(b'n') {
                reader.skip()?;
            } else {
                self.read_choice(reader, form, kept, layout)?;
            }
            more = reader.next(b']')?;
        }
        Ok(())
    }

    fn read_choice(
        &mut self,
        reader: &mut Reader<'_>,
        form: Form,
        kept: Keep,
        layout: &mut Layout,
    ) -> Result<(), ScanError> {
        let index = index_of(reader.clone())?;
        let first_part = layout.parts.len();
        let (mut empty, mut finished) = (false, false);
        let known = self.choices.iter().position(|choice| choice.index == index);
        let position = match known {
            Some(position) => position,
            None if self.choices.len() < MAX_CHOICES => {
                self.choices.push(Choice {
                    index,
                    ..Choice::default()
                });
                self.choices.len() - 1
            }
            None => {
                self.incomplete = true;
                0
            }
        };
        let mut more = reader.enter(b'{')?;
        while more {
            reader.peek();
            let start = reader.at();
            let key = reader.key()?;
            let key = reader.slice(key);
            reader.peek();
            let value_start = reader.at();
            // There is one at that position; were there none, the member would be passed over.
            let Some(choice) = self.choices.get_mut(position) else {
                break;
            };
            let name = match key {
                b"delta" if form == Form::Delta => {
                    empty = choice.message.add(reader, &mut layout.empty_role)?;
                    Name::Message
                }
                b"message" | b"delta" => {
                    reader.skip()?;
                    Name::Message
                }
                b"logprobs" => {
                    choice.tokens.read_logprobs(reader, kept)?;
                    Name::Logprobs
                }
                b"token_ids" => {
                    choice.tokens.read_ids(reader)?;
                    Name::TokenIds
                }
                b"prompt_token_ids" => {
                    self.read_prompt(reader)?;
                    Name::PromptTokenIds
                }
                b"finish_reason" => {
                    let value = reader.skip()?;
                    if let Some(body) = string_body(reader.slice(value)) {
                        choice.finish_reason = Some(body.to_vec());
                        finished = true;
                    }
                    Name::FinishReason
                }
                b"stop_reason" => {
                    let value = reader.skip()?;
                    choice.stop_reason = Some(reader.slice(value).to_vec());
                    Name::Other
                }
                b"index" => {
                    reader.skip()?;
                    Name::Other
                }
                _ => {
                    let value = reader.skip()?;
                    keep(&mut choice.members, key, reader.slice(value));
                    Name::Other
                }
            };
            layout.parts.push(Part {
                name,
                start,
                value_start,
                value_end: reader.at(),
            });
            more = reader.next(b'}')?;
        }
        layout.choices.push(ChoiceLayout {
            parts: first_part..layout.parts.len(),
            empty,
            finished,
        });
        Ok(())
    }

    fn read_prompt(&mut self, reader: &mut Reader<'_>) -> Result<(), ScanError> {
        let mut ids = Vec::new();
        let there = parse_u32_array(reader, &mut ids)?;
        if there && !ids.is_empty() && self.prompt_token_ids.is_none() {
            self.prompt_token_ids = Some(ids);
        }
        Ok(())
    }

    fn read_usage(&mut self, value: &[u8]) {
        let count = |object: &[u8], name: &str| member(object, name).and_then(parse_u64);
        if let Some(completion_tokens) = count(value, "completion_tokens") {
            let details = member(value, "completion_tokens_details");
            let prompt_details = member(value, "prompt_tokens_details");
            self.usage = Some(Usage {
                prompt_tokens: count(value, "prompt_tokens").unwrap_or(0),
                completion_tokens,
                reasoning_tokens: details.and_then(|details| count(details, "reasoning_tokens")),
                cached_tokens: prompt_details.and_then(|details| count(details, "cached_tokens")),
            });
            keep(&mut self.members, b"usage", value);
        }
    }

    fn read_error(&mut self, value: &[u8]) {
        if value != b"null" && self.error.is_none() {
            let message = member(value, "message").unwrap_or(value);
            let message = string_body(message).unwrap_or(message);
            self.error = Some(decode_string(message).into_owned());
            keep(&mut self.members, b"error", value);
        }
    }

    /// Replaces each value that is no JSON by null.
    pub(super) fn scrub(&mut self) {
        for choice in &mut self.choices {
            choice.message.scrub();
            choice.stop_reason.iter_mut().for_each(scrub);
            choice
                .members
                .iter_mut()
                .for_each(|member| scrub(&mut member.value));
        }
        self.members
            .iter_mut()
            .for_each(|member| scrub(&mut member.value));
    }

    /// The model that answered.
    pub(super) fn model(&self) -> Option<String> {
        let model = self.members.iter().find(|member| member.key == b"model")?;
        string_body(&model.value).map(|model| decode_string(model).into_owned())
    }
}

/// Replaces a value that is no JSON by null.
pub(super) fn scrub(value: &mut Vec<u8>) {
    if sound(value).is_none() {
        *value = b"null".to_vec();
    }
}

/// `choices[].index` of the object that comes next; 0 where it has none.
fn index_of(mut reader: Reader<'_>) -> Result<u32, ScanError> {
    let mut more = reader.enter(b'{')?;
    while more {
        let key = reader.key()?;
        let value = reader.skip()?;
        if reader.slice(key) == b"index" {
            let index = parse_u64(reader.slice(value)).and_then(|index| u32::try_from(index).ok());
            return Ok(index.unwrap_or(0));
        }
        more = reader.next(b'}')?;
    }
    Ok(0)
}

/// Keeps a member for the document: the last value that was not null.
fn keep(members: &mut Vec<RawMember>, key: &[u8], value: &[u8]) {
    match members.iter_mut().find(|member| member.key == key) {
        Some(known) if known.value == value || value == b"null" => {}
        Some(known) => {
            known.value.clear();
            known.value.extend_from_slice(value);
        }
        None => members.push(RawMember {
            key: key.to_vec(),
            value: value.to_vec(),
        }),
    }
}

/// The value of a member of an object; `None` for any other value.
pub(super) fn member<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut reader = Reader::new(object);
    let mut more = reader.enter(b'{').ok()?;
    while more {
        let key = reader.key().ok()?;
        let value = reader.skip().ok()?;
        if reader.slice(key) == name.as_bytes() {
            return Some(reader.slice(value));
        }
        more = reader.next(b'}').ok()?;
    }
    None
}
