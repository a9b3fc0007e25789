use super::client::{Open, Request, SILENCE};
use super::server::{Server, Setup, failing, hanging, quick, with};
use super::socket::Socket;
use serde_json::json;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    stream
}

/// Reads until the server ends the connection.
#[track_caller]
fn until_cut(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    match stream.read_to_end(&mut read) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    read
}

fn open_files(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .unwrap()
        .count()
}

fn active(server: &Server) -> u64 {
    let queue = server.get("/api/v1/queue").expect(200).json();
    queue["openenv_sessions"]["active"].as_u64().unwrap()
}

#[test]
fn slow_heads_keep_nobody_waiting_and_are_cut_off() {
    let server = Server::plain();
    let mut slow: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: loc").unwrap();
            stream
        })
        .collect();
    let start = Instant::now();
    for _ in 0..20 {
        server.get("/health").expect(200);
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    // A byte now and then makes no difference.
    let mut dripping = slow.pop().unwrap();
    dripping
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let cut = loop {
        assert!(
            start.elapsed() < Duration::from_secs(25),
            "it is still listened to"
        );
        if dripping.write_all(b"a").is_err() {
            break true;
        }
        match dripping.read(&mut [0; 512]) {
            Ok(0) => break true,
            Ok(_) => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
            Err(_) => break true,
        }
    };
    assert!(cut);
    for stream in &mut slow {
        until_cut(stream);
    }
    server.get("/health").expect(200);
}

#[test]
fn slow_bodies_keep_nobody_waiting_and_are_cut_off() {
    let server = Setup::new().scripted_agent().start();
    let held = server.submit_one(&with(quick(), json!({"hold": true})));
    server.until(&held, "held");
    let before = open_files(&server);
    let file = format!("/api/v1/rollouts/{held}/files/slow");
    let announced = |method, target: &str| {
        server
            .request(method, target)
            .header("content-type", "application/json")
    };
    let slow: Vec<_> = [
        ("REST", announced("POST", "/api/v1/rollouts"), true),
        ("a file", server.request("PUT", &file), true),
        ("OpenEnv", announced("POST", "/reset"), false),
        ("JSON-RPC", announced("POST", "/mcp"), false),
        (
            "MCP",
            announced("POST", "/mcp").header("accept", "application/json, text/event-stream"),
            false,
        ),
    ]
    .into_iter()
    .flat_map(|(what, request, is_api)| {
        let known = request.clone().header("content-length", "1000000");
        let chunked = request.header("transfer-encoding", "chunked");
        [
            (what, known, is_api, &b" "[..]),
            (what, chunked, is_api, b"1\r\n \r\n"),
        ]
    })
    .map(|(what, request, is_api, piece)| {
        let mut stream = connect(&server);
        stream.write_all(request.head().as_bytes()).unwrap();
        (what, stream, is_api, piece)
    })
    .collect();
    let start = Instant::now();
    for _ in 0..20 {
        server.get("/health").expect(200);
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    std::thread::scope(|scope| {
        for (what, mut stream, is_api, piece) in slow {
            scope.spawn(move || {
                stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
                let mut answer = Vec::new();
                loop {
                    assert!(
                        start.elapsed() < Duration::from_secs(40),
                        "{what}: it is still listened to"
                    );
                    // A byte now and then makes no difference.
                    if answer.is_empty() && stream.write_all(piece).is_err() {
                        break;
                    }
                    let mut buffer = [0; 4096];
                    match stream.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(count) => answer.extend_from_slice(&buffer[..count]),
                        Err(error)
                            if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {}
                        Err(_) => break,
                    }
                }
                assert!(
                    start.elapsed() > Duration::from_secs(15),
                    "{what}: it was not waited for"
                );
                let answer = String::from_utf8_lossy(&answer);
                assert!(answer.starts_with("HTTP/1.1 408 "), "{what}: {answer}");
                let form = if is_api {
                    r#"{"error":{"code":"body_too_slow""#
                } else {
                    r#"{"detail":"#
                };
                assert!(answer.contains(form), "{what}: {answer}");
            });
        }
    });
    server.eventually("the end of all connections", || {
        (open_files(&server) <= before + 8).then_some(())
    });
    server.get(&file).expect_error(404, "unknown_file");
    let taken = server.get("/api/v1/rollouts").expect(200).json();
    assert_eq!(
        taken["rollouts"].as_array().unwrap().len(),
        1,
        "nothing was made of what came"
    );
}

