use crate::everywhere::for_backend;
use crate::played::Fake;
use crate::world::{BackendChoice, World, WorldPlan, agents_cache_dir, provider_url};
use dressage_rollout::presets::Preset;
use dressage_testkit::model::PresetScript;
use dressage_wire::event::Stage;
use dressage_wire::fault::Ended;
use dressage_wire::reward::Separation;
use dressage_wire::task::{CaptureMode, Task, VerifyIn};
use std::sync::Arc;

async fn world() -> World {
    World::planned(WorldPlan {
        script: Arc::new(PresetScript),
        cache_dir: Some(agents_cache_dir()),
        ..WorldPlan::default()
    })
    .await
}

fn offered(world: &World) -> Vec<String> {
    let body: serde_json::Value = serde_json::from_slice(&world.model.received()[0].body).unwrap();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn preset(name: &str) -> Task {
    Preset::named(name).unwrap().task()
}

#[tokio::test]
async fn opencode_solves_a_preset_in_a_sandbox_without_a_network() {
    let world = world().await;
    let done = world.run(preset("binary_search")).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.stages(), Stage::ALL);
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    let totals = &done.outcome.totals;
    assert!(totals.calls >= 2, "{totals:?}");
    // OpenCode writes tool arguments anew, without the spaces that the model sampled.
    assert!(totals.prefix_breaks >= 1, "{totals:?}");
    assert_eq!(totals.trainable_calls, totals.calls, "{totals:?}");
    assert!(
        done.outcome
            .agent
            .as_ref()
            .unwrap()
            .session
            .as_ref()
            .unwrap()
            .starts_with("ses_")
    );
    let tools = offered(&world);
    assert!(tools.iter().any(|tool| tool == "write"), "{tools:?}");
    assert!(
        !tools.iter().any(|tool| tool == "webfetch" || tool == "question"),
        "{tools:?}"
    );
}

#[tokio::test]
async fn opencode_solves_a_preset_in_a_container_without_a_network() {
    if crate::engine::engine().is_none() {
        return;
    }
    let world = World::planned(WorldPlan {
        script: Arc::new(PresetScript),
        cache_dir: Some(agents_cache_dir()),
        backend: BackendChoice::Named("docker"),
        ..WorldPlan::default()
    })
    .await;
    let done = world.run(preset("binary_search")).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.stages(), Stage::ALL);
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    let reward = done.outcome.reward.as_ref().unwrap();
    assert_eq!(reward.separation, Separation::Namespace);
    let totals = &done.outcome.totals;
    assert!(totals.calls >= 2, "{totals:?}");
    assert_eq!(totals.trainable_calls, totals.calls, "{totals:?}");
    assert!(done.outcome.warnings.is_empty(), "{:?}", done.outcome.warnings);
}

#[tokio::test]
async fn opencode_solves_a_preset_that_is_verified_in_a_fresh_sandbox() {
    let world = world().await;
    let mut task = preset("binary_search");
    task.verify_in = Some(VerifyIn::Fresh);
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    let reward = done.outcome.reward.as_ref().unwrap();
    assert_eq!(reward.separation, Separation::Fresh);
    assert!(done.outcome.warnings.is_empty(), "{:?}", done.outcome.warnings);
    assert_eq!(world.left(), 0);
}

async fn solves_at_a_provider(name: &str, backend: BackendChoice) {
    let world = World::planned(WorldPlan {
        script: Arc::new(PresetScript),
        cache_dir: Some(agents_cache_dir()),
        backend,
        ..WorldPlan::default()
    })
    .await;
    let mut task = for_backend(name, preset("binary_search"));
    for command in &mut task.verify {
        // The image is the machine that the provider runs on, where `python` may be missing.
        *command = command.replace("python -c", "python3 -c");
    }
    let done = world.run(task).await;
    assert_eq!(done.outcome.ended, Ended::Completed, "{:?}", done.outcome);
    assert_eq!(done.stages(), Stage::ALL);
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    let totals = &done.outcome.totals;
    assert!(totals.calls >= 2, "{totals:?}");
    assert_eq!(totals.trainable_calls, totals.calls, "{totals:?}");
    assert!(done.outcome.warnings.is_empty(), "{:?}", done.outcome.warnings);
    assert_eq!(world.left(), 0);
}

/// Over the provider that is played here, and over the one that the environment names.
async fn solves_over_both(name: &'static str) {
    let played = Fake::start();
    solves_at_a_provider(name, BackendChoice::Over(name, Box::new(played.providers()))).await;
    assert_eq!(played.living(), 0);
    if provider_url(name).is_some() {
        solves_at_a_provider(name, BackendChoice::Named(name)).await;
    }
}

#[tokio::test]
async fn opencode_solves_a_preset_in_a_sandbox_of_e2b() {
    solves_over_both("e2b").await;
}

#[tokio::test]
async fn opencode_solves_a_preset_in_a_sandbox_of_hugging_face() {
    solves_over_both("huggingface").await;
}

#[tokio::test]
async fn enabled_tools_are_all_that_reaches_the_model_and_the_system_prompt_does_too() {
    let world = world().await;
    let mut task = preset("fizzbuzz");
    task.agent.enabled_tools = Some(vec!["write".into(), "bash".into()]);
    task.agent.system_prompt = Some("Answer in few words, says the task.".into());
    let done = world.run(task).await;
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    assert_eq!(offered(&world), ["bash", "write"]);
    let body = String::from_utf8(world.model.received()[0].body.to_vec()).unwrap();
    assert!(body.contains("Answer in few words, says the task."));
}

#[tokio::test]
async fn trap_05_opencode_has_its_streams_from_a_buffered_capture() {
    let world = world().await;
    let mut request = world.request(preset("fizzbuzz"));
    request.capture = CaptureMode::Buffer;
    let done = world.run_request(request).await;
    assert_eq!(done.reward(), Some(1.0), "{:?}", done.outcome);
    let totals = &done.outcome.totals;
    assert!(totals.calls >= 2, "{totals:?}");
    assert_eq!(totals.trainable_calls, totals.calls, "{totals:?}");
    for received in world.model.received() {
        let body: serde_json::Value = serde_json::from_slice(&received.body).unwrap();
        assert_ne!(body["stream"], true, "{body}");
        assert_eq!(body.get("stream_options"), None, "{body}");
    }
}
