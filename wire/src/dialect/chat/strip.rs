use super::layout::{ChoiceLayout, Layout, Name, Part};
use crate::capture::{Ask, RequestFacts};
use crate::scan::{Cutter, Edits, Reader, ScanError, string_body};

/// Members that hold reasoning, in the order servers came up with them.
const REASONING: [&[u8]; 3] = [b"reasoning_content", b"reasoning", b"reasoning_details"];

/// What a server sends in the place of captured members when nobody asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// Not seen yet.
    #[default]
    Unknown,
    /// The members, as `null`; and no event for a token that shows nothing (vLLM).
    Nulls,
    /// No members, but every event (llama.cpp, SGLang).
    Absent,
}

/// What the agent asked for decides what it sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Log-probabilities stay, with so many alternatives.
    logprobs: Option<u32>,
    /// More alternatives were asked for than that.
    trimmed: bool,
    token_ids: bool,
    prompt_logprobs: bool,
    usage: bool,
    reasoning: bool,
}

impl View {
    /// The agent's.
    pub(super) fn of_agent(facts: &RequestFacts) -> Self {
        // Where the endpoint was not asked, what it sends is its own.
        let sent_unasked = facts.ask == Ask::Nothing && facts.top_logprobs_asked.is_none();
        let logprobs = if sent_unasked {
            Some(u32::MAX)
        } else {
            facts.top_logprobs_asked
        };
        Self {
            logprobs,
            trimmed: logprobs.is_some_and(|asked| asked < facts.top_logprobs_sent),
            token_ids: facts.token_ids_asked || facts.ask != Ask::Tokens,
            prompt_logprobs: facts.prompt_logprobs_asked,
            usage: facts.usage_asked,
            reasoning: !facts.reasoning_hidden,
        }
    }

    /// That of the document which is kept: nothing captured, everything else.
    pub(super) fn of_document() -> Self {
        Self {
            logprobs: None,
            trimmed: false,
            token_ids: false,
            prompt_logprobs: false,
            usage: true,
            reasoning: true,
        }
    }

    /// Whether the agent gets the endpoint's count.
    pub(super) fn usage(&self) -> bool {
        self.usage
    }
}

/// Decides what goes from each text of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip {
    view: View,
    shape: Shape,
    /// A choice had log-probabilities that were `null`, so that is how this server says "none".
    null_logprobs: bool,
}

/// What becomes of a member.
enum Fate {
    Keep,
    Null,
    Cut,
}

impl Strip {
    pub(super) fn new(view: View) -> Self {
        Self {
            view,
            shape: Shape::Unknown,
            null_logprobs: false,
        }
    }

    /// The same for another view.
    pub(super) fn with_view(self, view: View) -> Self {
        Self { view, ..self }
    }

    /// Looks at a text before it is edited.
    pub(super) fn look(&mut self, text: &[u8], layout: &Layout) {
        if self.shape == Shape::Unknown {
            let named = |name| move |part: &&Part| part.name == name;
            let in_choice = layout.parts.iter().any(|part| part.name == Name::PromptTokenIds);
            let outermost = layout
                .top_named(Name::PromptTokenIds)
                .or(layout.top_named(Name::PromptText));
            let ids = layout.parts.iter().find(named(Name::TokenIds));
            self.shape = match (in_choice, outermost.or(ids)) {
                (true, _) => Shape::Absent,
                (false, Some(_)) => Shape::Nulls,
                (false, None) => Shape::Unknown,
            };
        }
        let is_null = |part: &Part| part.name == Name::Logprobs && !part.says(text);
        self.null_logprobs = self.null_logprobs || layout.parts.iter().any(is_null);
    }

    /// Whether an event is there only because of what was asked for beyond the agent's wish.
    pub(super) fn drops(&self, text: &[u8], layout: &Layout) -> bool {
        let nothing = self.shape == Shape::Nulls && self.view.logprobs.is_none() && !self.view.token_ids;
        let shows_nothing = |choice: &ChoiceLayout| {
            let unseen =
                nothing && choice.empty || !self.view.reasoning && self.only_reasoning(text, layout, choice);
            unseen && !choice.finished
        };
        !layout.choices.is_empty() && layout.choices.iter().all(shows_nothing)
    }

    /// Notes what is to be cut from a text.
    pub(super) fn edit(&self, text: &[u8], layout: &Layout, edits: &mut Edits) -> Result<(), ScanError> {
        let mut cutter = Cutter::default();
        for part in &layout.top {
            let fate = match part.name {
                Name::PromptTokenIds if !self.view.token_ids => self.captured(part, text),
                Name::PromptLogprobs if !self.view.prompt_logprobs => self.captured(part, text),
                Name::Usage if !self.view.usage => Fate::Cut,
                _ => Fate::Keep,
            };
            apply(&fate, part, &mut cutter, edits);
            if part.name == Name::Choices {
                if !part.says(text) {
                    edits.replace(part.value(), &b"[]"[..]);
                }
                for choice in &layout.choices {
                    self.edit_choice(text, layout, choice, edits)?;
                }
            }
        }
        cutter.close(edits);
        Ok(())
    }

