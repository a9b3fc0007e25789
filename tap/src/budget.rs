use crate::endpoint::Prices;
use dressage_wire::call::Call;
use std::time::Duration;
use tokio::time::Instant;

/// When a session stops asking the endpoint. Unset is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    /// Calls sent to the endpoint.
    pub calls: Option<u64>,
    /// Prompt tokens, summed over finished calls.
    pub prompt_tokens: Option<u64>,
    /// Completion tokens, summed over finished calls.
    pub completion_tokens: Option<u64>,
    /// Time since the session was opened.
    pub wall: Option<Duration>,
    /// What finished calls cost by the endpoint's prices, in their currency; nothing is counted where it has none.
    pub cost: Option<f64>,
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
    /// [`Budgets::wall`].
    Wall,
    /// [`Budgets::cost`].
    Cost,
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
            Self::Wall => "The time for this task is spent. Stopping here.",
            Self::Cost => "The budget of cost for this task is spent. Stopping here.",
        }
    }
}

/// What has been spent.
#[derive(Debug)]
pub(crate) struct Meter {
    budgets: Budgets,
    prices: Option<Prices>,
    opened: Option<Instant>,
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    cost: f64,
}

impl Meter {
    pub(crate) fn new(budgets: Budgets, prices: Option<Prices>) -> Self {
        Self {
            budgets,
            prices,
            opened: None,
            calls: 0,
            prompt_tokens: 0,
            completion_tokens: 0,
            cost: 0.0,
        }
    }

    /// Time counts from now on.
    pub(crate) fn open(&mut self) {
        self.opened.get_or_insert_with(Instant::now);
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
        let wall = self.budgets.wall.zip(self.opened);
        if wall.is_some_and(|(budget, opened)| opened.elapsed() >= budget) {
            return Err(SpentBudget::Wall);
        }
        if self.budgets.cost.is_some_and(|budget| self.cost >= budget) {
            return Err(SpentBudget::Cost);
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
        let prompt = usage.prompt_tokens.max(prompt_ids);
        let completion = usage.completion_tokens.max(completion_ids);
        self.prompt_tokens = self.prompt_tokens.saturating_add(prompt);
        self.completion_tokens = self.completion_tokens.saturating_add(completion);
        if let Some(prices) = &self.prices {
            self.cost += prices.cost(prompt, usage.cached_tokens.unwrap_or(0), completion);
        }
    }
}

#[cfg(test)]
mod tests;
