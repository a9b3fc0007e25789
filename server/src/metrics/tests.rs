use super::*;
use dressage_wire::call::{CallEnd, CallSummary, CaptureLevel, Flag, Purpose};
use dressage_wire::fault::{Fault, FaultOwner};
use dressage_wire::ids::CallId;
use std::collections::BTreeSet;

const NOW: Now<'static> = Now {
    live: &[],
    pools: &[PoolCounts {
        backend: "local",
        ready: 3,
        hits: 5,
        misses: 2,
        failures: 1,
    }],
    queue_limit: 9,
    sessions: (1, 4),
};

fn happened(metrics: &Metrics, event: Event) {
    metrics.event(&Arc::new(RolloutEvent {
        rollout: RolloutId::new(),
        sequence: 0,
        unix_ms: 0,
        event,
    }));
}

/// One of everything.
fn filled() -> Arc<Metrics> {
    let metrics = Metrics::new();
    happened(&metrics, Event::Queued { position: 0 });
    happened(
        &metrics,
        Event::StageEnded {
            stage: Stage::Boot,
            duration_ms: 40,
        },
    );
    happened(
        &metrics,
        Event::CallEnded {
            call: CallSummary {
                id: CallId::new(),
                index: 0,
                end: CallEnd::Complete,
                purpose: Purpose::Agent,
                level: CaptureLevel::Tokens,
                prompt_tokens: 100,
                completion_tokens: 20,
                flags: vec![Flag::Truncated],
                duration_ms: 700,
                prefix_break: true,
            },
        },
    );
    happened(
        &metrics,
        Event::Finished {
            ended: Ended::SetupError,
            fault: Some(Fault {
                code: "setup_command_failed".into(),
                owner: FaultOwner::Task,
                stage: Some(Stage::Setup),
                retryable: false,
                message: String::new(),
                causes: Vec::new(),
                hint: None,
            }),
        },
    );
    observe(&metrics.rollout_seconds, &[("ended", "setup_error")], 1.0);
    metrics.answered("GET", "/api/v1/rollouts/{id}", 200, Duration::from_millis(2));
    metrics
}

#[test]
fn what_happens_is_counted() {
    let text = filled().text(&NOW).unwrap();
    for line in [
        "dressage_rollouts_submitted_total 1",
        "dressage_rollouts_ended_total{ended=\"setup_error\"} 1",
        "dressage_rollouts_ended_total{ended=\"completed\"} 0",
        "dressage_rollout_faults_total{owner=\"task\",code=\"setup_command_failed\"} 1",
        "dressage_stage_duration_seconds_bucket{stage=\"boot\",le=\"0.05\"} 1",
        "dressage_calls_total{end=\"complete\",purpose=\"agent\"} 1",
        "dressage_tokens_total{kind=\"completion\"} 20",
        "dressage_call_flags_total{flag=\"truncated\"} 1",
        "dressage_prefix_breaks_total 1",
        "dressage_queue_limit_rollouts 9",
        "dressage_warm_sandboxes{backend=\"local\"} 3",
        "dressage_warm_hits_total{backend=\"local\"} 5",
        "dressage_warm_misses_total{backend=\"local\"} 2",
        "dressage_warm_failures_total{backend=\"local\"} 1",
        "dressage_openenv_sessions 1",
        "dressage_http_requests_total{method=\"GET\",route=\"/api/v1/rollouts/{id}\",status=\"200\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn the_table_is_what_is_told() {
    let text = filled().text(&NOW).unwrap();
    let told: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    let listed: Vec<String> = ALL
        .iter()
        .map(|metric| format!("{} {}", metric.name, metric.kind))
        .collect();
    assert_eq!(told, listed.iter().map(String::as_str).collect());
    for metric in ALL {
        let found = text.lines().find(|line| {
            line.strip_prefix(metric.name)
                .is_some_and(|rest| rest.starts_with(['{', ' ', '_']) && !rest.starts_with("_total"))
        });
        for label in metric.labels {
            assert!(
                found.unwrap().contains(&format!("{label}=\"")),
                "{label} of {}: {found:?}",
                metric.name
            );
        }
        assert!(metric.name.starts_with("dressage_") && !metric.meaning.ends_with('.'));
    }
}
