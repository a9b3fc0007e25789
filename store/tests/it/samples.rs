//! Rollouts and calls to store.

use bytes::Bytes;
use dressage_wire::call::{
    Call, CallEnd, CallMeta, CaptureLevel, Change, Completion, DialectName, Flag, Purpose, TopLogprob, Usage,
};
use dressage_wire::event::Stage;
use dressage_wire::fault::{Ended, Fault, FaultOwner};
use dressage_wire::ids::{CallId, OwnerId, RolloutId, SandboxId};
use dressage_wire::reward::{CommandResult, Reward, RewardSource, Separation};
use dressage_wire::rollout::{AgentOutcome, RolloutOutcome, RolloutStart, StageTime, Totals};
use dressage_wire::sampling::Sampling;
use dressage_wire::task::{CaptureMode, Mode, Placement, Task};
use serde_json::{Value, json};

pub fn start() -> RolloutStart {
    RolloutStart {
        id: RolloutId::new(),
        owner: OwnerId::new(),
        task: Task {
            id: Some("task".into()),
            instruction: "\n  Write a binary search.\nIn Python.".into(),
            verify: vec!["true".into()],
            ..Task::default()
        },
        sample: 0,
        group: None,
        endpoint: "demo".into(),
        base_url: "http://127.0.0.1:1/v1".into(),
        model: "m".into(),
        backend: "local".into(),
        agent_version: "1.18.33".into(),
        mode: Mode::default(),
        placement: Placement::default(),
        capture: CaptureMode::default(),
        started_unix_ms: 1_800_000_000_000,
    }
}

/// A finished rollout with everything in it that an outcome can have.
pub fn outcome(id: RolloutId) -> RolloutOutcome {
    let command = CommandResult {
        command: "pytest".into(),
        exit_code: 137,
        signal: Some(9),
        timed_out: false,
        stdout: "out \u{1b}[31m\0".into(),
        stderr: String::new(),
        output_bytes: 70_000,
        duration_ms: 12,
    };
    RolloutOutcome {
        id,
        ended: Ended::Timeout,
        fault: Some(Fault {
            code: "agent_timeout".into(),
            owner: FaultOwner::Agent,
            stage: Some(Stage::Agent),
            retryable: true,
            message: "the agent did not end in time".into(),
            causes: vec!["because".into()],
            hint: Some("raise it".into()),
        }),
        reward: Some(Reward {
            value: Some(0.1 + 0.2),
            overridden: true,
            source: RewardSource::Override,
            commands: vec![command.clone()],
            separation: Separation::Namespace,
            detail: json!({"by": "hand"}).as_object().cloned(),
        }),
        sandbox: Some(SandboxId::new()),
        stages: vec![StageTime {
            stage: Stage::Boot,
            duration_ms: 30,
            warm: true,
            restored: false,
        }],
        setup: vec![command],
        agent: Some(AgentOutcome {
            exit_code: 124,
            signal: None,
            spoke: true,
            session: Some("ses".into()),
            log_tail: "tail".into(),
            duration_ms: 600_000,
        }),
        files: [("a/b.py".to_owned(), "print('é')\n".to_owned())].into(),
        files_extra: vec!["big.bin".into()],
        totals: Totals {
            calls: 3,
            trainable_calls: 2,
            prompt_tokens: 100,
            completion_tokens: 20,
            trainable_tokens: 15,
            prefix_breaks: 1,
            level: Some(CaptureLevel::Tokens),
        },
        late_flags: vec![(CallId::new(), vec![Flag::Superseded])],
        warnings: vec!["warned".into()],
        wall_ms: 601_000,
        finished_unix_ms: 1_800_000_601_000,
        unstored: None,
    }
}

pub fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

pub fn call(index: u32, messages: &[Value]) -> Call {
    // Not as serde_json writes it, so that coming back byte for byte means something.
    let messages: Vec<String> = messages.iter().map(Value::to_string).collect();
    let request = Bytes::from(format!(
        r#"{{"model": "m", "tools": [ {{"type":"function"}} ], "messages": [{}],  "stream": true}}"#,
        messages.join(", ")
    ));
    Call {
        meta: CallMeta {
            id: CallId::new(),
            index,
            dialect: DialectName::ChatCompletions,
            streamed: true,
            started_unix_ms: 1_800_000_000_000 + 1_000 * u64::from(index),
            first_token_ms: Some(5),
            duration_ms: 900,
            end: CallEnd::Complete,
            status: Some(200),
            error: None,
            hint: None,
            purpose: Purpose::Agent,
            session: Some("ses".into()),
            parent_session: None,
            retry_count: Some(0),
            retry_key: dressage_wire::trajectory::ContentHash::of(&request).to_string(),
            model: Some("m".into()),
            sampling: Sampling::neutral(),
            usage: None,
            level: CaptureLevel::Tokens,
            flags: vec![Flag::SamplingDefaulted],
            changes: vec![Change::Renamed {
                from: "max_tokens".into(),
                to: "max_completion_tokens".into(),
            }],
            untranslated: vec!["tools.web_search".into()],
            policy_version_at_dispatch: Some("7".into()),
            policy_version_at_completion: None,
            request_bytes: request.len() as u64,
            upstream_bytes: 4_000,
        },
        request,
        response: Bytes::from(format!(
            r#"{{"id":"r{index}","choices":[{{"message":{{"role":"assistant","content":"reply {index}"}}}}]}}"#
        )),
        prompt_token_ids: None,
        completions: Vec::new(),
    }
}

/// The same call, with the ids and log-probabilities that were captured.
pub fn with_tokens(mut call: Call, prompt: &[u32], completion: &[u32]) -> Call {
    call.prompt_token_ids = Some(prompt.to_vec());
    call.meta.usage = Some(Usage {
        prompt_tokens: prompt.len() as u64,
        completion_tokens: completion.len() as u64,
        reasoning_tokens: None,
        cached_tokens: None,
    });
    call.completions = vec![Completion {
        token_ids: completion.to_vec(),
        logprobs: completion.iter().map(|id| -f64::from(*id) / 7.0).collect(),
        tokens: completion.iter().map(|id| format!("t{id}")).collect(),
        top_logprobs: completion
            .iter()
            .map(|id| {
                vec![TopLogprob {
                    token: "other".into(),
                    token_id: Some(*id + 1),
                    logprob: -9.5,
                }]
            })
            .collect(),
        finish_reason: Some("stop".into()),
        stop_reason: Some("151645".into()),
        ..Completion::default()
    }];
    call
}

/// Three calls of a conversation: the second breaks inside the first's completion, the third goes on exactly.
pub fn conversation() -> Vec<Call> {
    let mut said = vec![
        message("system", "You are an agent."),
        message("user", "Write it."),
    ];
    let mut calls = vec![with_tokens(call(0, &said), &[1, 2, 3], &[10, 11, 12])];
    said.extend([message("assistant", "reply 0"), message("tool", "ok")]);
    calls.push(with_tokens(call(1, &said), &[1, 2, 3, 10, 99, 4], &[20, 21]));
    said.extend([message("assistant", "reply 1"), message("tool", "done")]);
    calls.push(with_tokens(
        call(2, &said),
        &[1, 2, 3, 10, 99, 4, 20, 21, 5],
        &[30],
    ));
    calls
}
