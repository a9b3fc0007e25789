use super::client::{Open, Reply};
use super::server::{Server, Setup};
use super::socket::{Socket, upgrade};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use tungstenite::Message;

/// A call of the tool whose rollout fails in its setup at once.
fn failing_call() -> Value {
    json!({"endpoint": "demo", "instruction": "x", "setup": ["false"], "task_id": "t-1"})
}

/// One whose rollout stays in its setup.
fn hanging_call() -> Value {
    json!({"endpoint": "demo", "instruction": "x", "setup": ["sleep 100"]})
}

fn step(tool: &str, arguments: Value) -> Value {
    json!({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}})
}

fn request(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

#[track_caller]
fn rpc(server: &Server, method: &str, params: Value) -> Value {
    answer(&server.post("/mcp", &request(method, params)))
}

#[track_caller]
fn answer(reply: &Reply) -> Value {
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (200, Some("application/json"))
    );
    let answer = reply.json();
    assert_eq!(answer["jsonrpc"], "2.0");
    assert!(
        answer.get("result").is_some() != answer.get("error").is_some(),
        "{answer}"
    );
    answer
}

#[track_caller]
fn create(server: &Server) -> String {
    let created = rpc(server, "openenv/session/create", json!({}));
    created["result"]["session_id"]
        .as_str()
        .unwrap_or_else(|| panic!("{created}"))
        .to_owned()
}

fn close(server: &Server, session: &str) -> Value {
    rpc(server, "openenv/session/close", json!({"session_id": session}))
}

fn attach(server: &Server, session: &str) -> Socket {
    Socket::open(server, &format!("/ws?session_id={session}"))
}

/// The value of a tool call: JSON in a string.
#[track_caller]
fn result(called: &Value) -> Value {
    assert_eq!(called["is_error"], false, "{called}");
    assert_eq!(called["content"][0]["text"], called["data"]);
    assert_eq!(called["structured_content"]["result"], called["data"]);
    serde_json::from_str(called["data"].as_str().unwrap()).unwrap()
}

/// The only rollout that runs, once it is in its setup.
#[track_caller]
fn running(server: &Server) -> String {
    let id = server.eventually("a rollout", || {
        let listed = server.get("/api/v1/rollouts?state=running").expect(200).json();
        Some(listed["rollouts"][0]["id"].as_str()?.to_owned())
    });
    server.until(&id, "command_started");
    id
}

#[track_caller]
fn was_cancelled(server: &Server, id: &str) {
    assert_eq!(server.ended(id)["ended"], "cancelled");
    assert_eq!(server.left_in("homes").len(), 0);
}

fn active(server: &Server) -> u64 {
    let queue = server.get("/api/v1/queue").expect(200).json();
    queue["openenv_sessions"]["active"].as_u64().unwrap()
}

#[track_caller]
fn until_active(server: &Server, count: u64) {
    server.eventually("the sessions that are left", || {
        (active(server) == count).then_some(())
    });
}

