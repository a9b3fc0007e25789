use crate::support::{Place, redacted};
use dressage_store::{QueuedRollout, Store};
use dressage_testkit::model::{ScriptedModel, ScriptedModelConfig};
use dressage_wire::ids::{GroupId, OwnerId, RolloutId};
use serde_json::Value;

#[test]
fn the_demo_goes_from_task_to_reward_with_the_real_agent() {
    let place = Place::new();
    let ran = place.run(&["demo"]).expect(0);
    for stage in ["boot", "setup", "agent", "verify", "collect"] {
        assert!(ran.err.contains(&format!("✓ {stage}")), "{stage}: {}", ran.err);
    }
    assert!(
        ran.out
            .contains("1.0 (2 of 2 passed; verified in new namespaces)"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("prefix break"), "{}", ran.out);

    let row: Value = serde_json::from_str(place.run(&["list", "--json"]).expect(0).out.trim()).unwrap();
    assert_eq!(
        (&row["reward"], &row["ended"]),
        (&Value::from(1.0), &Value::from("completed"))
    );
    assert_eq!(row["totals"]["level"], "tokens");

    let id = row["id"].as_str().unwrap();
    let unknown = place.run(&["show", "ffff"]).expect(2);
    assert_eq!(unknown.err.matches("hint:").count(), 1, "{}", unknown.err);
    let shown = place.run(&["show", &id[..20]]).expect(0);
    assert!(
        shown.out.contains("inside what was sampled in call"),
        "{}",
        shown.out
    );
    assert!(shown.out.contains("binary_search.py"), "{}", shown.out);
    let document: Value = serde_json::from_str(&place.run(&["show", id, "--json"]).expect(0).out).unwrap();
    let calls = document["calls"].as_array().unwrap();
    assert!(
        calls.len() >= 3 && calls.iter().all(|call| call["trainable"] == true),
        "{calls:#?}"
    );

    let file: Value = serde_json::from_str(&place.run(&["show", id, "--trajectory"]).expect(0).out).unwrap();
    let trained = |sequence: &Value| -> u64 {
        sequence["loss_mask"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mask| mask.as_u64().unwrap())
            .sum()
    };
    let trained: u64 = file["sequences"].as_array().unwrap().iter().map(trained).sum();
    assert_eq!(trained, row["totals"]["trainable_tokens"].as_u64().unwrap());
}

#[test]
fn a_rollout_that_waits_is_listed_and_shown() {
    let place = Place::new();
    let waiting = QueuedRollout {
        id: RolloutId::new(),
        owner: OwnerId::new(),
        group: Some(GroupId::new()),
        sample: 2,
        task_id: Some("search".into()),
        title: "Write a binary search.".into(),
        agent: "opencode".into(),
        backend: "local".into(),
        endpoint: "demo".into(),
        model: "scripted".into(),
        priority: 7,
        created_unix_ms: 1_800_000_000_000,
        spec: "{}".into(),
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open(&place.data()).await.unwrap();
        store.enqueue(std::slice::from_ref(&waiting), None).await.unwrap();
        store.close().await;
    });
    let id = waiting.id.to_string();
    let listed = place.run(&["list", "--state", "queued"]).expect(0).out;
    let cells: Vec<&str> = listed.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(
        cells,
        [
            id.as_str(),
            "search",
            "#2",
            "queued",
            "–",
            "0",
            "0",
            "→",
            "0",
            "0",
            "–",
            "–"
        ]
    );
    assert_eq!(
        place.run(&["list", "--state", "running", "--json"]).expect(0).out,
        ""
    );

    let shown = place.run(&["show", "last"]).expect(0).out;
    for part in [
        &id,
        "search #2",
        "Write a binary search.",
        "scripted at demo",
        "queued: it has not begun",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let document: Value = serde_json::from_str(&place.run(&["show", &id, "--json"]).expect(0).out).unwrap();
    assert_eq!(document["state"], "queued");
    assert_eq!(document["priority"], 7);
    assert_eq!(document["started_unix_ms"], Value::Null);
    assert_eq!(document["start"], Value::Null);
    place.run(&["show", &id, "--trajectory"]).expect(0);
}

#[test]
fn a_task_file_is_run_n_times_into_folders_and_json_lines() {
    let place = Place::new();
    place.write(
        "t.toml",
        "id = 'two'\ninstruction = 'write binary_search.py'\nsetup = ['echo hi; exit 3']\n",
    );
    let arguments = [
        "run",
        "t.toml",
        "--endpoint",
        "demo",
        "-n",
        "3",
        "--concurrency",
        "3",
        "--json",
        "--output",
        "out",
    ];
    let ran = place.run(&arguments).expect(1);
    let mut samples = Vec::new();
    for line in ran.out.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["stored"], true);
        assert_eq!(
            (&line["task"], &line["ended"]),
            (&Value::from("two"), &Value::from("setup_error"))
        );
        assert_eq!(line["fault"]["code"], "setup_command_failed");
        assert_eq!(line["setup"][0]["stdout"], "hi\n");
        let folder = place.path("work").join(line["output"].as_str().unwrap());
        for name in ["trajectory.json", "outcome.json"] {
            serde_json::from_slice::<Value>(&std::fs::read(folder.join(name)).unwrap()).unwrap();
        }
        samples.push(line["sample"].as_u64().unwrap());
    }
    samples.sort_unstable();
    assert_eq!(samples, [0, 1, 2]);
    let listed = place.run(&["list"]).expect(0).out;
    for sample in ["two #0", "two #1", "two #2"] {
        assert!(listed.contains(sample), "{listed}");
    }
    let alone = place.run(&["run", "t.toml", "--endpoint", "demo"]).expect(1);
    assert!(!alone.err.contains('#'), "{}", alone.err);
    let listed = place.run(&["list", "-l", "1"]).expect(0).out;
    assert!(listed.contains("two") && !listed.contains('#'), "{listed}");
    let names: Vec<_> = std::fs::read_dir(place.path("work/out"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        names.len() == 3 && names.iter().all(|name| !name.to_string_lossy().starts_with('.')),
        "{names:?}"
    );
}

#[test]
fn a_failed_rollout_is_shown_with_fault_cause_and_output() {
    let place = Place::new();
    let setup = r"printf 'no \033]0;title\007 good\n' >&2; exit 3";
    let ran = place
        .run(&["run", "do it", "--endpoint", "demo", "--setup", setup])
        .expect(1);
    assert!(
        !ran.err.contains('\u{7}'),
        "an agent's control characters reach no terminal"
    );
    insta::assert_snapshot!("failed_run", redacted(&ran.err, &place));
    let shown = place.run(&["show", "last"]).expect(0);
    insta::assert_snapshot!("failed_show", redacted(&shown.out, &place));
    assert!(
        place
            .run(&["show", "last", "--raw"])
            .expect(0)
            .out
            .contains('\u{7}')
    );
}

#[test]
fn a_wrong_model_is_noted_before_and_a_fault_of_the_endpoint_after() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let model = runtime
        .block_on(ScriptedModel::start(ScriptedModelConfig::default()))
        .unwrap();
    let arguments = [
        "run",
        "write it",
        "--base-url",
        &model.base_url(),
        "--model",
        "none-such",
    ];
    let ran = place.run(&arguments).expect(1);
    assert!(
        ran.err.contains("does not list model `none-such`, but scripted"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("upstream_not_found (the endpoint's in agent"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("none-such"), "{}", ran.err);
}
