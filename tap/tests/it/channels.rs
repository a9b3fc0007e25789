use crate::support::agent::part;
use crate::support::{Act, Agent, Script, Stage, ask, fixture, soon};
use dressage_tap::ChannelEnd;
use dressage_wire::call::CallEnd;
use http_body_util::BodyExt;
use secrecy::ExposeSecret;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use tokio_util::sync::CancellationToken;

/// The protocol's number for a ping.
const PING: u8 = 2;

type Stream = Compat<yamux::Stream>;

/// The sandbox's end of a channel, as a relay is: it opens streams, and answers pings.
struct Relay {
    open: mpsc::Sender<oneshot::Sender<Stream>>,
    running: JoinHandle<()>,
}

impl Relay {
    fn start(io: DuplexStream) -> Self {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(1024);
        let mut channel = yamux::Connection::new(io.compat(), config, yamux::Mode::Client);
        let (open, mut wanted) = mpsc::channel::<oneshot::Sender<Stream>>(1);
        let running = tokio::spawn(async move {
            loop {
                tokio::select! {
                    wanted = wanted.recv() => {
                        let Some(wanted) = wanted else { return };
                        let stream = poll_fn(|cx| channel.poll_new_outbound(cx)).await;
                        if let Ok(stream) = stream {
                            let _ = wanted.send(stream.compat());
                        }
                    }
                    inbound = poll_fn(|cx| channel.poll_next_inbound(cx)) => match inbound {
                        Some(Ok(_)) => panic!("the host opened a stream"),
                        _ => return,
                    },
                }
            }
        });
        Self { open, running }
    }

    async fn stream(&self) -> Stream {
        let (send, receive) = oneshot::channel();
        self.open.send(send).await.unwrap();
        soon("a stream", receive).await.unwrap()
    }
}

/// A stage whose agent is behind a channel.
struct Channel {
    stage: Stage,
    relay: Relay,
    cancel: CancellationToken,
    serving: JoinHandle<ChannelEnd>,
}

impl Channel {
    fn over(stage: Stage) -> Self {
        let (near, far) = tokio::io::duplex(64 << 10);
        let cancel = CancellationToken::new();
        let serving = tokio::spawn(stage.session.clone().serve_channel(far, cancel.clone()));
        Self {
            relay: Relay::start(near),
            stage,
            cancel,
            serving,
        }
    }

    async fn agent(&self) -> Agent {
        Agent::over(
            self.relay.stream().await,
            self.stage.session.token().expose_secret(),
        )
        .await
    }

    async fn end(self) -> ChannelEnd {
        soon("the channel's end", self.serving).await.unwrap()
    }
}

