use crate::provider::{Line, Scripted, leases, line};
use crate::world::{World, spec};
use dressage_sandbox::SandboxError;
use dressage_wire::task::NetworkPolicy;
use std::collections::BTreeMap;

fn open() -> dressage_sandbox::SandboxSpec {
    let mut spec = spec();
    spec.network = NetworkPolicy::Open;
    spec
}

/// A job as it is answered to who made it.
fn job(stage: &str, url: &str) -> String {
    format!(
        r#"{{"id":"6a0000000000000000000001","status":{{"stage":"{stage}","message":"Job exited","exposeUrls":["{url}/6a0000000000000000000001--49983.hf.jobs"]}}}}"#
    )
}

/// Answers that name its own address.
async fn provider(script: impl Fn(&str) -> Vec<Line>) -> Scripted {
    Scripted::start_at(script).await
}

#[tokio::test]
async fn without_a_token_it_is_unavailable_and_says_which_to_set() {
    let world = World::new();
    let made = (dressage_sandbox::by_name("huggingface").unwrap().make)(&world.config);
    assert!(made.err().unwrap().hint().unwrap().contains("HF_TOKEN"));
}

#[tokio::test]
async fn a_sandbox_without_a_network_is_refused_before_anything_is_asked() {
    let world = World::new();
    let provider = Scripted::start(Vec::new()).await;
    let error = provider.huggingface(&world).create(spec()).await.err().unwrap();
    assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("network = \"open\""), "{error}");
    assert_eq!(provider.asked(), [""; 0]);
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn a_job_that_is_over_before_it_is_a_sandbox_is_told_with_its_last_words_and_cancelled() {
    let world = World::new();
    let provider = provider(|url| {
        let mut lines = vec![line("POST /api/jobs/me", 200, &job("SCHEDULING", url))];
        lines.extend(vec![line("GET /6a0000000000000000000001--", 503, "Job is not running"); 20]);
        lines.extend([
            line("GET /api/jobs/me/6a0000000000000000000001/logs", 200, "data: {\"data\":\"one\",\"timestamp\":\"\"}\n\ndata: {\"data\":\"there is neither sha256sum nor openssl\",\"timestamp\":\"\"}\n\n"),
            line("GET /api/jobs/me/6a0000000000000000000001", 200, &job("ERROR", url)),
            line("POST /api/jobs/me/6a0000000000000000000001/cancel", 200, "{}"),
        ]);
        lines
    })
    .await;
    let error = provider.huggingface(&world).create(open()).await.err().unwrap();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("ERROR Job exited"), "{source}");
    assert!(source.contains("neither sha256sum nor openssl"), "{source}");
    assert!(provider.asked().iter().any(|asked| asked.ends_with("/cancel")));
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn a_job_that_exposes_nothing_is_cancelled() {
    let world = World::new();
    let spec = open();
    let bare = r#"{"id":"6a0000000000000000000001","status":{"stage":"SCHEDULING","exposeUrls":null}}"#;
    let listed = format!(
        r#"[{{"id":"6a0000000000000000000001","status":{{"stage":"RUNNING"}},"labels":{{"dressage-sandbox":"{0}"}}}},
            {{"id":"6a0000000000000000000002","status":{{"stage":"COMPLETED"}},"labels":{{"dressage-sandbox":"{0}"}}}},
            {{"id":"6a0000000000000000000003","status":{{"stage":"RUNNING"}},"labels":{{}}}}]"#,
        spec.id
    );
    let provider = Scripted::start(vec![
        line("POST /api/jobs/me/6a0000000000000000000001/cancel", 200, "{}"),
        line("POST /api/jobs/me", 200, bare),
        line("GET /api/jobs/me?label=dressage-sandbox%3D", 200, &listed),
    ])
    .await;
    let error = provider.huggingface(&world).create(spec).await.err().unwrap();
    assert!(matches!(error, SandboxError::Create { .. }), "{error}");
    assert_eq!(provider.asked().len(), 3, "{:?}", provider.asked());
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn a_program_of_an_older_protocol_is_refused() {
    let world = World::new();
    let provider = provider(|url| {
        vec![
            line("POST /api/jobs/me/6a0000000000000000000001/cancel", 200, "{}"),
            line("POST /api/jobs/me", 200, &job("RUNNING", url)),
            line("GET /6a0000000000000000000001--", 200, r#"{"status":"ok"}"#),
        ]
    })
    .await;
    let error = provider.huggingface(&world).create(open()).await.err().unwrap();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("protocol 1"), "{source}");
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn what_is_asked_for_has_a_lifetime_a_pinned_program_and_no_secret_where_others_read() {
    let world = World::new();
    let provider = Scripted::start(vec![line(
        "POST /api/jobs/me",
        402,
        r#"{"error":"out of credits"}"#,
    )])
    .await;
    let mut spec = open();
    spec.env = BTreeMap::from([("A_KEY".to_owned(), "of-the-task".to_owned())]);
    let error = provider.huggingface(&world).create(spec).await.err().unwrap();
    assert!(error.hint().unwrap().contains("billing"), "{error}");
    assert!(leases(&world).is_empty());
    let heard = provider.heard.lock().unwrap()[0].clone();
    let (head, body) = heard.split_once("\r\n\r\n").unwrap();
    assert!(head.to_ascii_lowercase().contains("content-length: "));
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"));
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["timeoutSeconds"], 600);
    assert_eq!(body["environment"]["SBX_IDLE_TIMEOUT"], "600");
    assert_eq!(body["dockerImage"], "python:3.12");
    assert_eq!(body["expose"]["ports"][0], 49983);
    assert_eq!(body["expose"]["portsPublic"], serde_json::json!([]));
    assert!(body["command"][2].as_str().unwrap().contains("SBX_SERVER_SHA256"));
    let shown = body.to_string();
    assert!(
        !shown.contains("hf_test") && !shown.contains("of-the-task"),
        "{shown}"
    );
    assert_eq!(body["secrets"]["SBX_TOKEN"].as_str().unwrap().len(), 64);
    assert_eq!(body["labels"]["hf-sandbox-nonce"].as_str().unwrap().len(), 32);
}

#[tokio::test]
async fn a_limit_on_calls_is_waited_for_as_long_as_it_says() {
    let world = World::new();
    let limited = r#"{"error":"You have been rate limited"}"#.to_owned();
    let provider = Scripted::start(vec![
        (
            "POST /api/jobs/me",
            429,
            "RateLimit: \"api\";r=0;t=1\r\n",
            limited,
        ),
        line("POST /api/jobs/me", 403, r#"{"error":"no jobs for you"}"#),
    ])
    .await;
    let begun = std::time::Instant::now();
    let error = provider.huggingface(&world).create(open()).await.err().unwrap();
    assert!(error.to_string().contains("no jobs for you"), "{error}");
    assert!(begun.elapsed() >= std::time::Duration::from_secs(1));
    assert_eq!(provider.asked().len(), 2);
}
