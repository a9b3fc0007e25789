//! A line of the trace that `dressage-tap proxy` writes, as a call.

use bytes::Bytes;
use dressage_wire::call::{
    Call, CallEnd, CallMeta, CaptureLevel, Change, Completion, DialectName, Flag, Purpose, TopLogprob, Usage,
};
use dressage_wire::ids::CallId;
use dressage_wire::sampling::Sampling;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Line<'l> {
    turn: u32,
    #[serde(borrow)]
    request: &'l RawValue,
    #[serde(borrow)]
    response: &'l RawValue,
    logprobs: Vec<Entry>,
    completion_token_ids: Vec<u32>,
    finish_reason: Option<String>,
    latency_s: f64,
    timestamp: f64,
    call_id: CallId,
    prompt_token_ids: Option<Vec<u32>>,
    usage: Option<Usage>,
    flags: Vec<Flag>,
    level: CaptureLevel,
    purpose: Purpose,
    end: CallEnd,
    error: Option<String>,
    hint: Option<String>,
    model: Option<String>,
    sampling_params: Sampling,
    changes: Vec<Change>,
    first_token_ms: Option<u64>,
}

/// As the endpoint wrote it, so that anything may be missing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    token: String,
    /// Null where it was no finite number.
    logprob: Option<f64>,
    top_logprobs: Vec<Alternative>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Alternative {
    token: String,
    logprob: Option<f64>,
}

/// What is read of a request and an error reply besides.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Facts {
    stream: bool,
    upstream_status: Option<u16>,
}

/// The call of a line; `None` where it is none. Flagged as recorded where the agent could have written it.
pub(super) fn call(line: &[u8]) -> Option<Call> {
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    let facts = |json: &RawValue| serde_json::from_str::<Facts>(json.get()).unwrap_or_default();
    let sampled =
        !line.completion_token_ids.is_empty() || !line.logprobs.is_empty() || line.finish_reason.is_some();
    let completion = Completion {
        index: 0,
        token_ids: line.completion_token_ids,
        logprobs: line
            .logprobs
            .iter()
            .map(|entry| entry.logprob.unwrap_or(f64::NAN))
            .collect(),
        tokens: line.logprobs.iter().map(|entry| entry.token.clone()).collect(),
        top_logprobs: line
            .logprobs
            .into_iter()
            .map(|entry| alternatives(entry.top_logprobs))
            .collect(),
        finish_reason: line.finish_reason,
        stop_reason: None,
    };
    let mut flags = line.flags;
    flags.retain(|flag| *flag != Flag::SandboxIntegrity);
    flags.push(Flag::SandboxIntegrity);
    Some(Call {
        meta: CallMeta {
            id: line.call_id,
            index: line.turn.checked_sub(1)?,
            dialect: DialectName::ChatCompletions,
            streamed: facts(line.request).stream,
            started_unix_ms: milliseconds(line.timestamp)?,
            first_token_ms: line.first_token_ms,
            duration_ms: milliseconds(line.latency_s)?,
            end: line.end,
            status: facts(line.response)
                .upstream_status
                .or((line.end == CallEnd::Complete).then_some(200)),
            error: line.error,
            hint: line.hint,
            purpose: line.purpose,
            session: None,
            parent_session: None,
            retry_count: None,
            retry_key: String::new(),
            model: line.model,
            sampling: line.sampling_params,
            usage: line.usage,
            level: line.level,
            flags,
            changes: line.changes,
            untranslated: Vec::new(),
            policy_version_at_dispatch: None,
            policy_version_at_completion: None,
            request_bytes: line.request.get().len() as u64,
            upstream_bytes: 0,
        },
        request: Bytes::copy_from_slice(line.request.get().as_bytes()),
        response: Bytes::copy_from_slice(line.response.get().as_bytes()),
        prompt_token_ids: line.prompt_token_ids,
        completions: if sampled { vec![completion] } else { Vec::new() },
    })
}

fn alternatives(of_trace: Vec<Alternative>) -> Vec<TopLogprob> {
    let kept = |alternative: Alternative| {
        let logprob = alternative.logprob?;
        Some(TopLogprob {
            token: alternative.token,
            token_id: None,
            logprob,
        })
    };
    of_trace.into_iter().filter_map(kept).collect()
}

fn milliseconds(seconds: f64) -> Option<u64> {
    let milliseconds = (seconds * 1000.0).round();
    // Some ten thousand years: what is more is no time, and what is less fits.
    (0.0..3.2e14)
        .contains(&milliseconds)
        .then_some(milliseconds as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"turn":1,"request":{"model":"m","stream":true,"messages":[]},"response":{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]},"logprobs":[{"token":"Hi","logprob":-0.25,"top_logprobs":[{"token":"Hi","logprob":-0.25},{"token":"Yo","logprob":-1.5}]},{"token":"","logprob":null,"top_logprobs":[]}],"completion_tokens":["Hi",""],"completion_token_ids":[7,2],"per_token_logps":[-0.25,null],"finish_reason":"stop","latency_s":0.012,"timestamp":1795966829.643,"call_id":"019a0000-0000-7000-8000-000000000001","prompt_token_ids":[1,2,3],"usage":{"prompt_tokens":3,"completion_tokens":2,"reasoning_tokens":null},"flags":["logprob_invalid"],"level":"tokens","purpose":"agent","end":"complete","error":null,"model":"m","sampling_params":{"temperature":1.0},"changes":[],"first_token_ms":5}"#;

    #[test]
    fn a_line_of_a_trace_is_the_call_it_was_and_flagged_as_the_agents_word() {
        let call = call(LINE.as_bytes()).unwrap();
        assert_eq!(call.meta.index, 0);
        assert_eq!(
            (call.meta.duration_ms, call.meta.started_unix_ms),
            (12, 1_795_966_829_643)
        );
        assert_eq!((call.meta.status, call.meta.streamed), (Some(200), true));
        assert_eq!(call.meta.flags, [Flag::LogprobInvalid, Flag::SandboxIntegrity]);
        assert_eq!(call.meta.level, CaptureLevel::Tokens);
        assert_eq!(call.meta.sampling.temperature, Some(1.0));
        assert_eq!(call.prompt_token_ids.as_deref(), Some([1, 2, 3].as_slice()));
        let completion = &call.completions[0];
        assert_eq!(completion.token_ids, [7, 2]);
        assert_eq!(completion.logprobs[0], -0.25);
        assert!(completion.logprobs[1].is_nan());
        assert_eq!(completion.top_logprobs[0][1].token, "Yo");
        assert_eq!(call.request, r#"{"model":"m","stream":true,"messages":[]}"#);
    }

    #[test]
    fn lines_that_are_no_calls_are_told_apart() {
        let bad = [
            String::new(),
            "{}".into(),
            LINE.replace(r#""turn":1"#, r#""turn":0"#),
            LINE.replace("0.012", "-1.0"),
            LINE.replace("1795966829.643", "1e300"),
            LINE.replace(r#""end":"complete""#, r#""end":"fine""#),
            LINE[..200].into(),
        ];
        for line in bad {
            assert!(call(line.as_bytes()).is_none(), "{line}");
        }
    }
}