#[test]
fn a_thousand_sessions_that_are_opened_and_dropped_leave_nothing() {
    let server = Setup::new().arguments(&["--max-sessions", "2000"]).start();
    let before = open_files(&server);
    let mut sockets = Vec::new();
    for number in 0..500 {
        let created = server
            .post(
                "/mcp",
                &json!({"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}),
            )
            .json();
        let session = created["result"]["session_id"].as_str().unwrap().to_owned();
        // Every other one has a socket, and none of these takes its leave.
        if number % 2 == 0 {
            let mut socket = Socket::open(&server, &format!("/ws?session_id={session}"));
            assert_eq!(socket.ask(&json!({"type": "state"}))["type"], "state");
            sockets.push(socket);
        }
        let close = json!({"jsonrpc": "2.0", "id": 2, "method": "openenv/session/close", "params": {"session_id": session}});
        assert!(server.post("/mcp", &close).json()["result"].is_object());
    }
    sockets
        .extend((0..500).map(|number| Socket::open(&server, if number % 2 == 0 { "/ws" } else { "/mcp" })));
    server.eventually("all sessions at once", || (active(&server) == 750).then_some(()));
    drop(sockets);
    server.eventually("the end of all sessions", || (active(&server) == 0).then_some(()));
    // The sockets wait a little for what their clients would still say.
    server.eventually("the end of all connections", || {
        (open_files(&server) <= before + 8).then_some(())
    });
}

/// A frame of a client, masked with zeros.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    assert!(length < 126);
    let mut frame = vec![first, 0x80 | length, 0, 0, 0, 0];
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn garbage_on_a_socket_ends_that_socket_and_nothing_else() {
    let server = Server::plain();
    let noise: Vec<u8> = (0..4096_u32)
        .map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let huge = [&[0x81, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat();
    let beyond = [&[0x81, 0xff][..], &(1_u64 << 40).to_be_bytes(), &[0; 4]].concat();
    for (what, bytes) in [
        ("noise", noise),
        ("a frame without a mask", b"\x81\x02{}".to_vec()),
        ("a reserved bit", frame(0xf1, b"{}")),
        ("an opcode of nothing", frame(0x83, b"{}")),
        ("text that is none", frame(0x81, b"\xff\xfe")),
        ("a continuation of nothing", frame(0x80, b"x")),
        ("a ping in pieces", frame(0x09, b"x")),
        ("a frame of all bytes there are", huge),
        ("a frame of a terabyte", beyond),
        ("a close with half a code", frame(0x88, b"\x03")),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
    ] {
        for target in ["/ws", "/mcp"] {
            let mut stream = Socket::open(&server, target).into_stream();
            stream.set_read_timeout(Some(SILENCE)).unwrap();
            stream
                .write_all(&bytes)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            until_cut(&mut stream);
        }
    }
    server.eventually("the end of all sessions", || (active(&server) == 0).then_some(()));
    // A message in pieces is one message.
    let mut stream = Socket::open(&server, "/ws").into_stream();
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    for part in [
        frame(0x01, b"{\"type\": "),
        frame(0x89, b"hi"),
        frame(0x80, b"\"state\"}"),
    ] {
        stream.write_all(&part).unwrap();
    }
    let mut answer = [0; 64];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer[..4], b"\x8a\x02hi", "the pong comes at once");
    assert!(
        String::from_utf8_lossy(&answer).contains(r#"{"data":{"#)
            || String::from_utf8_lossy(&answer).contains(r#""type":"state""#)
    );
}

#[test]
fn what_is_no_http_is_answered_or_cut_and_harms_nobody() {
    let server = Server::plain();
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(200_000));
    let many = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n",
        "A: b\r\n".repeat(2000)
    );
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"\r\n\r\n\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /health\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /reset HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /reset HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ] {
        let mut stream = connect(&server);
        // The server may have had enough before all was sent.
        _ = stream.write_all(bytes);
        _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = until_cut(&mut stream);
        let answer = String::from_utf8_lossy(&answer);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4") || answer.starts_with("HTTP/1.0 4"), "{shown:?}: {answer}");
    }
    server.get("/health").expect(200);
}

#[test]
fn a_connection_serves_one_request_after_the_other() {
    let server = Server::plain();
    let mut stream = connect(&server);
    let request = server.request("GET", "/health").head();
    stream.write_all(request.repeat(3).as_bytes()).unwrap();
    for _ in 0..3 {
        let mut open = Open::read(stream).unwrap().expect(200);
        let mut body = String::new();
        open.body.read_to_string(&mut body).unwrap();
        assert_eq!(body, r#"{"status":"healthy"}"#);
        let (rest, read) = open.into_parts();
        if !read.is_empty() {
            // The next reply came along with this one.
            assert!(read.starts_with(b"HTTP/1.1 200"));
            return;
        }
        stream = rest;
    }
}

#[test]
fn readers_that_do_not_read_hold_nobody_up() {
    let server = Server::plain();
    let id = server.submit_one(&hanging());
    let stuck: Vec<_> = (0..20)
        .map(|number| {
            let target = if number % 2 == 0 {
                "/api/v1/events".to_owned()
            } else {
                format!("/api/v1/rollouts/{id}/events")
            };
            let mut stream = connect(&server);
            stream
                .write_all(server.request("GET", &target).head().as_bytes())
                .unwrap();
            stream
        })
        .collect();
    let loud = json!({"task": {"instruction": "x", "setup": ["head -c 3000000 /dev/zero | tr '\\0' 'x'; false"]}, "endpoint": "demo"});
    let ids: Vec<_> = (0..3).map(|_| server.submit_one(&loud)).collect();
    for id in ids {
        assert_eq!(server.ended(&id)["ended"], "setup_error");
    }
    let quiet = server.submit_one(&failing());
    server.ended(&quiet);
    server.cancel(&id).expect(202);
    server.ended(&id);
    drop(stuck);
}

#[test]
fn clients_that_go_without_a_word_in_any_state_leave_nothing() {
    let setup = Setup::new().arguments(&["--max-sessions", "20"]);
    let server = setup.scripted_agent().start();
    let held = server.submit_one(&with(quick(), json!({"hold": true})));
    server.until(&held, "held");
    let before = open_files(&server);
    let call = json!({"endpoint": "demo", "instruction": "x", "setup": ["sleep 100"]});
    let rpc = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run_rollout", "arguments": call}});
    let file = format!("/api/v1/rollouts/{held}/files/large");
    let upload = server
        .request("PUT", &file)
        .header("content-length", "1000000")
        .head();
    let exec = format!("/api/v1/rollouts/{held}/exec");
    let exec = || server.request("POST", &exec).json(&json!({"command": "sleep 2"}));
    let step =
        json!({"type": "step", "data": {"type": "call_tool", "tool_name": "run_rollout", "arguments": call}});
    let socket = |bytes: &[u8]| {
        let mut stream = Socket::open(&server, "/ws").into_stream();
        stream.write_all(bytes).unwrap();
        stream
    };
    let sent = |bytes: &str| {
        let mut stream = connect(&server);
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    };
    let body = |request: Request| {
        let body = request.body_text();
        request.head() + &body
    };
    let mut waiting = Socket::open(&server, "/ws");
    waiting.say(&step);
    let states: Vec<(&str, Vec<TcpStream>)> = vec![
        ("connected", vec![connect(&server)]),
        ("in a head", vec![sent("POST /reset HTTP/1.1\r\nHost: loc")]),
        ("before a body", vec![sent(&upload)]),
        (
            "in a body",
            vec![sent(&format!("{upload}{}", "x".repeat(500_000)))],
        ),
        (
            "in a body of JSON",
            vec![sent(&exec().head()), sent(&(exec().head() + "{\"comm"))],
        ),
        (
            "before its reply is read",
            vec![sent(&server.request("GET", "/openapi.json").head())],
        ),
        (
            "listening to all",
            vec![sent(&server.request("GET", "/api/v1/events").head())],
        ),
        (
            "listening to one",
            vec![sent(
                &server
                    .request("GET", &format!("/api/v1/rollouts/{held}/events"))
                    .head(),
            )],
        ),
        ("in a command", vec![sent(&body(exec()))]),
        (
            "in a call of OpenEnv",
            vec![sent(&body(server.request("POST", "/mcp").json(&rpc)))],
        ),
        ("on a socket", vec![socket(b"")]),
        ("in a frame", vec![socket(b"\x81\xfe\x10")]),
        ("in a message", vec![socket(&frame(0x01, b"{\"type\": "))]),
        ("in a call on a socket", vec![waiting.into_stream()]),
    ];
    // All at work at once: the calls are rollouts by now, or wait to be.
    server.eventually("the calls", || {
        let listed = server
            .get("/api/v1/rollouts?state=queued,running")
            .expect(200)
            .json();
        (listed["rollouts"].as_array().unwrap().len() == 3).then_some(())
    });
    let count: usize = states.iter().map(|(_, streams)| streams.len()).sum();
    assert!(open_files(&server) >= before + count - 2);
    drop(states);
    server.eventually("the end of all connections", || {
        (open_files(&server) <= before + 8).then_some(())
    });
    server.eventually("the end of all sessions", || (active(&server) == 0).then_some(()));
    server.eventually("the end of their rollouts", || {
        let listed = server
            .get("/api/v1/rollouts?state=queued,running")
            .expect(200)
            .json();
        (listed["rollouts"].as_array().unwrap().len() == 1).then_some(())
    });
    server.get(&file).expect_error(404, "unknown_file");
    // Whoever holds a rollout has not let go of it by losing a connection.
    let finish = format!("/api/v1/rollouts/{held}/finish");
    server.post(&finish, &json!({"reward": 1})).expect(202);
    assert_eq!(server.ended(&held)["ended"], "completed");
    assert_eq!(server.left_in("homes").len(), 0);
}
