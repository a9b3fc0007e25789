use super::client::{Events, Reply, Request};
use super::server::{Server, Setup, failing, hanging, quick, with};
use super::socket::{Socket, upgrade};
use crate::support::Place;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const BOTH: &str = "application/json, text/event-stream";
const VERSION: &str = "2025-06-18";

fn message(id: u64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn hello() -> Value {
    let params = json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
    message(1, "initialize", params)
}

/// A client of MCP over streamable HTTP.
struct Client<'a> {
    server: &'a Server,
    session: String,
}

impl<'a> Client<'a> {
    #[track_caller]
    fn connect(server: &'a Server) -> Self {
        let open = server
            .request("POST", "/mcp")
            .header("accept", BOTH)
            .json(&hello())
            .open()
            .expect(200);
        let session = open.header("mcp-session-id").unwrap().to_owned();
        let answer = Events::of(open).next().unwrap().data;
        assert_eq!(answer["result"]["serverInfo"]["name"], "dressage");
        assert_eq!(answer["result"]["protocolVersion"], VERSION);
        let client = Self { server, session };
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        client.request("POST").json(&ready).send().expect(202);
        client
    }

    fn request(&self, method: &str) -> Request {
        let request = self.server.request(method, "/mcp").header("accept", BOTH);
        request
            .header("mcp-session-id", &self.session)
            .header("mcp-protocol-version", VERSION)
    }

    fn open(&self, message: &Value) -> Events {
        Events::of(self.request("POST").json(message).open())
    }

    #[track_caller]
    fn ask(&self, method: &str, params: Value) -> Value {
        let answer = self.open(&message(7, method, params)).next().unwrap().data;
        assert_eq!(answer["id"], 7, "{answer}");
        answer
    }

    /// Calls a tool and gives its structured result.
    #[track_caller]
    fn call(&self, name: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        let result = &answer["result"];
        assert_ne!(result["isError"], true, "{answer}");
        let text = result["content"][0]["text"].as_str().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(text).unwrap(),
            result["structuredContent"]
        );
        result["structuredContent"].clone()
    }

    /// Calls a tool that fails; the failure, in the shape that REST has.
    #[track_caller]
    fn fail(&self, name: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({"name": name, "arguments": arguments}));
        let result = &answer["result"];
        assert_eq!(result["isError"], true, "{answer}");
        // Clients hold it against the output schema, failure or not.
        assert_eq!(result.get("structuredContent"), None, "{answer}");
        let text = result["content"][0]["text"].as_str().unwrap();
        serde_json::from_str::<Value>(text).unwrap()["error"].clone()
    }
}

