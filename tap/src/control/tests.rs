use super::{CallLimits, EndpointControl, MINUTE, Usage};
use std::time::Duration;
use tokio::time::Instant;

fn usage(paused: bool, in_flight: usize, waiting: usize) -> Usage {
    Usage {
        paused,
        in_flight,
        waiting,
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_new_calls_and_lets_those_in_flight_finish() {
    let control = EndpointControl::new(CallLimits::default());
    let first = control.enter().await;
    control.pause();
    let second = tokio::spawn({
        let control = control.clone();
        async move { control.enter().await }
    });
    tokio::task::yield_now().await;
    assert_eq!(control.usage(), usage(true, 1, 1));

    let mut drained = std::pin::pin!(control.drained());
    let early = tokio::time::timeout(Duration::from_secs(60), drained.as_mut()).await;
    assert!(early.is_err(), "drained while a call is in flight");
    drop(first);
    drained.await;
    assert_eq!(control.usage(), usage(true, 0, 1));

    control.resume();
    let second = second.await.unwrap();
    assert_eq!(control.usage(), usage(false, 1, 0));
    drop(second);
    assert_eq!(control.usage(), usage(false, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn no_more_calls_are_in_flight_than_may_be_at_once() {
    let control = EndpointControl::new(CallLimits {
        at_once: Some(2),
        per_minute: None,
    });
    let first = control.enter().await;
    let _second = control.enter().await;
    let third = tokio::time::timeout(Duration::from_secs(3600), control.enter()).await;
    assert!(third.is_err());
    // One that gave up waiting holds nothing.
    assert_eq!(control.usage(), usage(false, 2, 0));
    drop(first);
    let _third = control.enter().await;
    assert_eq!(control.usage(), usage(false, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn no_minute_has_more_calls_than_allowed() {
    let control = EndpointControl::new(CallLimits {
        at_once: None,
        per_minute: Some(3),
    });
    let start = Instant::now();
    let mut begun = Vec::new();
    for _ in 0..7 {
        drop(control.enter().await);
        begun.push(start.elapsed());
    }
    let minute = |n: u32| MINUTE * n;
    let expected = [0, 0, 0, 1, 1, 1, 2].map(minute);
    for (begun, expected) in begun.iter().zip(expected) {
        let late = begun.saturating_sub(expected);
        assert!(
            *begun >= expected && late < Duration::from_millis(10),
            "{begun:?} for {expected:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_meets_a_pause_keeps_its_place_in_the_minute() {
    let control = EndpointControl::new(CallLimits {
        at_once: None,
        per_minute: Some(1),
    });
    let start = Instant::now();
    drop(control.enter().await);
    let second = tokio::spawn({
        let control = control.clone();
        async move { drop(control.enter().await) }
    });
    tokio::task::yield_now().await;
    // Over the moment at which there is room again.
    control.pause();
    tokio::time::sleep(MINUTE + Duration::from_secs(1)).await;
    assert_eq!(control.usage(), usage(true, 0, 1));
    control.resume();
    second.await.unwrap();
    let late = start.elapsed() - MINUTE - Duration::from_secs(1);
    assert!(late < Duration::from_millis(10), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn calls_are_sent_in_the_order_they_came() {
    let control = EndpointControl::new(CallLimits {
        at_once: Some(1),
        per_minute: None,
    });
    control.pause();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..20 {
        let (control, sender) = (control.clone(), sender.clone());
        tokio::spawn(async move {
            let _pass = control.enter().await;
            let _ = sender.send(number);
        });
        tokio::task::yield_now().await;
    }
    drop(sender);
    control.resume();
    let mut seen = Vec::new();
    while let Some(number) = order.recv().await {
        seen.push(number);
    }
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
}
