use dressage_wire::call::Call;

/// When a session stops asking the endpoint. Unset is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Calls sent to the endpoint.
    pub calls: Option<u64>,
    /// Prompt tokens, summed over finished calls.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens, summed over finished calls.
    pub completion_tokens: Option<u64>,
}

/// The budget that is spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpentBudget {
    /// [`Budgets::calls`].
    Calls,
    /// [`Budgets::prompt_tokens`].
    PromptTokens,
    /// [`Budgets::completion_tokens`].
    CompletionTokens,
}

impl SpentBudget {
    /// What the agent is told, as its model's last words.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Self::Calls => "The budget of model calls for this task is spent. Stopping here.",
            Self::PromptTokens => "The budget of prompt tokens for this task is spent. Stopping here.",
            Self::CompletionTokens => {
                "The budget of completion tokens for this task is spent. Stopping here."
            }
        }
    }
}

/// What has been spent.
#[derive(Debug)]
pub(crate) struct Meter {
    budgets: Budgets,
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
}

impl Meter {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self {
            budgets,
            calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
        }
    }

    /// Counts a call that is about to be sent, if every budget bears it.
    pub(crate) fn admit(&mut self) -> Result<(), SpentBudget> {
        let spent = |budget: Option<u64>, used: u64| budget.is_some_and(|budget| used >= budget);
        if spent(self.budgets.calls, self.calls) {
            return Err(SpentBudget::Calls);
        }
        if spent(self.budgets.prompt_tokens, self.prompt_tokens) {
            return Err(SpentBudget::PromptTokens);
        }
        if spent(self.budgets.completion_tokens, self.completion_tokens) {
            return Err(SpentBudget::CompletionTokens);
        }
        self.calls += 1;
        Ok(())
    }

    /// Counts the tokens of a finished call: as the endpoint counted, or ids where it did not.
    pub(crate) fn count(&mut self, call: &Call) {
        let prompt_ids = call.prompt_token_ids.as_ref().map_or(0, |ids| ids.len() as u64);
        let completion_ids = call
            .completions
            .iter()
            .map(|one| one.token_ids.len() as u64)
            .sum();
        let usage = call.meta.usage.unwrap_or_default();
        self.prompt_tokens += usage.prompt_tokens.max(prompt_ids);
        self.completion_tokens += usage.completion_tokens.max(completion_ids);
    }
}