#[test]
fn an_old_client_does_everything_over_one_socket() {
    let server = Setup::new().scripted_agent().start();
    let mut socket = Socket::open(&server, "/ws");
    let listed = socket.ask(&json!({"type": "step", "data": {"type": "list_tools"}}));
    let tool = &listed["data"]["observation"]["tools"][0];
    assert_eq!(
        (&tool["name"], &tool["input_schema"]["additionalProperties"]),
        (&json!("run_rollout"), &json!(false))
    );
    let reset = socket.ask(&json!({"type": "reset", "data": {"seed": 7, "episode_id": "ep-1", "other": 1}}));
    assert_eq!(
        (&reset["type"], &reset["data"]["done"]),
        (&json!("observation"), &json!(false))
    );
    assert_eq!(reset["data"]["observation"]["metadata"]["status"], "ready");
    let state = socket.ask(&json!({"type": "state"}));
    assert_eq!(
        state,
        json!({"type": "state", "data": {
            "episode_id": "ep-1", "step_count": 0, "rollouts_completed": 0, "last_reward": null,
            "last_task_id": null, "last_sandbox_id": null,
        }})
    );

    let arguments = json!({
        "endpoint": "demo", "task_id": "search", "instruction": "Write binary_search.py.", "setup": ["echo ready"],
        "verify": ["test -f binary_search.py", "false"], "agent_timeout_s": "60", "top_logprobs": 2.0,
    });
    let called = socket.ask(&step("run_rollout", arguments));
    let observation = &called["data"]["observation"];
    assert_eq!(
        (&observation["tool_name"], &observation["error"]),
        (&json!("run_rollout"), &Value::Null)
    );
    assert!(
        called["data"].get("metadata").is_none(),
        "the oldest client takes no null there"
    );
    let rollout = result(&observation["result"]);
    assert_eq!(
        (&rollout["reward"], &rollout["error"]),
        (&json!(0.5), &Value::Null),
        "{rollout}"
    );
    assert_eq!(
        (&rollout["task_id"], &rollout["agent_exit_code"]),
        (&json!("search"), &json!(0))
    );
    assert_eq!(rollout["setup_results"][0]["stdout"], "ready\n");
    assert_eq!(rollout["verify_results"][1]["exit_code"], 1);
    let file = &rollout["files"]["/home/user/workdir/binary_search.py"];
    assert!(
        file.as_str().is_some_and(|text| text.contains("def ")),
        "{rollout}"
    );
    let turns = rollout["proxy_turns"].as_array().unwrap();
    assert!(turns.len() >= 3);
    for (number, turn) in turns.iter().enumerate() {
        let length = |key: &str| turn[key].as_array().unwrap().len();
        assert_eq!(turn["turn"], number + 1);
        assert!(length("completion_token_ids") > 0);
        for same in ["completion_tokens", "per_token_logps"] {
            assert_eq!(length(same), length("completion_token_ids"), "{same}");
        }
        assert_eq!(
            length("loss_mask"),
            length("prompt_token_ids") + length("completion_token_ids")
        );
        assert!(turn["request"].is_object() && turn["response"].is_object());
        assert_eq!(turn["role"], "agent");
        assert!(turn["metadata"]["sampling_params"].is_object() && turn["metadata"].get("omitted").is_none());
    }
    let state = &socket.ask(&json!({"type": "state"}))["data"];
    assert_eq!(
        (&state["rollouts_completed"], &state["step_count"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(
        (&state["last_reward"], &state["last_task_id"]),
        (&json!(0.5), &json!("search"))
    );
    assert_eq!(state["last_sandbox_id"], rollout["sandbox_id"]);
    let row = server.rollout(rollout["rollout_id"].as_str().unwrap());
    assert_eq!((&row["reward"], &row["task_id"]), (&json!(0.5), &json!("search")));

    let tools = socket.ask(&json!({"type": "mcp", "data": request("tools/list", json!({}))}));
    assert_eq!((&tools["type"], &tools["data"]["id"]), (&json!("mcp"), &json!(7)));
    assert_eq!(tools["data"]["result"]["tools"][0]["name"], "run_rollout");
    socket.say(&json!({"type": "close"}));
    assert_eq!(socket.closed(), 1000);
    until_active(&server, 0);
}

#[test]
fn a_new_client_has_a_session_that_socket_and_posts_act_on() {
    let server = Server::plain();
    let session = create(&server);
    let mut socket = attach(&server, &session);
    socket.ask(&json!({"type": "reset", "data": {"episode_id": "ep-2"}}));
    let listed = rpc(&server, "tools/list", json!({"session_id": session}));
    let tool = &listed["result"]["tools"][0];
    assert_eq!((&tool["name"], &listed["id"]), (&json!("run_rollout"), &json!(7)));
    assert_eq!(
        tool["inputSchema"]["properties"]["agent_timeout_s"]["default"],
        600.0
    );
    let called = rpc(
        &server,
        "tools/call",
        json!({"name": "run_rollout", "arguments": failing_call(), "session_id": session}),
    );
    let rollout = result(&called["result"]);
    assert_eq!(rollout["error"], "setup command failed (exit 1): false");
    assert_eq!(
        (&rollout["reward"], &rollout["agent_exit_code"]),
        (&Value::Null, &Value::Null)
    );
    let state = |socket: &mut Socket| socket.ask(&json!({"type": "state"}))["data"].clone();
    let known = state(&mut socket);
    assert_eq!(
        (&known["episode_id"], &known["rollouts_completed"]),
        (&json!("ep-2"), &json!(1))
    );
    assert_eq!(known["last_task_id"], "t-1");
    // A socket that goes leaves the session; the next one finds it as it was.
    socket.close();
    let mut socket = attach(&server, &session);
    assert_eq!(state(&mut socket), known);
    let mut second = attach(&server, &session);
    let refused = second.hear();
    assert_eq!(refused["data"]["code"], "SESSION_ERROR");
    assert_eq!(
        refused["data"]["message"],
        format!("Session {session} already has an attached WebSocket")
    );
    assert_eq!(second.closed(), 1000);
    assert_eq!(active(&server), 1);

    let closed = close(&server, &session);
    assert_eq!(
        closed["result"],
        json!({"session_id": session, "closed": false, "closing": true})
    );
    assert_eq!(state(&mut socket), known, "it goes with its socket");
    socket.say(&json!({"type": "close"}));
    assert_eq!(socket.closed(), 1000);
    let gone = close(&server, &session);
    assert_eq!(gone["error"]["code"], -32602);
    assert_eq!(gone["error"]["message"], format!("Unknown session_id: {session}"));
    let mut late = attach(&server, &session);
    assert_eq!(
        late.hear()["data"]["message"],
        format!("Unknown session_id: {session}")
    );
    assert_eq!(late.closed(), 1000);
    let unattached = create(&server);
    assert_eq!(
        close(&server, &unattached)["result"],
        json!({"session_id": unattached, "closed": true})
    );
    until_active(&server, 0);
}

#[test]
fn sessions_of_all_kinds_share_one_capacity() {
    let server = Setup::new().variable("MAX_CONCURRENT_ENVS", "3").start();
    let session = create(&server);
    let own = Socket::open(&server, "/ws?session_id=");
    let mut spoken = Socket::open(&server, "/mcp");
    let attached = attach(&server, &session);
    // A socket's session begins after the answer to its handshake. Attaching adds none.
    until_active(&server, 3);

    let text = "Server at capacity: 3/3 sessions active. Cannot accept new connections.";
    let mut refused = Socket::open(&server, "/ws");
    assert_eq!(
        refused.hear(),
        json!({"type": "error", "data": {
            "message": text, "code": "CAPACITY_REACHED", "active_sessions": 3, "max_sessions": 3,
        }})
    );
    assert_eq!(refused.closed(), 1000);
    let mut refused = Socket::open(&server, "/mcp");
    let full = json!({"code": -32000, "message": text, "data": {"active_sessions": 3, "max_sessions": 3}});
    assert_eq!(
        refused.hear(),
        json!({"jsonrpc": "2.0", "id": null, "error": full})
    );
    assert_eq!(refused.closed(), 1000);
    assert_eq!(rpc(&server, "openenv/session/create", json!({}))["error"], full);

    // What needs no session is not limited.
    server.get("/state").expect(200);
    assert!(rpc(&server, "tools/list", json!({}))["result"]["tools"].is_array());
    let own_id = spoken.ask(&request("openenv/session/create", json!({})))["result"]["session_id"].clone();
    assert!(own_id.is_string());
    let closing = spoken.ask(&request("openenv/session/close", json!({"session_id": own_id})));
    assert_eq!(closing["error"]["code"], -32600);
    assert_eq!(active(&server), 3);

    own.close();
    until_active(&server, 2);
    let again = create(&server);
    spoken.close();
    attached.close();
    close(&server, &session);
    close(&server, &again);
    until_active(&server, 0);
}

#[test]
fn a_client_that_reads_and_answers_no_ping_gives_its_place_back() {
    let server = Setup::new()
        .arguments(&["--max-sessions", "1", "--socket-ping", "0.05"])
        .start();
    let mut stream = Socket::open(&server, "/ws").into_stream();
    until_active(&server, 1);
    // The others of its kind answer, and are asked for ever: this one only reads, to the end.
    let mut read = Vec::new();
    stream.read_to_end(&mut read).unwrap();
    assert_eq!(read, [0x89, 0].repeat(6), "pings, and nothing else");
    until_active(&server, 0);

    let session = create(&server);
    let mut stream = attach(&server, &session).into_stream();
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    // The session outlives its socket, as where a client closes it.
    attach(&server, &session).close();
    close(&server, &session);
    until_active(&server, 0);

    // A socket that is read answers pings.
    let mut answers = Socket::open(&server, "/ws");
    let mut pings = 0;
    while pings < 20 {
        pings += usize::from(answers.pinged());
    }
    assert_eq!(answers.ask(&json!({"type": "state"}))["type"], "state");
    answers.close();
}

#[test]
fn what_is_wrong_on_a_socket_is_said_and_leaves_it_open_or_not() {
    let server = Server::plain();
    let mut socket = Socket::open(&server, "/ws");
    let mut wrong = |text: &str| {
        socket.send(Message::text(text));
        let answer = socket.hear();
        assert_eq!(answer["type"], "error", "{text}: {answer}");
        answer["data"].clone()
    };
    for text in ["", "{", "nope", "{\"type\": \"reset\",}"] {
        assert_eq!(wrong(text)["code"], "INVALID_JSON", "{text}");
    }
    for (text, kind) in [
        ("{}", ""),
        (r#"{"type": "zzz"}"#, "zzz"),
        (r#"{"type": "RESET"}"#, "RESET"),
    ] {
        let error = wrong(text);
        assert_eq!(error["code"], "UNKNOWN_TYPE");
        assert_eq!(error["message"], format!("Unknown message type: {kind}"));
    }
    for (message, kind) in [
        (json!({"type": "step"}), "missing"),
        (json!({"type": "step", "data": 7}), "dict_type"),
        (json!({"type": "step", "data": {"type": "call_tool"}}), "missing"),
        (
            json!({"type": "step", "data": {"type": "zzz", "tool_name": "x"}}),
            "literal_error",
        ),
        (
            json!({"type": "step", "data": {"type": "call_tool", "tool_name": "x", "foo": 1}}),
            "extra_forbidden",
        ),
        (
            json!({"type": "step", "data": {"type": "call_tool", "tool_name": "x", "arguments": []}}),
            "dict_type",
        ),
        (json!({"type": "state", "data": {}}), "extra_forbidden"),
        (json!({"type": "reset", "more": 1}), "extra_forbidden"),
        (json!({"type": "close", "data": {}}), "extra_forbidden"),
        (json!({"type": "mcp"}), "missing"),
    ] {
        let error = wrong(&message.to_string());
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!("VALIDATION_ERROR"), &json!("Invalid message"))
        );
        assert_eq!(error["errors"][0]["type"], kind, "{message} {error}");
    }
    for (tool, arguments, kind) in [
        ("nope", json!({}), "tool_not_found"),
        ("run_rollout", json!({"nope": 1}), "invalid_args"),
        ("run_rollout", json!({"instruction": 7}), "invalid_args"),
        ("run_rollout", json!({"endpoint": "demo"}), "execution_error"),
        ("run_rollout", json!({"instruction": "x"}), "execution_error"),
        (
            "run_rollout",
            json!({"instruction": "x", "endpoint": "nope"}),
            "execution_error",
        ),
    ] {
        let answer = socket.ask(&step(tool, arguments.clone()));
        let observation = &answer["data"]["observation"];
        assert_eq!(
            (&observation["result"], &observation["error"]["error_type"]),
            (&Value::Null, &json!(kind)),
            "{tool} {arguments} {answer}"
        );
        assert_eq!(observation["error"].as_object().unwrap().len(), 2);
    }
    assert_eq!(socket.ask(&json!({"type": "state"}))["type"], "state");
    socket.close();

    for (message, text) in [
        (Message::Binary(b"{}".as_slice().into()), "'text'"),
        (Message::text("[]"), "'list' object has no attribute 'get'"),
        (Message::text("7"), "'int' object has no attribute 'get'"),
        (Message::text("null"), "'NoneType' object has no attribute 'get'"),
    ] {
        let mut socket = Socket::open(&server, "/ws");
        socket.send(message);
        let error = socket.hear();
        assert_eq!(
            (&error["data"]["code"], &error["data"]["message"]),
            (&json!("SESSION_ERROR"), &json!(text))
        );
        assert_eq!(socket.closed(), 1000);
    }
    let mut spoken = Socket::open(&server, "/mcp");
    spoken.send(Message::text("{"));
    let error = spoken.hear();
    assert_eq!(
        (&error["error"]["code"], &error["id"]),
        (&json!(-32700), &Value::Null)
    );
    assert!(spoken.ask(&request("tools/list", json!({})))["result"].is_object());
}

#[test]
fn json_rpc_is_answered_with_200_whatever_is_asked() {
    let server = Server::plain();
    let raw = |body: &str| {
        let reply = server
            .request("POST", "/mcp")
            .body("application/json", body)
            .send();
        answer(&reply)["error"].clone()
    };
    for body in [
        "",
        "{",
        "[]",
        "7",
        r#"[{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}]"#,
    ] {
        let error = raw(body);
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!(-32700), &json!("Parse error")),
            "{body}"
        );
    }
    for body in [
        r#"{"id": 1, "method": "tools/list"}"#,
        r#"{"jsonrpc": "1.0", "id": 1, "method": "tools/list"}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#,
        r#"{"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "more": 1}"#,
        "{}",
    ] {
        let error = raw(body);
        assert_eq!(error["code"], -32600, "{body}");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .starts_with("Invalid request: "),
            "{error}"
        );
    }
    for method in ["initialize", "ping", "notifications/initialized", "zzz"] {
        let error = rpc(&server, method, json!({}))["error"].clone();
        assert_eq!(
            error,
            json!({"code": -32601, "message": format!("Method not found: {method}"), "data": null})
        );
    }
    for (method, params, code, message) in [
        (
            "openenv/session/close",
            json!({}),
            -32602,
            "Invalid params - 'session_id' is required",
        ),
        (
            "openenv/session/close",
            json!({"session_id": "x"}),
            -32602,
            "Unknown session_id: x",
        ),
        (
            "tools/list",
            json!({"session_id": "x"}),
            -32602,
            "Unknown session_id: x",
        ),
        (
            "tools/call",
            json!({"name": "run_rollout", "session_id": "x"}),
            -32602,
            "Unknown session_id: x",
        ),
        ("tools/call", json!({}), -32602, "Missing 'name' in params"),
        (
            "tools/call",
            json!({"name": "nope"}),
            -32603,
            "Unknown tool: 'nope'",
        ),
        (
            "tools/call",
            json!({"name": "run_rollout", "arguments": {"endpoint": "demo"}}),
            -32603,
            "Error calling tool 'run_rollout': instruction is required",
        ),
    ] {
        let error = rpc(&server, method, params)["error"].clone();
        assert_eq!(
            (&error["code"], &error["message"]),
            (&json!(code), &json!(message))
        );
    }
    let id = json!({"jsonrpc": "2.0", "id": "str-id", "method": "tools/list"});
    assert_eq!(answer(&server.post("/mcp", &id))["id"], "str-id");
    server
        .request("POST", "/mcp")
        .body("application/json", vec![b' '; 100_000_000])
        .send()
        .expect(413);
}

