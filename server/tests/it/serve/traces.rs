use super::server::{Server, Setup, failing, quick, with};
use dressage_testkit::closed::ClosedPort;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What came in a request: its head and its body.
#[derive(Clone, Debug)]
struct Received {
    path: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// A server that keeps what is posted to it. It answers with given statuses, the last of them again and again.
struct Collector {
    address: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    fn answering(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let kept = received.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let kept = kept.clone();
                std::thread::spawn(
                    move || while let Some(()) = answer(stream.as_ref().unwrap(), statuses, &kept) {},
                );
            }
        });
        Self { address, received }
    }

    fn setup(&self) -> Setup {
        Setup::new()
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", self.address))
            .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
            .variable("OTEL_BSP_SCHEDULE_DELAY", "50")
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Every span, in the order of arrival.
    fn spans(&self) -> Vec<Value> {
        let mut spans = Vec::new();
        for request in self.received() {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let groups = body["resourceSpans"][0]["scopeSpans"].as_array().unwrap().clone();
            for group in groups {
                assert_eq!(group["scope"]["name"], "dressage");
                spans.extend(group["spans"].as_array().unwrap().iter().cloned());
            }
        }
        spans
    }
}

fn answer(stream: &TcpStream, statuses: &[u16], kept: &Mutex<Vec<Received>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    let number = {
        let mut kept = kept.lock().unwrap();
        kept.push(Received { path, headers, body });
        kept.len() - 1
    };
    let status = statuses[number.min(statuses.len() - 1)];
    let head = format!(
        "HTTP/1.1 {status} x\r\nretry-after: 0\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    (&*stream).write_all(head.as_bytes()).ok()
}

/// The attributes of a span, as plain JSON.
fn attributes(span: &Value) -> BTreeMap<String, Value> {
    let plain = |value: &Value| {
        let (form, value) = value.as_object().unwrap().iter().next().unwrap();
        match form.as_str() {
            "intValue" => value.as_str().unwrap().parse::<i64>().unwrap().into(),
            "arrayValue" => {
                let values = value["values"].as_array().unwrap().iter();
                values.map(|value| value["stringValue"].clone()).collect()
            }
            _ => value.clone(),
        }
    };
    let pairs = span["attributes"].as_array().unwrap().iter();
    let made: BTreeMap<_, _> = pairs
        .clone()
        .map(|pair| (pair["key"].as_str().unwrap().to_owned(), plain(&pair["value"])))
        .collect();
    assert_eq!(made.len(), pairs.len(), "each name once: {span}");
    made
}

/// The names of spans below the one of an id, each with those below it, in the order of time.
fn tree(spans: &[Value], parent: &Value) -> Vec<Value> {
    let mut below: Vec<_> = spans
        .iter()
        .filter(|span| span["parentSpanId"] == *parent)
        .collect();
    below.sort_by_key(|span| {
        span["startTimeUnixNano"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    let name = |span: &&Value| match tree(spans, &span["spanId"]) {
        below if below.is_empty() => span["name"].clone(),
        below => json!([span["name"], below]),
    };
    below.iter().map(name).collect()
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found: Vec<_> = spans.iter().filter(|span| span["name"] == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

fn end(mut server: Server) {
    server.end(Signal::SIGTERM).expect(0);
}

#[test]
fn a_rollout_is_a_trace_of_its_stages_and_calls() {
    let collector = Collector::answering(&[200]);
    let server = collector
        .setup()
        .variable(
            "OTEL_EXPORTER_OTLP_HEADERS",
            "api-key=secret%20of%20the%20collector",
        )
        .variable("OTEL_SERVICE_NAME", "trainer")
        .variable("OTEL_RESOURCE_ATTRIBUTES", "team=a")
        .scripted_agent()
        .start();
    let id = server.submit_one(&quick());
    let rollout = server.ended(&id);
    let calls = server
        .get(&format!("/api/v1/rollouts/{id}/calls"))
        .expect(200)
        .json();
    let calls = calls["calls"].as_array().unwrap().clone();
    let said = server.said();
    end(server);

    let spans = collector.spans();
    let model = rollout["model"].as_str().unwrap();
    let chat = format!("chat {model}");
    let chats = vec![json!(chat); calls.len()];
    assert_eq!(
        json!(tree(&spans, &Value::Null)),
        json!([[
            "rollout",
            [
                "boot",
                "setup",
                ["agent", [["invoke_agent opencode", chats]]],
                "verify",
                "collect"
            ]
        ]])
    );
    for span in &spans {
        assert_eq!(span["traceId"], id.replace('-', ""));
        let times = ["startTimeUnixNano", "endTimeUnixNano"]
            .map(|key| span[key].as_str().unwrap().parse::<u64>().unwrap());
        assert!(times[0] <= times[1], "{span}");
        assert_eq!(span["status"], json!({}), "{span}");
    }

    let root = named(&spans, "rollout");
    assert_eq!((root["kind"].clone(), root.get("parentSpanId")), (json!(1), None));
    let of_root = attributes(root);
    for (name, value) in [
        ("dressage.rollout.id", &rollout["id"]),
        ("dressage.rollout.group", &rollout["group"]),
        ("dressage.rollout.sample", &rollout["sample"]),
        ("dressage.rollout.ended", &json!("completed")),
        ("dressage.reward", &json!(1.0)),
        ("dressage.sandbox.backend", &rollout["backend"]),
        ("dressage.endpoint", &json!("demo")),
        ("gen_ai.agent.name", &json!("opencode")),
        ("gen_ai.request.model", &json!(model)),
        ("dressage.calls", &json!(calls.len())),
        ("dressage.tokens.prompt", &rollout["totals"]["prompt_tokens"]),
        (
            "dressage.tokens.completion",
            &rollout["totals"]["completion_tokens"],
        ),
    ] {
        assert_eq!(of_root.get(name), Some(value), "{name}: {of_root:#?}");
    }
    assert!(!of_root.contains_key("error.type"));

    let of_agent = attributes(named(&spans, "invoke_agent opencode"));
    for (name, value) in [
        ("gen_ai.operation.name", json!("invoke_agent")),
        ("gen_ai.provider.name", json!("openai")),
        ("gen_ai.agent.name", json!("opencode")),
        ("process.exit.code", json!(0)),
    ] {
        assert_eq!(of_agent.get(name), Some(&value), "{of_agent:#?}");
    }

    let mut exchanges: Vec<_> = spans.iter().filter(|span| span["name"] == chat).collect();
    exchanges.sort_by_key(|span| attributes(span)["dressage.call.index"].as_i64());
    for (span, call) in exchanges.into_iter().zip(&calls) {
        assert_eq!(span["kind"], 3);
        let meta = &call["meta"];
        let (of_call, start) = (attributes(span), meta["started_unix_ms"].as_u64().unwrap());
        assert_eq!(span["startTimeUnixNano"], (start * 1_000_000).to_string());
        let took = meta["duration_ms"].as_u64().unwrap();
        assert_eq!(span["endTimeUnixNano"], ((start + took) * 1_000_000).to_string());
        for (name, value) in [
            ("gen_ai.operation.name", &json!("chat")),
            ("gen_ai.provider.name", &json!("openai")),
            ("gen_ai.request.model", &json!(model)),
            ("gen_ai.response.model", &meta["model"]),
            ("gen_ai.usage.input_tokens", &meta["usage"]["prompt_tokens"]),
            ("gen_ai.usage.output_tokens", &meta["usage"]["completion_tokens"]),
            ("gen_ai.request.top_p", &meta["sampling"]["top_p"]),
            ("server.address", &json!("127.0.0.1")),
            ("http.response.status_code", &json!(200)),
            ("dressage.call.id", &call["id"]),
            ("dressage.call.purpose", &call["purpose"]),
            ("dressage.call.level", &json!("tokens")),
        ] {
            assert_eq!(of_call.get(name), Some(value), "{name}: {of_call:#?}");
        }
        assert!(of_call["server.port"].as_u64().unwrap() > 0);
        let reasons = &of_call["gen_ai.response.finish_reasons"];
        assert!(
            [json!(["tool_calls"]), json!(["stop"])].contains(reasons),
            "{reasons}"
        );
    }

    for request in collector.received() {
        assert_eq!(request.path, "/v1/traces");
        assert_eq!(request.headers["api-key"], "secret of the collector");
        assert_eq!(request.headers["content-type"], "application/json");
        let text = String::from_utf8(request.body).unwrap();
        let body: Value = serde_json::from_str(&text).unwrap();
        let resource = attributes(&body["resourceSpans"][0]["resource"]);
        assert_eq!(
            (&resource["service.name"], &resource["team"]),
            (&json!("trainer"), &json!("a"))
        );
        let instruction = rollout["start"]["task"]["instruction"].as_str().unwrap();
        for private in [&instruction[..30], "def binary_search", "secret"] {
            assert!(!text.contains(private), "{private}: {text}");
        }
    }
    assert!(!said.contains("secret"), "{said}");
}

#[test]
fn what_failed_is_marked_in_a_trace_with_its_code() {
    let collector = Collector::answering(&[200]);
    let refusing = Collector::answering(&[429]);
    let server = collector.setup().scripted_agent().start();
    let in_setup = server.submit_one(&failing());
    server.ended(&in_setup);
    let url = format!("http://{}/v1", refusing.address);
    let spec = json!({"task": {"instruction": "x"}, "base_url": url, "model": "m", "api_key": "k-k-k-k-k"});
    let refused = server.submit_one(&spec);
    let ended = server.ended(&refused);
    end(server);

    let spans = collector.spans();
    let of = |id: &str| -> Vec<Value> {
        let trace = id.replace('-', "");
        spans
            .iter()
            .filter(|span| span["traceId"] == trace)
            .cloned()
            .collect()
    };
    let first = of(&in_setup);
    assert_eq!(
        tree(&first, &Value::Null),
        [json!(["rollout", ["boot", "setup", "collect"]])]
    );
    for (name, error) in [
        ("rollout", Some("setup_command_failed")),
        ("setup", Some("setup_command_failed")),
        ("boot", None),
    ] {
        let span = named(&first, name);
        assert_eq!(attributes(span).get("error.type").and_then(Value::as_str), error);
        assert_eq!(span["status"]["code"].as_u64(), error.map(|_| 2));
    }
    assert_eq!(
        attributes(named(&first, "rollout"))["dressage.fault.owner"],
        "task"
    );

    let second = of(&refused);
    let chats: Vec<_> = second.iter().filter(|span| span["name"] == "chat m").collect();
    assert!(!chats.is_empty());
    let port: u64 = refusing.address.rsplit(':').next().unwrap().parse().unwrap();
    for chat in chats {
        let of_chat = attributes(chat);
        assert_eq!(
            (&of_chat["error.type"], &of_chat["server.port"]),
            (&json!("429"), &json!(port))
        );
        assert_eq!(of_chat["dressage.call.end"], "upstream_error");
        assert_eq!(chat["status"]["code"], 2);
        assert!(!of_chat.contains_key("gen_ai.usage.input_tokens"));
    }
    let code = &ended["outcome"]["fault"]["code"];
    for name in ["rollout", "agent", "invoke_agent opencode"] {
        assert_eq!(
            attributes(named(&second, name)).get("error.type"),
            Some(code),
            "{name}"
        );
    }
    assert!(
        !collector
            .received()
            .iter()
            .any(|sent| String::from_utf8_lossy(&sent.body).contains("k-k-k-k-k"))
    );
}

#[test]
fn a_hold_is_a_span_of_its_own() {
    let collector = Collector::answering(&[200]);
    let server = collector.setup().scripted_agent().start();
    let id = server.submit_one(&with(quick(), json!({"hold": true})));
    server.until(&id, "held");
    server
        .post(&format!("/api/v1/rollouts/{id}/finish"), &json!({"reward": 0.5}))
        .expect(202);
    server.ended(&id);
    end(server);
    let spans = collector.spans();
    let hold = named(&spans, "hold");
    assert_eq!(hold["parentSpanId"], named(&spans, "rollout")["spanId"]);
    assert_eq!(attributes(hold)["dressage.hold.released_by"], "caller");
    assert_eq!(attributes(named(&spans, "rollout"))["dressage.reward"], 0.5);
}

#[test]
fn a_batch_that_is_refused_for_now_is_sent_again_and_one_that_is_refused_for_good_is_not() {
    let collector = Collector::answering(&[503, 429, 200]);
    let server = collector.setup().start();
    let id = server.submit_one(&failing());
    server.ended(&id);
    server.eventually("a third request", || {
        (collector.received().len() >= 3).then_some(())
    });
    end(server);
    let received = collector.received();
    assert_eq!(received[0].body, received[1].body);
    assert_eq!(received[0].body, received[2].body);

    let collector = Collector::answering(&[400]);
    let server = collector.setup().start();
    let ids = [server.submit_one(&failing()), server.submit_one(&failing())];
    for id in &ids {
        server.ended(id);
    }
    server.eventually("what is said of it", || {
        server.said().contains("could not be sent").then_some(())
    });
    let said = server.said();
    assert!(said.contains("the collector answered 400"), "{said}");
    end(server);
    let spans = collector.spans();
    let mut seen: Vec<_> = spans.iter().map(|span| span["spanId"].to_string()).collect();
    seen.sort();
    let all = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), all, "none was sent twice");
}

#[test]
fn a_collector_that_cannot_be_reached_costs_a_rollout_nothing() {
    // One that takes connections and never answers, and one that takes none.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = ClosedPort::take().unwrap();
    for address in [silent.local_addr().unwrap(), closed.address()] {
        let mut server = Setup::new()
            .arguments(&["--grace", "1"])
            .variable("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{address}"))
            .variable("OTEL_BSP_SCHEDULE_DELAY", "1")
            .start();
        for _ in 0..3 {
            let id = server.submit_one(&failing());
            assert_eq!(server.ended(&id)["ended"], "setup_error");
        }
        let began = Instant::now();
        let ran = server.end(Signal::SIGTERM).expect(0);
        assert!(began.elapsed() < Duration::from_secs(30), "{address}");
        assert_eq!(
            ran.err.matches("export: traces ").count(),
            1,
            "said once: {}",
            ran.err
        );
    }
}

#[test]
fn the_binary_form_is_sent_where_nobody_asks_for_another_and_wrong_variables_do_not_keep_it_from_starting() {
    let collector = Collector::answering(&[200]);
    let server = Setup::new()
        .variable(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            &format!("http://{}/spans", collector.address),
        )
        .start();
    let id = server.submit_one(&failing());
    server.ended(&id);
    end(server);
    let received = collector.received();
    assert_eq!(received.len(), 1, "what waited was sent at the end");
    assert_eq!(received[0].path, "/spans");
    assert_eq!(received[0].headers["content-type"], "application/x-protobuf");
    let id: Vec<u8> = id
        .replace('-', "")
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    assert!(received[0].body.windows(16).any(|window| window == id));

    let server = Setup::new()
        .variable("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
        .variable("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .start();
    assert!(
        server.said().contains("OTEL_EXPORTER_OTLP_PROTOCOL"),
        "{}",
        server.said()
    );
    end(server);
}
