use super::*;
use futures_util::{AsyncReadExt as _, AsyncWriteExt as _};
use std::future::poll_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_util::compat::TokioAsyncReadCompatExt;
use yamux::{Config, Connection, Mode, Stream};

/// The host's end: streams as they are opened.
fn host(channel: DuplexStream) -> mpsc::UnboundedReceiver<Stream> {
    let (sender, streams) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut connection = Connection::new(channel.compat(), Config::default(), Mode::Server);
        while let Some(Ok(stream)) = poll_fn(|context| connection.poll_next_inbound(context)).await {
            let _ = sender.send(stream);
        }
    });
    streams
}

async fn relay() -> (
    SocketAddr,
    mpsc::UnboundedReceiver<Stream>,
    tokio::task::JoinHandle<()>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let carrying = tokio::spawn(carry(theirs, listener));
    (address, host(ours), carrying)
}

#[tokio::test]
async fn bytes_pass_both_ways_and_each_end_closes_by_itself() {
    let (address, mut streams, _carrying) = relay().await;
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut stream = streams.recv().await.unwrap();
    let mut question = Vec::new();
    stream.read_to_end(&mut question).await.unwrap();
    assert_eq!(question, b"question");
    // The agent has said all it has to say, and still gets the answer.
    let answer = vec![7; 1 << 20];
    stream.write_all(&answer).await.unwrap();
    stream.close().await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, answer);
}

/// A connection that has said one byte, and its stream without it.
async fn connect(address: SocketAddr, streams: &mut mpsc::UnboundedReceiver<Stream>) -> (TcpStream, Stream) {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"x").await.unwrap();
    let mut stream = streams.recv().await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    (client, stream)
}

async fn ping(client: &mut TcpStream, stream: &mut Stream) {
    let mut bytes = [0; 4];
    client.write_all(b"ping").await.unwrap();
    stream.read_exact(&mut bytes).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    client.read_exact(&mut bytes).await.unwrap();
    assert_eq!(&bytes, b"ping");
}

#[tokio::test]
async fn a_client_that_breaks_off_ends_its_stream_and_no_other() {
    let (address, mut streams, _carrying) = relay().await;
    let (broken, mut its_stream) = connect(address, &mut streams).await;
    let (mut client, mut stream) = connect(address, &mut streams).await;
    broken.set_zero_linger().unwrap();
    drop(broken);
    let mut rest = Vec::new();
    // Reset, or closed: nothing more comes, and it does not hang.
    let _ = its_stream.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
    ping(&mut client, &mut stream).await;
}

#[tokio::test]
async fn a_connection_over_the_limit_waits_for_its_place() {
    let (address, mut streams, _carrying) = relay().await;
    let mut carried = Vec::new();
    for _ in 0..MOST_CONNECTIONS {
        carried.push(connect(address, &mut streams).await);
    }
    let mut waiting = TcpStream::connect(address).await.unwrap();
    waiting.write_all(b"x").await.unwrap();
    let (client, stream) = carried.last_mut().unwrap();
    ping(client, stream).await;
    assert!(streams.try_recv().is_err());
    drop(carried.pop());
    let mut stream = streams.recv().await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    ping(&mut waiting, &mut stream).await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_has_no_stream() {
    let (address, mut streams, _carrying) = relay().await;
    let mut silent = TcpStream::connect(address).await.unwrap();
    silent.shutdown().await.unwrap();
    assert_eq!(silent.read(&mut [0; 16]).await.unwrap(), 0);
    assert!(streams.try_recv().is_err());
}

#[tokio::test]
async fn a_stalled_reader_stalls_only_itself() {
    let (address, mut streams, _carrying) = relay().await;
    let (stalled, mut to_stalled) = connect(address, &mut streams).await;
    let flood = tokio::spawn(async move {
        let _ = to_stalled.write_all(&vec![0; 64 << 20]).await;
    });
    let (mut client, mut stream) = connect(address, &mut streams).await;
    for _ in 0..100 {
        ping(&mut client, &mut stream).await;
    }
    assert!(!flood.is_finished());
    flood.abort();
    drop(stalled);
}

#[tokio::test]
async fn when_the_channel_is_lost_connections_and_listener_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let carrying = tokio::spawn(carry(theirs, listener));
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"x").await.unwrap();
    drop(ours);
    carrying.await.unwrap();
    assert!(!matches!(client.read(&mut [0; 16]).await, Ok(1..)));
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_channel_that_does_not_speak_the_protocol_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut ours, theirs) = tokio::io::duplex(64 << 10);
    let carrying = tokio::spawn(carry(theirs, listener));
    ours.write_all(&[0xff; 64]).await.unwrap();
    carrying.await.unwrap();
}

#[tokio::test]
async fn a_stream_that_the_other_side_opens_ends_the_channel() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let carrying = tokio::spawn(carry(theirs, listener));
    let mut connection = Connection::new(ours.compat(), Config::default(), Mode::Server);
    let mut stream = poll_fn(|context| connection.poll_new_outbound(context))
        .await
        .unwrap();
    let driving = tokio::spawn(async move {
        while let Some(Ok(_)) = poll_fn(|context| connection.poll_next_inbound(context)).await {}
    });
    let _ = stream.write_all(b"x").await;
    let _ = stream.flush().await;
    carrying.await.unwrap();
    driving.await.unwrap();
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let arguments = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    for words in [
        &[][..],
        &["--listen"],
        &["--listen", "x", "--stdio"],
        &["--what"],
        &["--stdio"],
    ] {
        assert!(
            run(&arguments(words))
                .unwrap_err()
                .to_string()
                .starts_with("usage:"),
            "{words:?}"
        );
    }
}
