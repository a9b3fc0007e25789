use crate::world::{Done, World, WorldPlan, task};
use dressage_testkit::closed::ClosedPort;
use dressage_testkit::fault::{Cut, Fault, FaultPlan};
use dressage_wire::fault::{Ended, FaultOwner};

async fn with(faults: FaultPlan) -> Done {
    World::planned(WorldPlan {
        faults,
        ..WorldPlan::default()
    })
    .await
    .run(task(&["true"]))
    .await
}

fn assert_upstream(done: &Done, code: &str, retryable: bool) {
    let fault = done
        .outcome
        .fault
        .as_ref()
        .unwrap_or_else(|| panic!("{code}: {:?}", done.outcome));
    assert_eq!(fault.code, code, "{fault:?}");
    assert_eq!(
        (fault.owner, fault.retryable),
        (FaultOwner::Upstream, retryable),
        "{fault:?}"
    );
    assert!(fault.message.contains("endpoint `scripted`"), "{fault:?}");
    assert_eq!(done.outcome.ended, Ended::AgentError);
    assert_eq!(done.outcome.reward, None);
}

#[tokio::test]
async fn an_endpoint_that_is_down_is_its_fault_with_a_hint() {
    let world = World::new().await;
    let mut endpoint = world.endpoint();
    let closed = ClosedPort::take().unwrap();
    endpoint.base_url = format!("http://{}/v1", closed.address());
    let done = world
        .run_request(world.request_to(task(&["true"]), endpoint))
        .await;
    assert_upstream(&done, "upstream_unreachable", true);
    let fault = done.outcome.fault.as_ref().unwrap();
    assert!(
        fault.causes[0].ends_with("Connection refused (os error 111)"),
        "{fault:?}"
    );
    assert!(fault.hint.as_ref().unwrap().contains("is the server running"));
    assert!(
        done.outcome
            .fault
            .unwrap()
            .hint
            .unwrap()
            .contains(&closed.address().to_string())
    );
}

#[tokio::test]
async fn a_wrong_key_is_told_without_the_key() {
    let world = World::planned(WorldPlan {
        model_key: Some("sk-right".into()),
        ..WorldPlan::default()
    })
    .await;
    let mut endpoint = world.endpoint();
    endpoint.api_key = Some("sk-wrong-and-secret".into());
    let done = world
        .run_request(world.request_to(task(&["true"]), endpoint))
        .await;
    assert_upstream(&done, "upstream_unauthorized", false);
    assert!(!format!("{:?}", done.outcome.fault).contains("sk-wrong-and-secret"));
    assert!(done.outcome.fault.unwrap().hint.unwrap().contains("key"));
}

#[tokio::test]
async fn a_wrong_model_is_told_with_its_name() {
    let world = World::new().await;
    let mut endpoint = world.endpoint();
    endpoint.model = Some("no-such-model".into());
    let done = world
        .run_request(world.request_to(task(&["true"]), endpoint))
        .await;
    assert_upstream(&done, "upstream_not_found", false);
    assert!(
        done.outcome
            .fault
            .unwrap()
            .hint
            .unwrap()
            .contains("no-such-model")
    );
}

#[tokio::test]
async fn answers_that_are_no_answers_are_told_apart() {
    assert_upstream(
        &with(FaultPlan::default().always(Fault::status(429))).await,
        "upstream_rate_limited",
        true,
    );
    assert_upstream(
        &with(FaultPlan::default().always(Fault::status(500))).await,
        "upstream_failed",
        true,
    );
    assert_upstream(
        &with(FaultPlan::default().always(Fault::status(400))).await,
        "upstream_rejected",
        false,
    );
    let cut = Fault::Cut {
        after_events: 2,
        how: Cut::Reset,
    };
    assert_upstream(
        &with(FaultPlan::default().always(cut)).await,
        "upstream_cut",
        true,
    );
    let html = Fault::Answer {
        status: 200,
        content_type: "text/html".into(),
        body: "<html><body>Welcome to nginx</body></html>".into(),
        headers: Vec::new(),
    };
    assert_upstream(
        &with(FaultPlan::default().always(html)).await,
        "upstream_failed",
        true,
    );
    let redirect = Fault::Answer {
        status: 302,
        content_type: "text/plain".into(),
        body: String::new(),
        headers: vec![("location".into(), "http://elsewhere.example/v1".into())],
    };
    assert_upstream(
        &with(FaultPlan::default().always(redirect)).await,
        "upstream_failed",
        true,
    );
}

#[tokio::test]
async fn an_agent_that_recovers_from_a_failed_call_has_not_failed() {
    let world = World::planned(WorldPlan {
        faults: FaultPlan::default().on(0, Fault::status(500)),
        ..WorldPlan::default()
    })
    .await;
    let mut task = task(&["true"]);
    task.agent.env.insert("SCRIPTED_AGENT_RETRIES".into(), "2".into());
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.code(), None);
    assert_eq!(
        (done.outcome.totals.calls, done.outcome.totals.trainable_calls),
        (2, 1)
    );
}
