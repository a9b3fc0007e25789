//! What endpoints refuse, and in which words.

use super::recordings::*;
use dressage_wire::call::Change;
use dressage_wire::capture::{RequestFacts, RequestRules};
use dressage_wire::dialect::Dialect;
use dressage_wire::sampling::Sampling;

fn facts() -> RequestFacts {
    let rules = RequestRules {
        top_logprobs: 10,
        sampling: Sampling::neutral(),
        ..rules()
    };
    let body = r#"{"model":"m","messages":[],"tools":[{}],"stream":true,"max_tokens":9,"temperature":1}"#;
    prepare(body, &rules).facts
}

fn refused(status: u16, body: &str) -> Vec<Change> {
    CHAT.refused(status, body.as_bytes(), &facts())
}

fn removed(field: &str) -> Change {
    Change::Removed { field: field.into() }
}

#[test]
fn trap_24_openai_wants_another_name() {
    let body = r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#;
    let renamed = Change::Renamed {
        from: "max_tokens".into(),
        to: "max_completion_tokens".into(),
    };
    assert_eq!(refused(400, body), [renamed]);
}

#[test]
fn trap_24_openai_takes_no_other_temperature() {
    let body = r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value is supported.","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#;
    assert_eq!(refused(400, body), [removed("temperature")]);
}

#[test]
fn trap_24_openai_does_not_know_a_member() {
    let old = r#"{"error":{"message":"Unrecognized request arguments supplied: min_p, top_k","type":"invalid_request_error","param":null,"code":null}}"#;
    assert_eq!(refused(400, old), [removed("min_p"), removed("top_k")]);
    let new = r#"{"error":{"message":"Unknown parameter: 'return_token_ids'.","type":"invalid_request_error","param":"return_token_ids","code":"unknown_parameter"}}"#;
    assert_eq!(refused(400, new), [removed("return_token_ids")]);
    let logprobs = r#"{"error":{"message":"This model does not support logprobs.","param":null}}"#;
    assert_eq!(refused(400, logprobs), [removed("logprobs")]);
}

#[test]
fn trap_24_pydantic_names_members_by_path() {
    let fastapi = r#"{"detail":[{"type":"extra_forbidden","loc":["body","return_token_ids"],"msg":"Extra inputs are not permitted","input":true},{"type":"extra_forbidden","loc":["body","min_p"],"msg":"Extra inputs are not permitted","input":0}]}"#;
    assert_eq!(
        refused(422, fastapi),
        [removed("return_token_ids"), removed("min_p")]
    );
    let mistral = r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","top_k"],"msg":"Extra inputs are not permitted"}]},"type":"invalid_request_error"}"#;
    assert_eq!(refused(422, mistral), [removed("top_k")]);
    let vllm = r#"{"error":{"message":"[{'type': 'extra_forbidden', 'loc': ('body', 'return_token_ids'), 'msg': 'Extra inputs are not permitted', 'input': True}]","type":"BadRequestError","param":null,"code":400}}"#;
    assert_eq!(refused(400, vllm), [removed("return_token_ids")]);
}

#[test]
fn trap_24_alternatives_are_capped() {
    let limited = [Change::Limited {
        field: "top_logprobs".into(),
        to: "5".into(),
    }];
    for body in [
        r#"{"error":{"message":"top_logprobs must be between 0 and 5","type":"invalid_request_error"}}"#,
        r#"{"error":{"message":"Input should be less than or equal to 5, got 10","param":"top_logprobs"}}"#,
        r#"{"detail":[{"type":"less_than_equal","loc":["body","top_logprobs"],"msg":"Input should be less than or equal to 5","input":10,"ctx":{"le":5}}]}"#,
    ] {
        assert_eq!(refused(400, body), limited, "{body}");
    }
}

#[test]
fn trap_24_llamacpp_takes_no_logprobs_with_tools_and_stream() {
    let body = response("llamacpp-b10434/chat_stream_tools_required");
    assert_eq!(CHAT.refused(400, &body, &facts()), [removed("logprobs")]);
}

#[test]
fn trap_24_other_errors_change_nothing() {
    for name in [
        "vllm-0.32.0/err_ctx_stream",
        "vllm-0.32.0/err_model_404",
        "llamacpp-b10434/err_ctx_too_long",
        "llamacpp-b10434/err_bad_json",
    ] {
        assert_eq!(CHAT.refused(400, &response(name), &facts()), [], "{name}");
    }
    for body in [
        r#"{"error":{"message":"max_tokens is too large: 32000. This model supports at most 4096 completion tokens","param":"max_tokens","code":null}}"#,
        r#"{"error":{"message":"Invalid value: temperature must be at most 2","param":"temperature","code":"decimal_above_max_value"}}"#,
        r#"{"error":{"message":"The model `m` is not supported","param":"model"}}"#,
        r#"{"error":{"message":"Unknown parameter: 'messages[0].foo'.","param":"messages[0].foo"}}"#,
        r#"{"error":{"message":"tools is not supported with this model","param":"tools"}}"#,
        r#"{"error":{"message":"Unknown parameter: 'not_sent'.","param":"not_sent"}}"#,
        "<html>not supported</html>",
        "",
    ] {
        assert_eq!(refused(400, body), [], "{body}");
    }
}

#[test]
fn trap_24_only_two_statuses_are_refusals() {
    let body = r#"{"error":{"message":"Unknown parameter: 'top_k'.","param":"top_k"}}"#;
    assert_eq!(refused(400, body), [removed("top_k")]);
    for status in [401, 404, 429, 500, 503] {
        assert_eq!(refused(status, body), [], "{status}");
    }
}
