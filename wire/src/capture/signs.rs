use super::RequestFacts;
use crate::call::Purpose;

/// How an agent's own calls are told from other calls that reach its relay. An agent without any signs has no foreign calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSigns {
    /// Header with the agent's id of the conversation, lower case; a call without it is foreign.
    pub session_header: Option<&'static str>,
    /// Header with the conversation that started this one, lower case; a call with it is a sub-agent's.
    pub parent_session_header: Option<&'static str>,
    /// Header with a sub-agent's own id, lower case, where `session_header` names the conversation that started it; a
    /// call with it is a sub-agent's.
    pub subagent_header: Option<&'static str>,
    /// How the `user-agent` of the agent begins; a call with another is foreign.
    pub user_agent_starts_with: Option<&'static str>,
    /// How the system prompt of the agent's own conversation begins, where no header tells sub-agents apart: a call with
    /// another is a sub-agent's. Empty where it does not matter.
    pub own_system_starts_with: &'static [&'static str],
    /// The same for the first user message, where sub-agents share the system prompt.
    pub own_user_starts_with: &'static [&'static str],
    /// Calls the agent makes beside its conversation.
    pub auxiliary: &'static [AuxiliarySign],
}

/// How a call beside the conversation is known: by a header, or by how it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuxiliarySign {
    /// What it is for.
    pub purpose: Purpose,
    /// A header, lower case, and the value it has; any request if unset.
    pub header: Option<(&'static str, &'static str)>,
    /// Whether it may offer tools.
    pub tools: OfferedTools,
    /// How its first system message begins; any if unset.
    pub system_starts_with: Option<&'static str>,
    /// How its first user message begins; any if unset.
    pub user_starts_with: Option<&'static str>,
}

/// Whether a call beside the conversation may offer tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OfferedTools {
    /// It offers none.
    #[default]
    None,
    /// It may.
    Any,
}

impl AuxiliarySign {
    /// A call for `purpose` that offers no tools and whose system prompt begins so.
    #[must_use]
    pub const fn system(purpose: Purpose, start: &'static str) -> Self {
        Self {
            purpose,
            header: None,
            tools: OfferedTools::None,
            system_starts_with: Some(start),
            user_starts_with: None,
        }
    }

    /// The same, whether it offers tools or not.
    #[must_use]
    pub const fn with_any_tools(mut self) -> Self {
        self.tools = OfferedTools::Any;
        self
    }

    /// A call for `purpose` that says so in a header.
    #[must_use]
    pub const fn header(purpose: Purpose, name: &'static str, value: &'static str) -> Self {
        Self {
            purpose,
            header: Some((name, value)),
            tools: OfferedTools::Any,
            system_starts_with: None,
            user_starts_with: None,
        }
    }
}

impl AgentSigns {
    /// OpenCode's, as measured with 1.18.33. Here, since the tap as a program of its own knows them as well as the engine.
    pub const OPENCODE: Self = Self {
        session_header: Some("x-session-id"),
        parent_session_header: Some("x-parent-session-id"),
        subagent_header: None,
        user_agent_starts_with: Some("opencode/"),
        own_system_starts_with: &[],
        own_user_starts_with: &[],
        auxiliary: &[
            AuxiliarySign::system(Purpose::Title, "You are a title generator"),
            AuxiliarySign::system(Purpose::Summary, "You are a context summarization agent."),
        ],
    };

    /// The conversation that a call belongs to, and the one that started that. `header` gives the value of a header by
    /// its lower-case name.
    #[must_use]
    pub fn conversation<'h>(
        &self,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> (Option<&'h str>, Option<&'h str>) {
        let value = |name: Option<&str>| name.and_then(&header);
        let (session, parent) = (value(self.session_header), value(self.parent_session_header));
        match value(self.subagent_header) {
            Some(own) => (Some(own), session),
            None => (session, parent),
        }
    }
}

impl AuxiliarySign {
    /// Whether a request is of this kind. A sign that says nothing fits nothing.
    #[must_use]
    pub fn fits<'h>(&self, facts: &RequestFacts, header: impl Fn(&str) -> Option<&'h str>) -> bool {
        let begins =
            |text: &str, start: Option<&str>| start.is_none_or(|start| text.trim_start().starts_with(start));
        let says_something =
            self.header.is_some() || self.system_starts_with.is_some() || self.user_starts_with.is_some();
        says_something
            && (self.tools == OfferedTools::Any || !facts.tools)
            && self
                .header
                .is_none_or(|(name, value)| header(name) == Some(value))
            && begins(&facts.system_start, self.system_starts_with)
            && begins(&facts.user_start, self.user_starts_with)
    }
}

/// Who made a call, and what for. `header` gives the value of a header by its lower-case name.
#[must_use]
pub fn classify<'h>(
    facts: &RequestFacts,
    signs: &AgentSigns,
    header: impl Fn(&str) -> Option<&'h str>,
) -> Purpose {
    let lacks = |name: Option<&str>| name.is_some_and(|name| header(name).is_none());
    let other_program = signs
        .user_agent_starts_with
        .is_some_and(|start| !header("user-agent").is_some_and(|agent| agent.starts_with(start)));
    if other_program || lacks(signs.session_header) {
        return Purpose::Foreign;
    }
    let marks_subagent = |name: Option<&str>| name.is_some_and(|name| header(name).is_some());
    if marks_subagent(signs.parent_session_header) || marks_subagent(signs.subagent_header) {
        return Purpose::Subagent;
    }
    if let Some(sign) = signs.auxiliary.iter().find(|sign| sign.fits(facts, &header)) {
        return sign.purpose;
    }
    let begins = |text: &str, starts: &[&str]| {
        starts.is_empty() || starts.iter().any(|start| text.trim_start().starts_with(start))
    };
    if begins(&facts.system_start, signs.own_system_starts_with)
        && begins(&facts.user_start, signs.own_user_starts_with)
    {
        Purpose::Agent
    } else {
        Purpose::Subagent
    }
}
