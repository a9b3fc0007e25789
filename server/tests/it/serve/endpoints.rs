use super::server::{Server, Setup, quick};
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig};
use serde_json::{Value, json};

#[test]
fn a_paused_endpoint_holds_the_calls_of_rollouts_and_stamps_them_with_the_new_version() {
    let server = Setup::new().scripted_agent().start();
    let paused = server
        .post(
            "/api/v1/endpoints/demo/pause",
            &json!({"wait": true, "timeout_s": 20}),
        )
        .expect(200)
        .json();
    assert_eq!(
        (&paused["paused"], &paused["in_flight"]),
        (&json!(true), &json!(0))
    );
    let id = server.submit_one(&quick());
    server.eventually("a call that waits", || {
        let endpoint = server.get("/api/v1/endpoints/demo").expect(200).json();
        (endpoint["waiting"] == 1).then_some(())
    });
    assert_eq!(server.rollout(&id)["state"], "running");

    let resumed = server
        .post(
            "/api/v1/endpoints/demo/resume",
            &json!({"policy_version": "step-121"}),
        )
        .expect(200)
        .json();
    assert_eq!(
        (&resumed["paused"], &resumed["policy_version"]),
        (&json!(false), &json!("step-121"))
    );
    assert_eq!(server.ended(&id)["outcome"]["reward"]["value"], 1.0);
    let calls = server
        .get(&format!("/api/v1/rollouts/{id}/calls"))
        .expect(200)
        .json();
    let calls = calls["calls"].as_array().unwrap();
    assert!(!calls.is_empty());
    for call in calls {
        let meta = call.get("meta").unwrap_or(call);
        assert_eq!(
            (
                &meta["policy_version_at_dispatch"],
                &meta["policy_version_at_completion"]
            ),
            (&json!("step-121"), &json!("step-121")),
            "{call}"
        );
    }
}

#[test]
fn what_is_wrong_with_a_pause_is_said() {
    let server = Server::plain();
    let error = |reply: Value| reply["error"]["code"].clone();
    let unknown = server
        .post("/api/v1/endpoints/nope/pause", &json!({}))
        .expect(404)
        .json();
    assert_eq!(error(unknown), "unknown_endpoint");
    for body in [
        json!({"wat": true}),
        json!({"wait": "yes"}),
        json!({"timeout_s": 0}),
        json!({"timeout_s": 1e9}),
        json!([]),
    ] {
        let refused = server
            .post("/api/v1/endpoints/demo/pause", &body)
            .expect(422)
            .json();
        assert_eq!(error(refused), "invalid_request", "{body}");
    }
    let unusable = server
        .post("/api/v1/endpoints/openai/pause", &json!({}))
        .expect(422)
        .json();
    assert_eq!(error(unusable), "endpoint_unusable");
    // Nothing of this has paused anything.
    assert_eq!(
        server.get("/api/v1/endpoints/demo").expect(200).json()["paused"],
        false
    );
}

#[test]
fn a_probe_tells_what_an_endpoint_returns_and_is_remembered_by_the_next_server() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let model = runtime
        .block_on(ScriptedModel::start(ScriptedModelConfig::default()))
        .unwrap();
    let setup = Setup::new();
    let cache = setup.write("marker", "").with_file_name("cache");
    let mut server = setup
        .variable("DRESSAGE_CACHE_DIR", cache.to_str().unwrap())
        .variable("VLLM_URL", &model.base_url())
        .variable("VLLM_MODEL", &ScriptedModelConfig::default().model)
        .start();
    assert_eq!(
        server.get("/api/v1/endpoints/vllm").expect(200).json()["probe"],
        Value::Null
    );
    let probed = server
        .request("POST", "/api/v1/endpoints/vllm/probe")
        .send()
        .expect(200)
        .json();
    let report = &probed["probe"];
    for reply in ["whole", "stream", "whole_with_tools", "stream_with_tools"] {
        assert_eq!(report[reply]["level"], "tokens", "{report}");
    }
    assert_eq!(report["capture"], "stream");
    server.end(nix::sys::signal::Signal::SIGTERM);
    server.start_again();
    let remembered = server.get("/api/v1/endpoints/vllm").expect(200).json();
    assert_eq!(&remembered["probe"], report);
    runtime.block_on(model.shutdown());
}