#[tokio::test]
async fn a_recorded_turn_passes_through_a_channel() {
    let body = fixture("vllm-0.32.0/list_tools_stream_lp5_ids.response.body");
    let channel = Channel::over(Stage::new(move |_, _| Script::events(&body, 333)).await);
    let received = channel.agent().await.chat(ask(true)).await;
    assert!(received.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(channel.stage.calls.only().await.meta.end, CallEnd::Complete);
    channel.relay.running.abort();
    assert!(matches!(
        channel.end().await,
        ChannelEnd::Closed | ChannelEnd::Broken(_)
    ));
}

#[tokio::test]
async fn a_stream_that_is_not_read_stalls_alone() {
    let event = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"yyyyyyyy\"}}]}\n\n";
    let flood = event.repeat(200_000);
    let short = fixture("vllm-0.32.0/hi_stream_lp5_ids.response.body");
    let stage = Stage::new(move |_, asked| match asked.json()["model"].as_str() {
        Some("flood") => Script::stream().chunk(flood.clone()).finish(),
        _ => Script::events(&short, 100),
    })
    .await;
    let channel = Channel::over(stage);
    let mut stalled = channel.agent().await;
    let request = stalled.post(r#"{"model":"flood","messages":[],"stream":true}"#);
    let mut unread = stalled.send(request).await.into_body();
    part(&mut unread).await;
    for _ in 0..20 {
        let received = channel.agent().await.chat(ask(true)).await;
        assert!(received.text().ends_with("data: [DONE]\n\n"));
    }
    assert_eq!(channel.stage.calls.count(), 20);
    // It goes on when it is read again.
    let rest = soon("the rest", unread.collect()).await.unwrap().to_bytes();
    assert!(rest.len() > 200_000 * 40, "{}", rest.len());
    assert_eq!(channel.stage.calls.ended(21).await.len(), 21);
}

#[tokio::test]
async fn too_many_streams_are_reset_and_the_others_live_on() {
    let channel = Channel::over(Stage::new(|_, _| Script::json(200, "{\"choices\":[]}")).await);
    let mut held = Vec::new();
    for _ in 0..192 {
        let mut stream = channel.relay.stream().await;
        stream.write_all(b"GET /held HTTP/1.1\r\n").await.unwrap();
        held.push(stream);
    }
    // Answered, so the host has seen all of them.
    let last = held.last_mut().unwrap();
    last.write_all(b"\r\n").await.unwrap();
    let mut reply = [0; 12];
    soon("an answer", last.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 401");
    let mut excess = channel.relay.stream().await;
    let _ = excess.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
    let mut nothing = Vec::new();
    let read = soon("the reset", excess.read_to_end(&mut nothing)).await;
    assert!(read.is_err() || nothing.is_empty(), "{nothing:?}");
    let first = &mut held[0];
    first.write_all(b"\r\n").await.unwrap();
    soon("an answer", first.read_exact(&mut reply)).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 401");
}

#[tokio::test]
async fn heads_without_end_are_refused() {
    let channel = Channel::over(Stage::new(|_, _| panic!("nothing may be sent")).await);
    let (mut reading, mut writing) = tokio::io::split(channel.relay.stream().await);
    let flooding = tokio::spawn(async move {
        let _ = writing.write_all(b"GET / HTTP/1.1\r\na: ").await;
        while writing.write_all(&[b'a'; 1000]).await.is_ok() {}
    });
    let mut reply = Vec::new();
    let _ = soon("the end of patience", reading.read_to_end(&mut reply)).await;
    assert!(
        reply.starts_with(b"HTTP/1.1 431"),
        "{}",
        String::from_utf8_lossy(&reply)
    );
    flooding.abort();
}

#[tokio::test]
async fn bytes_that_are_no_protocol_end_the_channel() {
    let stage = Stage::new(|_, _| panic!("nothing may be sent")).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 64],
        &[0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let (mut near, far) = tokio::io::duplex(1024);
        let serving = tokio::spawn(stage.session.clone().serve_channel(far, CancellationToken::new()));
        near.write_all(garbage).await.unwrap();
        let end = soon("the end", serving).await.unwrap();
        assert!(matches!(end, ChannelEnd::Broken(_)), "{end}");
    }
}

#[tokio::test]
async fn a_channel_that_is_cancelled_or_cut_ends_its_calls() {
    for cut in [false, true] {
        let stage = Stage::new(|_, _| {
            Script::stream()
                .chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"y\"}}]}\n\n")
                .then(Act::UntilGone)
        })
        .await;
        let channel = Channel::over(stage);
        let mut agent = channel.agent().await;
        let request = agent.post(ask(true));
        let mut reply = agent.send(request).await.into_body();
        part(&mut reply).await;
        let Channel {
            stage,
            relay,
            cancel,
            serving,
        } = channel;
        if cut {
            relay.running.abort();
        } else {
            cancel.cancel();
        }
        let end = soon("the end", serving).await.unwrap();
        match cut {
            false => assert!(matches!(end, ChannelEnd::Cancelled), "{end}"),
            true => assert!(matches!(end, ChannelEnd::Closed | ChannelEnd::Broken(_)), "{end}"),
        }
        assert_eq!(stage.calls.count(), 1, "its calls are over when the channel is");
        assert_eq!(stage.calls.only().await.meta.end, CallEnd::DownstreamGone);
        stage.endpoint.until_gone(1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_channel_is_pinged_and_a_silent_one_given_up() {
    let (session, _) = crate::support::session(
        dressage_tap::Endpoint::at("none", "http://127.0.0.1:1/v1"),
        |_| {},
    );
    // A relay that says something now and then, and is answered.
    let (mut near, far) = tokio::io::duplex(1024);
    let serving = tokio::spawn(Arc::clone(&session).serve_channel(far, CancellationToken::new()));
    let mut frame = [0; 12];
    near.read_exact(&mut frame).await.unwrap();
    assert_eq!(frame[1], PING, "a ping is the first that is sent");
    for id in 0..60 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        near.write_all(&[0, PING, 0, 1, 0, 0, 0, 0, 0, 0, 0, id])
            .await
            .unwrap();
        near.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame, [0, PING, 0, 2, 0, 0, 0, 0, 0, 0, 0, id]);
    }
    assert!(!serving.is_finished(), "a quiet channel is no dead one");
    serving.abort();
    // One that does not.
    let (_near, far) = tokio::io::duplex(1024);
    let end = session.serve_channel(far, CancellationToken::new()).await;
    assert!(matches!(end, ChannelEnd::Silent(_)), "{end}");
}

/// A ping as yamux has it (its specification, version 0): the other side answers the same number.
fn ping(flag: u8) -> [u8; 12] {
    [0, 2, 0, flag, 0, 0, 0, 0, 0, 0, 0, 7]
}

/// The relay as a program of its own; killed when dropped.
struct Alone(std::process::Child);

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it on a channel, of which this is its end.
fn alone(carrier: &str, channel: std::os::unix::net::UnixStream) -> Alone {
    let channel = std::os::fd::OwnedFd::from(channel);
    let mut command = std::process::Command::new("sh");
    // The shell passes the channel on by a number that is none of the three standard ones.
    command
        .args(["-c", "exec 3<&0; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_dressage-tap"))
        .args(["relay", "--listen", "127.0.0.1:0"])
        .args(carrier.split(' '))
        .stdin(channel.try_clone().unwrap())
        .stdout(channel);
    Alone(command.spawn().unwrap())
}

#[tokio::test]
async fn the_relay_alone_answers_pings_on_stdio_and_on_a_socket_as_the_one_in_init_does() {
    const SYN: u8 = 1;
    const ACK: u8 = 2;
    for carrier in ["--stdio", "--fd 3"] {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut relay = alone(carrier, theirs);
        ours.set_nonblocking(true).unwrap();
        let mut ours = tokio::net::UnixStream::from_std(ours).unwrap();
        let mut answer = [0; 12];
        ours.write_all(&ping(SYN)).await.unwrap();
        // It pings as well, and says nothing else.
        while answer != ping(ACK) {
            soon("an answer", ours.read_exact(&mut answer)).await.unwrap();
            assert_eq!(answer[..2], [0, PING], "{carrier}");
        }
        // The end of the channel is the end of the program.
        drop(ours);
        let ended = tokio::task::spawn_blocking(move || relay.0.wait().unwrap());
        assert!(soon("its end", ended).await.unwrap().success(), "{carrier}");
    }
}
