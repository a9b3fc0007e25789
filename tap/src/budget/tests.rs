use super::{Budgets, Meter, SpentBudget};
use crate::endpoint::Prices;
use dressage_wire::call::{Call, CallMeta, Usage};
use serde_json::json;
use std::time::Duration;

/// A finished call that the endpoint counted so.
fn counted(prompt_tokens: u64, completion_tokens: u64) -> Call {
    let mut meta: CallMeta = serde_json::from_value(json!({
        "id": "01a22b41-58e3-7000-8382-301e1395df6a", "index": 0, "dialect": "chat_completions", "streamed": true,
        "started_unix_ms": 0, "duration_ms": 0, "end": "complete", "purpose": "agent", "retry_key": "", "sampling": {},
        "level": "text", "flags": [], "changes": [], "request_bytes": 0, "upstream_bytes": 0,
    }))
    .unwrap();
    meta.usage = Some(Usage {
        prompt_tokens,
        completion_tokens,
        ..Usage::default()
    });
    Call {
        meta,
        request: Default::default(),
        response: Default::default(),
        prompt_token_ids: None,
        completions: Vec::new(),
    }
}

#[test]
fn counts_that_no_endpoint_can_mean_spend_the_budget_and_stay_spent() {
    let prices = Prices {
        prompt: 1.0,
        cached_prompt: None,
        completion: 1.0,
    };
    for (budgets, spent) in [
        (
            Budgets {
                prompt_tokens: Some(u64::MAX),
                ..Budgets::default()
            },
            SpentBudget::PromptTokens,
        ),
        (
            Budgets {
                completion_tokens: Some(u64::MAX),
                ..Budgets::default()
            },
            SpentBudget::CompletionTokens,
        ),
        (
            Budgets {
                cost: Some(1e12),
                ..Budgets::default()
            },
            SpentBudget::Cost,
        ),
    ] {
        let mut meter = Meter::new(budgets, Some(prices));
        meter.count(&counted(1, 1));
        assert_eq!(meter.admit(), Ok(()));
        for _ in 0..3 {
            meter.count(&counted(u64::MAX, u64::MAX));
            assert_eq!(meter.admit(), Err(spent));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wall_time_counts_from_the_opening() {
    let budgets = Budgets {
        wall: Some(Duration::from_secs(10)),
        ..Budgets::default()
    };
    let mut meter = Meter::new(budgets, None);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(meter.admit(), Ok(()));
    meter.open();
    tokio::time::advance(Duration::from_millis(9_999)).await;
    // Opened again, it does not begin anew.
    meter.open();
    assert_eq!(meter.admit(), Ok(()));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(meter.admit(), Err(SpentBudget::Wall));
}

#[test]
fn cached_tokens_cost_what_they_cost() {
    let prices = Prices {
        prompt: 2.0,
        cached_prompt: Some(0.5),
        completion: 8.0,
    };
    assert_eq!(
        prices.cost(1_000_000, 400_000, 250_000),
        0.6 * 2.0 + 0.4 * 0.5 + 2.0
    );
    // More cached tokens than there are is a server's mistake.
    assert_eq!(prices.cost(1_000_000, 9_000_000, 0), 0.5);
    let plain = Prices {
        cached_prompt: None,
        ..prices
    };
    assert_eq!(plain.cost(500_000, 400_000, 0), 1.0);
}