    fn edit_choice(
        &self,
        text: &[u8],
        layout: &Layout,
        choice: &ChoiceLayout,
        edits: &mut Edits,
    ) -> Result<(), ScanError> {
        let mut cutter = Cutter::default();
        for part in layout.parts_of(choice) {
            let fate = match part.name {
                Name::Logprobs if self.view.logprobs.is_none() => match part.says(text) {
                    true if self.shape == Shape::Nulls || self.null_logprobs => Fate::Null,
                    true => Fate::Cut,
                    false => Fate::Keep,
                },
                Name::TokenIds | Name::PromptTokenIds if !self.view.token_ids => self.captured(part, text),
                _ => Fate::Keep,
            };
            apply(&fate, part, &mut cutter, edits);
            if part.name == Name::Message && (!self.view.reasoning || layout.empty_role) {
                self.edit_message(text, part, edits)?;
            }
            if let (Name::Logprobs, true, Some(most)) = (part.name, self.view.trimmed, self.view.logprobs) {
                trim(Reader::starting_at(text, part.value_start), most, edits)?;
            }
        }
        cutter.close(edits);
        Ok(())
    }

    fn captured(&self, part: &Part, text: &[u8]) -> Fate {
        match (part.says(text), self.shape) {
            (false, _) => Fate::Keep,
            (true, Shape::Nulls) => Fate::Null,
            (true, Shape::Absent | Shape::Unknown) => Fate::Cut,
        }
    }

    /// Takes reasoning out of a message or delta, and a role that names nobody, which agents refuse.
    fn edit_message(&self, text: &[u8], part: &Part, edits: &mut Edits) -> Result<(), ScanError> {
        let mut reader = Reader::starting_at(text, part.value_start);
        if reader.peek() != Some(b'{') {
            return Ok(());
        }
        let mut cutter = Cutter::default();
        let mut more = reader.enter(b'{')?;
        while more {
            reader.peek();
            let start = reader.at();
            let key = reader.key()?;
            let value = reader.skip()?;
            let says = reader.slice(value.clone()) != b"null";
            let part = Part {
                name: Name::Other,
                start,
                value_start: value.start,
                value_end: value.end,
            };
            let fate = match reader.slice(key) {
                key if !self.view.reasoning && REASONING.contains(&key) => match self.shape {
                    Shape::Nulls if says => Fate::Null,
                    Shape::Nulls => Fate::Keep,
                    Shape::Absent | Shape::Unknown => Fate::Cut,
                },
                b"role" if string_body(reader.slice(value)) == Some(b"") => Fate::Cut,
                _ => Fate::Keep,
            };
            apply(&fate, &part, &mut cutter, edits);
            more = reader.next(b'}')?;
        }
        cutter.close(edits);
        Ok(())
    }

    /// Whether a choice says nothing but reasoning.
    fn only_reasoning(&self, text: &[u8], layout: &Layout, choice: &ChoiceLayout) -> bool {
        let message = layout
            .parts_of(choice)
            .iter()
            .find(|part| part.name == Name::Message);
        let members = message.and_then(|part| crate::scan::members(text.get(part.value())?).ok());
        let Some(members) = members.filter(|members| !members.is_empty()) else {
            return false;
        };
        let Some(object) = message.and_then(|part| text.get(part.value())) else {
            return false;
        };
        members.iter().all(|member| {
            object
                .get(member.key.clone())
                .is_some_and(|key| REASONING.contains(&key))
        })
    }
}

fn apply(fate: &Fate, part: &Part, cutter: &mut Cutter, edits: &mut Edits) {
    match fate {
        Fate::Cut => cutter.cut(part.start, part.value_end, edits),
        Fate::Keep => cutter.keep(part.start, part.value_end, edits),
        Fate::Null => {
            cutter.keep(part.start, part.value_end, edits);
            edits.replace(part.value(), &b"null"[..]);
        }
    }
}

/// Cuts the alternatives beyond the first `most` from each entry of the `logprobs` that come next.
fn trim(mut reader: Reader<'_>, most: u32, edits: &mut Edits) -> Result<(), ScanError> {
    if reader.peek() != Some(b'{') {
        return Ok(());
    }
    let mut more = reader.enter(b'{')?;
    while more {
        reader.key()?;
        if reader.peek() == Some(b'[') {
            let mut more_entries = reader.enter(b'[')?;
            while more_entries {
                trim_entry(&mut reader, most, edits)?;
                more_entries = reader.next(b']')?;
            }
        } else {
            reader.skip()?;
        }
        more = reader.next(b'}')?;
    }
    Ok(())
}

fn trim_entry(reader: &mut Reader<'_>, most: u32, edits: &mut Edits) -> Result<(), ScanError> {
    if reader.peek() != Some(b'{') {
        return reader.skip().map(|_| ());
    }
    let mut more = reader.enter(b'{')?;
    while more {
        let key = reader.key()?;
        if reader.slice(key) == b"top_logprobs" && reader.peek() == Some(b'[') {
            let (mut count, mut cut_from) = (0, reader.at() + 1);
            let mut more_items = reader.enter(b'[')?;
            while more_items {
                let item = reader.skip()?;
                count += 1;
                if count <= most {
                    cut_from = item.end;
                }
                if count > most {
                    edits.cut(cut_from..item.end);
                    cut_from = item.end;
                }
                more_items = reader.next(b']')?;
            }
        } else {
            reader.skip()?;
        }
        more = reader.next(b'}')?;
    }
    Ok(())
}