#[test]
fn tools_are_listed_with_schemas_and_do_what_they_say() {
    let server = Setup::new().scripted_agent().start();
    let client = Client::connect(&server);
    let tools = client.ask("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<_> = tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "run_rollout",
            "start_rollout",
            "get_rollout",
            "list_rollouts",
            "cancel_rollout"
        ]
    );
    for tool in tools.as_array().unwrap() {
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{}", tool["name"]);
            // A schema stands alone here: what it refers to in the OpenAPI document is not there.
            assert!(!tool[schema].to_string().contains("\"$ref\""), "{tool}");
        }
        assert!(tool["description"].as_str().is_some_and(|text| !text.is_empty()));
    }

    let started = client.call("start_rollout", with(quick(), json!({"n": 2})));
    let ids: Vec<_> = started["rollouts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rollout| rollout["id"].clone())
        .collect();
    assert_eq!(ids.len(), 2);
    let ended = server.eventually("its end", || {
        let rollout = client.call("get_rollout", json!({"id": ids[0], "wait_s": 50}));
        (rollout["state"] == "finished").then_some(rollout)
    });
    assert_eq!(
        (&ended["reward"], &ended["ended"]),
        (&json!(1.0), &json!("completed"))
    );
    assert!(ended["files"]["binary_search.py"].is_string());
    assert_eq!(ended["verify"][0]["exit_code"], 0);

    let hanging = client.call("start_rollout", hanging())["rollouts"][0]["id"].clone();
    server.until(hanging.as_str().unwrap(), "command_started");
    let live = client.call("get_rollout", json!({"id": hanging, "wait_s": 0.05}));
    assert_eq!(
        (&live["state"], &live["stage"], &live["reward"]),
        (&json!("running"), &json!("setup"), &Value::Null)
    );
    client.call("cancel_rollout", json!({"id": hanging}));
    let over = client.call("get_rollout", json!({"id": hanging, "wait_s": 50}));
    assert_eq!(over["ended"], "cancelled");
    assert_eq!(
        client.call("cancel_rollout", json!({"id": hanging}))["ended"],
        "cancelled"
    );

    let page = client.call("list_rollouts", json!({"limit": 1}));
    assert_eq!(
        (&page["rollouts"][0]["id"], &page["next_cursor"]),
        (&hanging, &hanging)
    );
    let next = client.call(
        "list_rollouts",
        json!({"state": "finished", "cursor": page["next_cursor"]}),
    );
    assert_eq!(
        (next["rollouts"].as_array().unwrap().len(), &next["next_cursor"]),
        (2, &Value::Null)
    );

    for (tool, arguments, code, place) in [
        (
            "start_rollout",
            json!({"presett": "x"}),
            "invalid_request",
            json!("presett"),
        ),
        (
            "start_rollout",
            json!({"task": {"instruction": "x", "agent": {"nam": 1}}}),
            "invalid_request",
            json!("task.agent.nam"),
        ),
        (
            "run_rollout",
            with(failing(), json!({"n": 2})),
            "invalid_request",
            json!("n"),
        ),
        (
            "run_rollout",
            with(failing(), json!({"endpoint": "nope"})),
            "endpoint_unusable",
            Value::Null,
        ),
        ("get_rollout", json!({}), "invalid_request", json!("id")),
        ("get_rollout", json!({"id": 7}), "invalid_request", json!("id")),
        ("get_rollout", json!({"id": "x"}), "unknown_rollout", Value::Null),
        (
            "get_rollout",
            json!({"id": hanging, "wait_s": 51}),
            "invalid_request",
            json!("wait_s"),
        ),
        (
            "cancel_rollout",
            json!({"id": "../x"}),
            "unknown_rollout",
            Value::Null,
        ),
        (
            "list_rollouts",
            json!({"limit": 101}),
            "invalid_request",
            json!("limit"),
        ),
        (
            "list_rollouts",
            json!({"nope": 1}),
            "invalid_request",
            json!("nope"),
        ),
        (
            "list_rollouts",
            json!({"state": "done"}),
            "invalid_request",
            json!("state"),
        ),
    ] {
        let error = client.fail(tool, arguments.clone());
        assert_eq!(error["code"], code, "{tool} {arguments} {error}");
        assert_eq!(error["details"][0]["path"], place, "{tool} {arguments} {error}");
    }
    let unknown = client.ask("tools/call", json!({"name": "nope", "arguments": {}}));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

#[test]
fn a_rollout_tells_its_progress_and_is_cancelled_with_its_call() {
    let server = Setup::new().scripted_agent().start();
    let client = Client::connect(&server);
    let call = |id: u64, arguments: Value| {
        let params =
            json!({"name": "run_rollout", "arguments": arguments, "_meta": {"progressToken": "p-1"}});
        message(id, "tools/call", params)
    };
    let told: Vec<_> = client.open(&call(8, quick())).map(|sent| sent.data).collect();
    let (answer, progress) = told.split_last().unwrap();
    assert_eq!(
        (&answer["id"], &answer["result"]["structuredContent"]["reward"]),
        (&json!(8), &json!(1.0))
    );
    let mut before = 0.0;
    let mut messages = Vec::new();
    for notification in progress {
        assert_eq!(notification["method"], "notifications/progress");
        let params = &notification["params"];
        assert_eq!(params["progressToken"], "p-1");
        let now = params["progress"].as_f64().unwrap();
        assert!(now > before);
        before = now;
        messages.push(params["message"].as_str().unwrap());
    }
    for part in ["queued", "boot", "agent", "verify", "reward 1"] {
        assert!(messages.contains(&part), "{part}: {messages:?}");
    }
    assert!(
        messages
            .iter()
            .filter(|message| message.starts_with("call "))
            .count()
            >= 3,
        "{messages:?}"
    );

    let only = |server: &Server| {
        let id = server.eventually("a rollout", || {
            let listed = server.get("/api/v1/rollouts?state=running").expect(200).json();
            Some(listed["rollouts"][0]["id"].as_str()?.to_owned())
        });
        server.until(&id, "command_started");
        id
    };
    let mut running = client.open(&call(9, hanging()));
    let id = only(&server);
    running.until(|sent| sent.data["params"]["message"] == "setup");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9, "reason": "x"}});
    client.request("POST").json(&cancel).send().expect(202);
    assert_eq!(server.ended(&id)["ended"], "cancelled");

    // Without a session: whoever drops the call wants its rollout no longer.
    let session_of_another = Client::connect(&server);
    let running = session_of_another.open(&call(10, hanging()));
    let id = only(&server);
    drop(running);
    // It may come back for the answer; the end of its session is the end of its calls.
    let ended = session_of_another.request("DELETE").send();
    assert_eq!(ended.status, 204, "{}", ended.text());
    assert_eq!(server.ended(&id)["ended"], "cancelled");
}

