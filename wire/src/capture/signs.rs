use super::RequestFacts;
use crate::call::Purpose;

/// How an agent's own calls are told from other calls that reach its relay. An agent without any signs has no foreign calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSigns {
    /// Header with the agent's id of the conversation, lower case; a call without it is foreign.
    pub session_header: Option<&'static str>,
    /// Header with the conversation that started this one, lower case; a call with it is a sub-agent's.
    pub parent_session_header: Option<&'static str>,
    /// How the `user-agent` of the agent begins; a call with another is foreign.
    pub user_agent_starts_with: Option<&'static str>,
    /// Calls the agent makes beside its conversation.
    pub auxiliary: &'static [AuxiliarySign],
}

/// How a call beside the conversation is known: it offers no tools, and begins as said here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuxiliarySign {
    /// What it is for.
    pub purpose: Purpose,
    /// How its first system message begins; any if unset.
    pub system_starts_with: Option<&'static str>,
    /// How its first user message begins; any if unset.
    pub user_starts_with: Option<&'static str>,
}

impl AgentSigns {
    /// OpenCode's, as measured with 1.18.33. Here, since the tap as a program of its own knows them as well as the engine.
    pub const OPENCODE: Self = Self {
        session_header: Some("x-session-id"),
        parent_session_header: Some("x-parent-session-id"),
        user_agent_starts_with: Some("opencode/"),
        auxiliary: &[
            AuxiliarySign {
                purpose: Purpose::Title,
                system_starts_with: Some("You are a title generator"),
                user_starts_with: None,
            },
            AuxiliarySign {
                purpose: Purpose::Summary,
                system_starts_with: Some("You are a context summarization agent."),
                user_starts_with: None,
            },
        ],
    };
}

impl AuxiliarySign {
    /// Whether a request is of this kind. A sign without any text fits nothing.
    #[must_use]
    pub fn fits(&self, facts: &RequestFacts) -> bool {
        let begins = |text: &str, start: Option<&str>| start.is_none_or(|start| text.starts_with(start));
        let says_something = self.system_starts_with.is_some() || self.user_starts_with.is_some();
        says_something
            && !facts.tools
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
    if signs
        .parent_session_header
        .is_some_and(|name| header(name).is_some())
    {
        return Purpose::Subagent;
    }
    let auxiliary = signs.auxiliary.iter().find(|sign| sign.fits(facts));
    auxiliary.map_or(Purpose::Agent, |sign| sign.purpose)
}
