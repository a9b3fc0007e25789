use std::ops::Range;

/// The members that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Choices,
    Usage,
    PromptTokenIds,
    PromptText,
    PromptLogprobs,
    /// A delta or a message.
    Message,
    Logprobs,
    TokenIds,
    FinishReason,
    /// Members that name the reply itself.
    Head,
    Other,
}

/// Where a member is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) name: Name,
    /// Of the quote before its name.
    pub(super) start: usize,
    pub(super) value_start: usize,
    pub(super) value_end: usize,
}

/// Where the members of a text are. Kept from event to event for its memory.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Members of the outermost object.
    pub(super) top: Vec<Part>,
    /// Members of all choices.
    pub(super) parts: Vec<Part>,
    pub(super) choices: Vec<ChoiceLayout>,
    /// End of the outermost object's last member.
    pub(super) members_end: usize,
    /// A delta has a role that is an empty string.
    pub(super) empty_role: bool,
}

/// Where a choice is.
#[derive(Clone, Debug)]
pub(super) struct ChoiceLayout {
    /// Its members, in [`Layout::parts`].
    pub(super) parts: Range<usize>,
    /// It has a delta with nothing in it.
    pub(super) empty: bool,
    /// It has a finish_reason.
    pub(super) finished: bool,
}

impl Part {
    pub(super) fn value(&self) -> Range<usize> {
        self.value_start..self.value_end
    }

    /// Whether the value is something else than null.
    pub(super) fn says(&self, text: &[u8]) -> bool {
        text.get(self.value()) != Some(b"null")
    }
}

impl Layout {
    pub(super) fn parts_of(&self, choice: &ChoiceLayout) -> &[Part] {
        self.parts.get(choice.parts.clone()).unwrap_or_default()
    }

    /// The outermost object's member of that name.
    pub(super) fn top_named(&self, name: Name) -> Option<&Part> {
        self.top.iter().find(|part| part.name == name)
    }
}