/// Whether a reply is one of OpenEnv's JSON-RPC.
fn is_openenv(reply: &Reply) -> bool {
    reply.status == 200
        && reply.header("content-type") == Some("application/json")
        && reply.json()["error"]["message"] == "Method not found: initialize"
}

#[test]
fn one_rule_says_which_request_is_whose() {
    let server = Server::plain();
    let post = |headers: &[(&str, &str)]| {
        let request = server.request("POST", "/mcp").json(&hello());
        headers
            .iter()
            .fold(request, |request, (name, value)| request.header(name, value))
    };
    for openenv in [
        &[][..],
        &[("accept", "*/*")],
        &[("accept", "application/json")],
        &[("accept", "application/*;q=0.5, text/html")],
        &[("accept", "text/event-streams")],
    ] {
        let reply = post(openenv).send();
        assert!(is_openenv(&reply), "{openenv:?} {}", reply.text());
    }
    for accept in [BOTH, "Text/Event-Stream;q=0.9, application/json"] {
        let open = post(&[("accept", accept)]).open();
        assert!(open.header("mcp-session-id").is_some(), "{accept}");
        assert_eq!(open.status, 200);
    }
    // What names MCP in another way is MCP's too, and told so where it asks wrongly.
    for mcp in [
        &[("accept", "text/event-stream")][..],
        &[("mcp-session-id", "x")],
        &[("mcp-protocol-version", VERSION)],
        &[("accept", BOTH), ("mcp-session-id", "x")],
    ] {
        let reply = post(mcp).send();
        assert!(
            (400..500).contains(&reply.status),
            "{mcp:?} {} {}",
            reply.status,
            reply.text()
        );
    }
    for (method, allowed) in [
        ("GET", true),
        ("DELETE", true),
        ("PUT", true),
        ("PATCH", true),
        ("HEAD", true),
    ] {
        let reply = server.request(method, "/mcp").send();
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, allowed.then_some("POST")),
            "{method}"
        );
        if method != "HEAD" {
            assert_eq!(reply.json(), json!({"detail": "Method Not Allowed"}));
        }
    }
    let client = Client::connect(&server);
    let stream = client.request("GET").open();
    assert_eq!(
        (stream.status, stream.header("content-type")),
        (200, Some("text/event-stream"))
    );
    let stream = server
        .request("GET", "/mcp")
        .header("accept", "text/event-stream")
        .open();
    assert!(
        (400..500).contains(&stream.status),
        "without a session: {}",
        stream.status
    );
    let ended = client.request("DELETE").send();
    assert_eq!(ended.status, 204, "{}", ended.text());
    let late = client
        .request("POST")
        .json(&message(2, "tools/list", json!({})))
        .send();
    assert!((400..500).contains(&late.status), "{}", late.status);

    for accept in ["*/*", BOTH] {
        let mut socket = Socket::of(upgrade(server.request("GET", "/mcp").header("accept", accept)).open());
        let answer = socket.ask(&hello());
        assert_eq!(answer["error"]["code"], -32601, "{answer}");
        socket.close();
    }
}

