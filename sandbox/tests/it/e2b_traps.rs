//! The traps of E2B's protocol, by their numbers. Elsewhere, over every provider: 2 (a kill reaches the whole tree), 4 (what was missed) and 14
//! in remote.rs, 3 (what is left holds nothing up) in programs.rs. Not met here: 8 (of servers), 13 and 19 (nothing is paused).

use crate::provider::{CREATED, ENDED, Line, STARTED, Scripted, backend, leases, line, stream};
use crate::world::{Output, World, bytes, sh, spec, try_run};
use dressage_sandbox::{Sandbox, SandboxError};
use std::sync::Arc;
use std::time::Duration;

const START: &str = "POST /process.Process/Start";

/// Where `dressage-tap` is: in the image.
const BROUGHT: &str = r#"{"event":{"data":{"stdout":"L29wdC9kcmVzc2FnZS94Cg=="}}}"#;

fn started(messages: &[&str]) -> Line {
    line(START, 200, &stream(messages, true))
}

/// A sandbox that is ready, at a provider that then says the rest of a script.
async fn ready(world: &World, rest: Vec<Line>) -> (Scripted, Arc<dyn Sandbox>) {
    let mut script = vec![
        line("POST /v2/sandboxes", 201, CREATED),
        started(&[STARTED, ENDED]),
        started(&[STARTED, BROUGHT, ENDED]),
    ];
    script.extend(rest);
    script.push(line("DELETE /sandboxes/i7", 204, ""));
    let provider = Scripted::start(script).await;
    let sandbox = backend(&provider.config(world)).create(spec()).await.unwrap();
    (provider, sandbox)
}

fn last(provider: &Scripted, begins: &str) -> String {
    let heard = provider.heard.lock().unwrap();
    let found = heard.iter().rfind(|request| request.starts_with(begins));
    found.unwrap().to_ascii_lowercase()
}

