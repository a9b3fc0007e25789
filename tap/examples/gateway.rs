//! The tap behind a listener, for tests with clients of any dialect: `gateway --upstream URL [--keep-alive-ms N]`.
//!
//! Prints a line of JSON with its `url` (without a version) and the `key` that it asks for, and then one for each call
//! that has ended. Ends when its standard input does.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a program for tests ends at the first surprise"
)]

use dressage_tap::{AllowedHosts, CallSink, Endpoint, Gateway, Health, Session, SessionConfig, Upstream};
use dressage_wire::call::Call;
use dressage_wire::ids::{CallId, RolloutId};
use secrecy::ExposeSecret;
use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Prints what matters of each call.
#[derive(Default)]
struct Printed {
    /// Ids of the call that ended last: prompt and completion.
    last: Mutex<Vec<u32>>,
}

impl CallSink for Printed {
    fn started(&self, _call: CallId) {}

    fn finished(&self, call: Call) {
        let completion = call.completions.first();
        let prompt = call.prompt_token_ids.unwrap_or_default();
        let sampled = completion
            .map(|choice| choice.token_ids.clone())
            .unwrap_or_default();
        let mut last = self.last.lock().unwrap();
        let goes_on = !last.is_empty() && prompt.starts_with(&last);
        *last = [prompt.as_slice(), sampled.as_slice()].concat();
        let line = serde_json::json!({
            "meta": call.meta,
            "request": String::from_utf8_lossy(&call.request),
            "response": String::from_utf8_lossy(&call.response),
            "prompt_ids": prompt.len(),
            "sampled_ids": sampled.len(),
            // Whether the prompt begins with all of the call before.
            "goes_on": goes_on,
        });
        println!("{line}");
    }
}

fn main() {
    let (mut upstream, mut keep_alive_ms) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        match argument.as_str() {
            "--upstream" => upstream = value,
            "--keep-alive-ms" => keep_alive_ms = value.map(|value| value.parse().expect("a number")),
            _ => panic!("usage: gateway --upstream URL [--keep-alive-ms N]"),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let upstream = Upstream::new(Endpoint::at("scripted", upstream.expect("--upstream"))).unwrap();
        let mut config = SessionConfig::new(RolloutId::new(), upstream);
        config.keep_alive = keep_alive_ms.map(Duration::from_millis).or(config.keep_alive);
        let session = Session::new(config, Arc::new(Printed::default())).unwrap();
        let hosts = AllowedHosts::Named(Vec::new());
        let gateway = Gateway::bind("127.0.0.1:0".parse().unwrap(), hosts, || Health::Ok)
            .await
            .unwrap();
        gateway.admit(&session);
        session.open();
        let (url, token) = (format!("http://{}", gateway.address()), session.token());
        println!(
            "{}",
            serde_json::json!({"url": url, "key": token.expose_secret()})
        );
        let stop = CancellationToken::new();
        let mut serving = std::pin::pin!(gateway.serve(stop.clone()));
        let (ended, end_of_input) = oneshot::channel();
        std::thread::spawn(move || {
            _ = std::io::stdin().read_to_end(&mut Vec::new());
            _ = ended.send(());
        });
        tokio::select! {
            () = serving.as_mut() => {}
            _ = end_of_input => {}
        }
        session.close().await;
    });
}