#[test]
fn a_client_that_asks_wrongly_is_told_and_harms_nobody() {
    let server = Server::plain();
    let client = Client::connect(&server);
    for body in ["", "{", "[]", "7", "{}"] {
        let reply = client.request("POST").body("application/json", body).send();
        assert!(
            (400..500).contains(&reply.status),
            "{body:?} {} {}",
            reply.status,
            reply.text()
        );
    }
    let reply = client
        .request("POST")
        .body("application/json", vec![b' '; 100_000_000])
        .send();
    assert_eq!(reply.status, 413, "{}", reply.text());
    let text = client
        .request("POST")
        .body("text/plain", hello().to_string())
        .send();
    assert_eq!(text.status, 415);
    assert!(client.ask("tools/list", json!({}))["result"].is_object());
}

/// `dressage mcp`.
struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    fn start(place: &Place) -> Self {
        let mut command = place.command(&["mcp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(place.path("mcp.err")).unwrap());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output }
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_client_that_starts_the_program_speaks_over_its_standard_input_and_output() {
    let place = Place::new();
    let mut client = Program::start(&place);
    client.say(&hello());
    assert_eq!(client.hear()["result"]["serverInfo"]["name"], "dressage");
    client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    client.say(&message(2, "tools/list", json!({})));
    assert_eq!(client.hear()["result"]["tools"].as_array().unwrap().len(), 5);
    let call = |id: u64, arguments: Value| {
        message(
            id,
            "tools/call",
            json!({"name": "run_rollout", "arguments": arguments, "_meta": {"progressToken": 5}}),
        )
    };
    client.say(&call(3, failing()));
    let mut progress = 0;
    let ended = loop {
        let heard = client.hear();
        if heard["id"] == 3 {
            break heard;
        }
        assert_eq!(
            (&heard["method"], &heard["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!(5))
        );
        progress += 1;
    };
    assert!(progress >= 3);
    assert_eq!(ended["result"]["structuredContent"]["ended"], "setup_error");

    client.say(&call(4, hanging()));
    while client.hear()["params"]["message"] != "setup" {}
    client.say(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 4}}));
    client.say(&call(5, hanging()));
    while client.hear()["params"]["message"] != "setup" {}
    // Its end is the end of what it runs.
    client.input.take();
    assert!(client.child.wait().unwrap().success());
    let listed = place.run(&["list", "--json"]).expect(0).out;
    let ended: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["ended"].clone())
        .collect();
    assert_eq!(ended, ["cancelled", "cancelled", "setup_error"]);
    for folder in ["homes", "leases"] {
        let left = std::fs::read_dir(place.data().join(folder)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{folder}");
    }
    assert_eq!(std::fs::read_to_string(place.path("mcp.err")).unwrap(), "");
}

#[test]
fn what_is_no_message_on_standard_input_does_not_end_it() {
    let place = Place::new();
    let mut client = Program::start(&place);
    client.say(&hello());
    client.hear();
    client.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    for line in ["nonsense", "", "{\"jsonrpc\": \"2.0\"}", "[1]"] {
        writeln!(client.input.as_mut().unwrap(), "{line}").unwrap();
    }
    client.say(&message(9, "tools/list", json!({})));
    loop {
        let heard = client.hear();
        if heard["id"] == 9 {
            break;
        }
        assert!(heard["error"].is_object(), "{heard}");
    }
}
