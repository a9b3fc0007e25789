use super::{Budgets, Meter, SpentBudget};
use crate::endpoint::Prices;
use std::time::Duration;

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
