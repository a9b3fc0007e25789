use super::*;
use crate::traces::span::{Kind, SpanId, TraceId};

/// What the Python package `opentelemetry-proto` 1.45.2 makes of the same two spans.
const OFFICIAL: &str = "\
    0aec040a1e0a1c0a0c736572766963652e6e616d65120c0a0a747261696e657220c3a912c9040a130a086472657373616765\
    120756455253494f4e12f6030a100102030405060708090a0b0c0d0e0f101208f0f1f2f3f4f5f6f722080909090909090909\
    2af00163686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d6368617420\
    6d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63\
    686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d636861\
    74206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d6368617420\
    6d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d63686174206d300339c0d41e6f\
    a7fc7a184100ca64a3a7fc7a184a1b0a1467656e5f61692e726571756573742e6d6f64656c12030a016d4a200a1967656e5f\
    61692e75736167652e696e7075745f746f6b656e73120318ac024a230a1467656e5f61692e726571756573742e746f705f6b\
    120b18ffffffffffffffffff014a270a1a67656e5f61692e726571756573742e74656d706572617475726512092166666666\
    6666e63f4a360a1e67656e5f61692e726573706f6e73652e66696e6973685f726561736f6e7312142a120a060a0473746f70\
    0a080a066c656e6774687a02180212390a100102030405060708090a0b0c0d0e0f10120809090909090909092a07726f6c6c\
    6f75743001390000ca67a7fc7a18410094ffdea7fc7a18";

fn spans() -> [Span; 2] {
    let trace = TraceId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    let mut attributes = Attributes::default();
    attributes.set("gen_ai.request.model", "m");
    attributes.set("gen_ai.usage.input_tokens", 300_u64);
    attributes.set("gen_ai.request.top_k", -1_i64);
    attributes.set("gen_ai.request.temperature", 0.7);
    let reasons = ["stop", "length"].map(str::to_owned);
    attributes.set("gen_ai.response.finish_reasons", reasons.to_vec());
    let call = Span {
        trace,
        id: SpanId([0xf0, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7]),
        parent: Some(SpanId([9; 8])),
        name: "chat m".repeat(40),
        kind: Kind::Client,
        start_unix_ms: 1_764_000_000_123,
        end_unix_ms: 1_764_000_001_000,
        attributes,
        failed: true,
    };
    let root = Span {
        trace,
        id: SpanId([9; 8]),
        parent: None,
        name: "rollout".into(),
        kind: Kind::Internal,
        start_unix_ms: 1_764_000_000_000,
        end_unix_ms: 1_764_000_002_000,
        attributes: Attributes::default(),
        failed: false,
    };
    [call, root]
}

#[test]
fn bytes_are_those_of_the_official_encoder() {
    let resource = [("service.name".to_owned(), "trainer é".to_owned())];
    let written = written("VERSION", &resource, &spans());
    let hex: String = written.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, OFFICIAL);
}