#[test]
fn plain_http_answers_as_openenv_does() {
    let server = Server::plain();
    let body = |method: &str, target: &str, body: &str| {
        server
            .request(method, target)
            .body("application/json", body)
            .send()
    };
    let detail = |reply: Reply, status: u16| reply.expect(status).json()["detail"].clone();
    assert_eq!(
        server.get("/health").expect(200).json(),
        json!({"status": "healthy"})
    );
    for method in ["HEAD", "POST"] {
        let reply = server.request(method, "/health").send();
        assert_eq!(
            (reply.status, reply.header("allow")),
            (405, Some("GET")),
            "{method}"
        );
    }
    assert_eq!(
        detail(server.post("/health", &json!({})), 405),
        "Method Not Allowed"
    );
    assert_eq!(
        server.get("/metadata").expect(200).json()["name"],
        "OpenCodeEnvironment"
    );
    let schema = server.get("/schema").expect(200).json();
    for name in ["action", "observation", "state", "reset_observation"] {
        assert!(schema[name].is_object(), "{name}");
    }
    let state = server.get("/state").expect(200).json();
    assert_eq!(
        (state.as_object().unwrap().len(), &state["step_count"]),
        (2, &json!(0))
    );
    assert_eq!(
        server.get("/list_environments").expect(200).json(),
        json!(["opencode_env"])
    );
    for (method, target, name) in [
        ("GET", "splits", "list_splits"),
        ("POST", "tasks", "list_tasks"),
        ("POST", "num_tasks", "num_tasks"),
        ("POST", "task", "get_task"),
        ("POST", "task_range", "get_task_range"),
    ] {
        for env in ["opencode_env", "OpenCode_Env"] {
            let said = detail(body(method, &format!("/{env}/{target}"), "{}"), 501);
            assert_eq!(said, format!("{name} is not supported for this environment"));
        }
        assert_eq!(
            detail(body(method, &format!("/nope/{target}"), "{}"), 404),
            "unknown environment 'nope'"
        );
    }
    for target in ["/nope", "/website", "/ws", "/api"] {
        assert_eq!(detail(server.get(target), 404), "Not Found", "{target}");
    }
    for given in [
        "",
        "{}",
        "null",
        r#"{"seed": 1, "episode_id": "abc", "extra": true}"#,
    ] {
        let reset = body("POST", "/reset", given).expect(200).json();
        assert_eq!(reset["metadata"], reset["observation"]["metadata"]);
        assert_eq!((&reset["reward"], &reset["done"]), (&Value::Null, &json!(false)));
    }
    let listed = body("POST", "/step", r#"{"action": {"type": "list_tools"}}"#)
        .expect(200)
        .json();
    assert_eq!(listed["observation"]["tools"][0]["name"], "run_rollout");
    let call = |arguments: Value, timeout: Value| {
        let action = json!({"type": "call_tool", "tool_name": "run_rollout", "arguments": arguments});
        server
            .post("/step", &json!({"action": action, "timeout_s": timeout}))
            .expect(200)
            .json()
    };
    let called = call(failing_call(), Value::Null);
    assert_eq!(
        (called.get("metadata"), &called["observation"]["error"]),
        (Some(&Value::Null), &Value::Null)
    );
    assert_eq!(result(&called["observation"]["result"])["ended"], "setup_error");
    let late = call(hanging_call(), json!(0.3));
    assert_eq!(
        late["observation"]["error"],
        json!({"error_type": "timeout", "message": "Tool 'run_rollout' timed out after 0.3 seconds"})
    );
    let listed = server.get("/api/v1/rollouts?limit=1").expect(200).json();
    was_cancelled(&server, listed["rollouts"][0]["id"].as_str().unwrap());
    for (target, given, kind, place) in [
        (
            "/reset",
            r#"{"seed": -1}"#,
            "greater_than_equal",
            json!(["body", "seed"]),
        ),
        (
            "/reset",
            r#"{"episode_id": 7}"#,
            "string_type",
            json!(["body", "episode_id"]),
        ),
        ("/reset", "{nope", "json_invalid", json!(["body", 2])),
        ("/reset", "[]", "model_attributes_type", json!(["body"])),
        ("/step", "", "missing", json!(["body"])),
        ("/step", "{}", "missing", json!(["body", "action"])),
        (
            "/step",
            r#"{"action": 7}"#,
            "dict_type",
            json!(["body", "action"]),
        ),
        (
            "/step",
            r#"{"action": {"type": "call_tool"}}"#,
            "missing",
            json!(["tool_name"]),
        ),
        (
            "/step",
            r#"{"action": {"type": "list_tools"}, "timeout_s": 0}"#,
            "greater_than",
            json!(["body", "timeout_s"]),
        ),
    ] {
        let problems = detail(body("POST", target, given), 422);
        assert_eq!(
            (&problems[0]["type"], &problems[0]["loc"]),
            (&json!(kind), &place),
            "{target} {given}"
        );
    }
    server
        .request("POST", "/step")
        .body("application/json", vec![b' '; 100_000_000])
        .send()
        .expect(413);
}

#[test]
fn production_mode_is_without_the_routes_of_simulation() {
    let server = Setup::new().variable("OPENENV_MODE", "Production").start();
    for (method, target) in [("POST", "/reset"), ("POST", "/step"), ("GET", "/state")] {
        let reply = server.request(method, target).send().expect(404);
        assert_eq!(reply.json(), json!({"detail": "Not Found"}));
    }
    server.get("/health").expect(200);
    let mut socket = Socket::open(&server, "/ws");
    assert_eq!(socket.ask(&json!({"type": "reset"}))["type"], "observation");
    let ran = Setup::new().variable("OPENENV_MODE", "test").refused().expect(2);
    assert!(ran.err.contains("OPENENV_MODE"), "{}", ran.err);
}

#[test]
fn pings_are_answered_while_a_rollout_runs_and_messages_wait_their_turn() {
    let server = Server::plain();
    let mut socket = Socket::open(&server, "/ws");
    socket.say(&step("run_rollout", hanging_call()));
    socket.say(&json!({"type": "state"}));
    socket.say(&json!({"type": "zzz"}));
    let id = running(&server);
    for payload in [b"one".as_slice(), b"two", b""] {
        socket.ping(payload);
    }
    server.cancel(&id).expect(202);
    let called = socket.hear();
    let rollout = result(&called["data"]["observation"]["result"]);
    assert_eq!(rollout["ended"], "cancelled");
    assert_eq!(socket.hear()["data"]["rollouts_completed"], 1);
    assert_eq!(socket.hear()["data"]["code"], "UNKNOWN_TYPE");
}

/// Posts a call whose rollout hangs, and reads the head of the reply.
fn post_hanging(server: &Server, params: Value) -> Open {
    let mut call = json!({"name": "run_rollout", "arguments": hanging_call()});
    call.as_object_mut()
        .unwrap()
        .extend(params.as_object().unwrap().clone());
    server
        .request("POST", "/mcp")
        .json(&request("tools/call", call))
        .open()
        .expect(200)
}

#[test]
fn a_reply_that_takes_time_is_kept_alive_with_blanks() {
    let server = Server::plain();
    let mut reply = post_hanging(&server, json!({}));
    let id = running(&server);
    let mut first = [0];
    reply.body.read_exact(&mut first).unwrap();
    assert_eq!(&first, b" ");
    server.cancel(&id).expect(202);
    let mut rest = String::new();
    reply.body.read_to_string(&mut rest).unwrap();
    let answer: Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(result(&answer["result"])["ended"], "cancelled");
}

#[test]
fn the_rollout_of_a_client_that_vanishes_is_cancelled() {
    let server = Server::plain();
    // A socket of its own, cut without a word.
    let mut socket = Socket::open(&server, "/ws");
    socket.say(&step("run_rollout", hanging_call()));
    let id = running(&server);
    drop(socket);
    was_cancelled(&server, &id);
    until_active(&server, 0);
    // One that takes its leave in the midst.
    let mut socket = Socket::open(&server, "/ws");
    socket.say(&step("run_rollout", hanging_call()));
    let id = running(&server);
    socket.close();
    was_cancelled(&server, &id);
    // Posts.
    let reply = post_hanging(&server, json!({}));
    let id = running(&server);
    drop(reply);
    was_cancelled(&server, &id);
    let action = json!({"type": "call_tool", "tool_name": "run_rollout", "arguments": hanging_call()});
    let request = server.request("POST", "/step").body("application/json", "");
    let head = request.head().replace(
        "content-length: 0",
        &format!("content-length: {}", json!({"action": action}).to_string().len()),
    );
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "{head}{}", json!({"action": action})).unwrap();
    let id = running(&server);
    drop(stream);
    was_cancelled(&server, &id);
    // The session of a post is left as it is.
    let session = create(&server);
    let reply = post_hanging(&server, json!({"session_id": session}));
    let id = running(&server);
    drop(reply);
    was_cancelled(&server, &id);
    assert_eq!(close(&server, &session)["result"]["closed"], true);
    until_active(&server, 0);
}

