//! The benchmark's programs, against each other.

use crate::client::{config, start};
use dressage_testkit::bench::load::{LoadOptions, LoadReport, run};
use dressage_testkit::bench::{floor, upstream};
use dressage_testkit::fault::{Fault, FaultPlan};
use dressage_testkit::model::ScriptedModelConfig;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use tokio::net::TcpListener;

async fn upstream() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(upstream::serve(listener));
    address
}

async fn floor_before(upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(floor::serve(listener, upstream));
    address
}

async fn load(address: SocketAddr, streamed: bool, ask_for_tokens: bool) -> LoadReport {
    run(LoadOptions {
        address,
        api_key: "sk-test".into(),
        streamed,
        ask_for_tokens,
        connections: 4,
        turns: 12,
        limit: Duration::from_secs(30),
        prompt_bytes: 1024,
        watched: Some(std::process::id()),
    })
    .await
}

#[tokio::test]
async fn every_turn_passes_with_and_without_the_byte_copy_between() {
    let upstream = upstream().await;
    for address in [upstream, floor_before(upstream).await] {
        for streamed in [false, true] {
            let report = load(address, streamed, false).await;
            assert_eq!(
                (report.turns, report.errors, report.first_error.as_deref()),
                (12, 0, None)
            );
            assert_eq!((report.leaked_logprobs_turns, report.leaked_ids_turns), (0, 0));
            assert!(report.turns_per_s > 0.0 && report.turn_p99_ms >= report.first_token_p50_ms);
            assert!(report.rss_peak_kb > 0);
        }
    }
}

#[tokio::test]
async fn tokens_that_reach_the_client_are_counted_as_leaks() {
    let address = floor_before(upstream().await).await;
    for streamed in [false, true] {
        let report = load(address, streamed, true).await;
        assert_eq!((report.turns, report.errors), (12, 0), "{:?}", report.first_error);
        assert_eq!((report.leaked_logprobs_turns, report.leaked_ids_turns), (12, 12));
    }
}

#[tokio::test]
async fn a_wrong_reply_and_an_error_status_are_errors_and_no_turns() {
    // It says something else than the upstream, in another number of events.
    let model = start(ScriptedModelConfig {
        model: upstream::MODEL.into(),
        ..config()
    })
    .await;
    for streamed in [false, true] {
        let report = load(model.address(), streamed, false).await;
        assert_eq!((report.turns, report.errors), (0, 12), "{:?}", report.first_error);
    }
    let faults = FaultPlan::default().always(Fault::status(503));
    let model = start(ScriptedModelConfig { faults, ..config() }).await;
    let report = load(model.address(), true, false).await;
    assert!(report.first_error.unwrap().starts_with("status 503: {\"error\""));
}

#[test]
fn the_driver_measures_what_it_is_asked_for_and_writes_the_page() {
    let directory = tempfile::tempdir().unwrap();
    let (json, page) = (
        directory.path().join("bench.json"),
        directory.path().join("benchmarks.md"),
    );
    std::fs::write(
        &page,
        "# Speed\n<!-- make bench begins -->\n<!-- make bench ends -->\n",
    )
    .unwrap();
    let external = r#"boot=echo {"metric":"median_ms","value":12.5,"at_most":50}"#;
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args([
            "--only",
            "startup,unary-c1,boot",
            "--repetitions",
            "1",
            "--scale",
            "0.01",
            "--external",
            external,
        ])
        .args([
            "--json".as_ref(),
            json.as_os_str(),
            "--markdown".as_ref(),
            page.as_os_str(),
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let samples = results["samples"].as_array().unwrap();
    let taken = |scenario: &str, target: &str| {
        samples
            .iter()
            .filter(|sample| sample["scenario"] == scenario && sample["target"] == target)
            .count()
    };
    assert_eq!(
        (
            taken("startup", "floor"),
            taken("unary-c1", "direct"),
            taken("unary-c1", "floor")
        ),
        (5, 1, 1)
    );
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(
        page.starts_with("# Speed\n<!-- make bench begins -->\n\nMeasured on "),
        "{page}"
    );
    assert!(
        page.contains("| boot: median_ms | at most 50 | 12.5 | yes |\n"),
        "{page}"
    );
}

#[test]
fn the_driver_names_what_it_cannot_measure() {
    let output = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["--only", "stream-c17"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: nothing is called so: stream-c17\n"
    );
}