#[tokio::test]
async fn trap_1_and_9_the_lifetime_of_a_program_is_told_only_where_it_has_one_that_can_be_told() {
    let world = World::new();
    let rest = vec![started(&[STARTED, ENDED]); 3];
    let (provider, sandbox) = ready(&world, rest).await;
    for (timeout, told) in [
        (None, None),
        // The host keeps the deadline; the provider's is a minute later.
        (
            Some(Duration::from_secs(5)),
            Some("connect-timeout-ms: 65000\r\n"),
        ),
        // More than ten digits are refused.
        (Some(Duration::from_secs(20_000_000)), None),
    ] {
        let mut command = sh("true");
        command.timeout = timeout;
        try_run(&*sandbox, command).await.unwrap();
        let request = last(&provider, START);
        match told {
            Some(told) => assert!(request.contains(told), "{request}"),
            None => assert!(!request.contains("connect-timeout-ms"), "{request}"),
        }
    }
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_4_and_6_a_program_whose_stream_broke_is_found_again_by_its_number() {
    let world = World::new();
    let one = r#"{"event":{"data":{"stdout":"b25l"}}}"#;
    let two = r#"{"event":{"data":{"stdout":"dHdv"}}}"#;
    let rest = vec![
        // Ends in the middle of a message.
        line(START, 200, &stream(&[STARTED, one], false)),
        line("GET /health", 204, ""),
        line(
            "POST /process.Process/Connect",
            200,
            &stream(&[STARTED, two, ENDED], true),
        ),
    ];
    let (provider, sandbox) = ready(&world, rest).await;
    let ran = try_run(&*sandbox, sh("true")).await.unwrap();
    assert_eq!((ran.exit.code, ran.stdout.as_str()), (0, "onetwo"));
    let asked = last(&provider, "POST /process.Process/Connect");
    assert!(asked.contains(r#"{"process":{"pid":77}}"#), "{asked}");
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_5_what_an_unanswered_start_may_have_started_is_ended_and_not_started_again() {
    let world = World::new();
    let rest = vec![
        line(START, 0, ""),
        started(&[STARTED, ENDED]),
        line("GET /health", 204, ""),
    ];
    let (provider, sandbox) = ready(&world, rest).await;
    let error = try_run(&*sandbox, sh("true")).await.err().unwrap();
    assert!(matches!(error, SandboxError::Operation { .. }), "{error}");
    let starts: Vec<String> = {
        let heard = provider.heard.lock().unwrap();
        heard
            .iter()
            .filter(|request| request.starts_with(START))
            .cloned()
            .collect()
    };
    let [_, _, lost, ending] = starts.as_slice() else {
        panic!("{starts:?}");
    };
    let mark = format!("{}-1", sandbox.id());
    assert!(lost.contains(&mark) && ending.contains(&mark));
    assert!(ending.contains("kill -9"));
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_7_calls_are_of_http_1_and_16_by_no_browser() {
    let world = World::new();
    let (provider, sandbox) = ready(&world, Vec::new()).await;
    sandbox.kill().await.unwrap();
    for request in provider.heard.lock().unwrap().iter() {
        let request = request.to_ascii_lowercase();
        assert!(request.lines().next().unwrap().ends_with(" http/1.1"));
        assert!(request.contains("user-agent: dressage/"));
        for word in ["mozilla", "chrome", "safari", "firefox", "edge", "opera", "msie"] {
            assert!(!request.contains(word), "{request}");
        }
    }
}

#[tokio::test]
async fn trap_10_a_program_that_its_providers_deadline_ended_was_killed() {
    let world = World::new();
    let over = r#"{"error":{"code":"deadline_exceeded","message":"context deadline exceeded"}}"#;
    let cut = stream(&[STARTED], false);
    let length = char::from(u8::try_from(over.len()).unwrap());
    let rest = vec![line(START, 200, &format!("{cut}\u{2}\0\0\0{length}{over}"))];
    let (_provider, sandbox) = ready(&world, rest).await;
    let ran = try_run(&*sandbox, sh("true")).await.unwrap();
    assert_eq!((ran.exit.code, ran.exit.signal), (137, Some(9)));
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_12_a_sandbox_that_is_not_there_any_more_is_ended() {
    let world = World::new();
    let gone = line(
        "DELETE /sandboxes/i7",
        404,
        r#"{"code":404,"message":"not found"}"#,
    );
    let (_provider, sandbox) = ready(&world, vec![gone]).await;
    sandbox.kill().await.unwrap();
    assert!(leases(&world).is_empty());
}

#[tokio::test]
async fn trap_14_a_sandbox_that_expires_under_a_program_is_gone_and_the_program_did_not_end_well() {
    let world = World::new();
    let gone = r#"{"sandboxId":"i7","message":"The sandbox was not found","code":502}"#;
    let rest = vec![
        line(START, 200, &stream(&[STARTED], false)),
        line("GET /health", 502, gone),
    ];
    let (_provider, sandbox) = ready(&world, rest).await;
    let error = try_run(&*sandbox, sh("true")).await.err().unwrap();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_ends_without_the_end_of_its_program_is_no_success() {
    let world = World::new();
    let vanished = r#"{"code":"not_found","message":"process with pid 77 not found"}"#;
    let rest = vec![
        // A clean end of the stream, and no word of the program's.
        line(START, 200, &stream(&[STARTED], true)),
        line("GET /health", 204, ""),
        line("POST /process.Process/Connect", 404, vanished),
    ];
    let (_provider, sandbox) = ready(&world, rest).await;
    let error = try_run(&*sandbox, sh("true")).await.err().unwrap();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_15_a_file_is_written_whatever_type_the_answer_has() {
    let world = World::new();
    let written = r#"[{"name":"a","path":"/home/user/a","type":"file"}]"#.to_owned();
    let rest = vec![
        (
            "POST /files",
            200,
            "Content-Type: text/plain; charset=utf-8\r\n",
            written,
        ),
        started(&[STARTED, ENDED]),
    ];
    let (provider, sandbox) = ready(&world, rest).await;
    sandbox.write_file("a", bytes("content"), 0o644).await.unwrap();
    assert!(last(&provider, "POST /files").ends_with("content"));
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_17_a_limit_of_envd_is_told_and_not_tried_again() {
    let world = World::new();
    let limited = r#"{"code":429,"message":"The sandbox has too many concurrent incoming connections"}"#;
    let rest = vec![
        line(START, 429, limited),
        // What might have been started is ended.
        started(&[STARTED, ENDED]),
        line("GET /health", 204, ""),
    ];
    let (_provider, sandbox) = ready(&world, rest).await;
    let output = Arc::new(Output::default());
    let error = sandbox.start(sh("true"), output).await.err().unwrap();
    assert!(error.to_string().contains("too many concurrent"), "{error}");
    sandbox.kill().await.unwrap();
}

#[tokio::test]
async fn trap_18_a_template_too_old_to_be_secured_is_named() {
    let world = World::new();
    let old = r#"{"code":400,"message":"Template is not compatible with secured access"}"#;
    let provider = Scripted::start(vec![line("POST /v2/sandboxes", 400, old)]).await;
    let error = backend(&provider.config(&world))
        .create(spec())
        .await
        .err()
        .unwrap();
    assert!(matches!(error, SandboxError::Unavailable { .. }), "{error}");
    assert!(
        error.to_string().contains("not compatible with secured access"),
        "{error}"
    );
    assert!(leases(&world).is_empty());
}