#[test]
fn a_rollout_may_go_on_without_its_client() {
    let server = Setup::new().arguments(&["--keep-abandoned"]).start();
    let mut socket = Socket::open(&server, "/ws");
    let call = json!({"endpoint": "demo", "instruction": "x", "setup": ["until [ -e ~/go ]; do sleep 0.05; done; exit 4"]});
    socket.say(&step("run_rollout", call));
    let id = running(&server);
    drop(socket);
    until_active(&server, 0);
    assert_eq!(server.rollout(&id)["cancelling"], Value::Null);
    server.cancel(&id).expect(202);
    server.ended(&id);
}

#[test]
fn a_session_that_is_closed_ends_the_calls_in_it() {
    let server = Server::plain();
    let session = create(&server);
    let replies: Vec<_> = (0..2)
        .map(|_| post_hanging(&server, json!({"session_id": session})))
        .collect();
    let ids: Vec<String> = server.eventually("both at once", || {
        let listed = server.get("/api/v1/rollouts?state=running").expect(200).json();
        let ids: Vec<_> = listed["rollouts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["id"].as_str().unwrap().to_owned())
            .collect();
        (ids.len() == 2).then_some(ids)
    });
    assert_eq!(close(&server, &session)["result"]["closed"], true);
    for mut reply in replies {
        let mut text = String::new();
        reply.body.read_to_string(&mut text).unwrap();
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
        assert_eq!(error["message"], "Session task completed unexpectedly");
    }
    for id in ids {
        assert_eq!(server.ended(&id)["ended"], "cancelled");
    }
}

#[test]
fn a_server_that_stops_closes_its_sockets() {
    let mut server = Setup::new().arguments(&["--grace", "0"]).start();
    let idle = Socket::open(&server, "/ws");
    let mut busy = Socket::open(&server, "/ws");
    busy.say(&step("run_rollout", hanging_call()));
    running(&server);
    let attached = attach(&server, &create(&server));
    server.end(nix::sys::signal::Signal::SIGTERM).expect(0);
    for socket in [idle, attached] {
        assert_eq!(socket.closed(), 1000);
    }
    let answer = busy.hear();
    assert_eq!(
        result(&answer["data"]["observation"]["result"])["ended"],
        "cancelled"
    );
    assert_eq!(busy.closed(), 1000);
}

#[test]
fn an_upgrade_that_is_none_is_not_taken_for_one() {
    let server = Server::plain();
    for target in ["/ws", "/mcp"] {
        let reply = upgrade(server.request("GET", target))
            .header("sec-websocket-version", "8")
            .open();
        assert!((400..500).contains(&reply.status), "{target} {}", reply.status);
        let reply = server
            .request("GET", target)
            .header("upgrade", "websocket")
            .open();
        assert!((400..500).contains(&reply.status), "{target} {}", reply.status);
        let reply = server
            .request("GET", target)
            .header("upgrade", "h2c")
            .header("connection", "Upgrade")
            .open();
        assert!((400..500).contains(&reply.status), "{target} {}", reply.status);
    }
    server.get("/health").expect(200);
}
