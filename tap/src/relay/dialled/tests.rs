use super::*;
use std::net::SocketAddr;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn request(secret: &str) -> String {
    // Names as Go's proxies write them; the key is that of RFC 6455, 1.3.
    format!(
        "GET / HTTP/1.1\r\nHost: 7001-i1.e2b.app\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-Websocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-Websocket-Version: 13\r\n\
         X-Dressage-Relay: {secret}\r\n\r\n"
    )
}

#[test]
fn the_example_of_the_standard_is_accepted() {
    let secret = Secret::of(SECRET);
    assert_eq!(
        answer(request(SECRET).as_bytes(), &secret),
        Ok("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_owned())
    );
}

#[test]
fn who_does_not_show_the_secret_learns_nothing() {
    let secret = Secret::of(SECRET);
    for wrong in [
        "",
        "0123456789abcdef0123456789abcdeF",
        &SECRET[..31],
        &format!("{SECRET}0"),
    ] {
        assert_eq!(answer(request(wrong).as_bytes(), &secret), Err("403 Forbidden"));
    }
    assert_eq!(answer(b"GET / HTTP/1.1\r\n\r\n", &secret), Err("403 Forbidden"));
    let plain = format!("GET / HTTP/1.1\r\nX-Dressage-Relay: {SECRET}\r\n\r\n");
    assert_eq!(answer(plain.as_bytes(), &secret), Err("426 Upgrade Required"));
}

/// A relay, where agents connect and where the host does.
async fn relay() -> (SocketAddr, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let carriers = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = (listener.local_addr().unwrap(), carriers.local_addr().unwrap());
    tokio::spawn(serve(carriers, Secret::of(SECRET), listener));
    addresses
}

/// Dials, and returns after the answer.
async fn dial(address: SocketAddr, secret: &str) -> (TcpStream, String) {
    let mut host = TcpStream::connect(address).await.unwrap();
    host.write_all(request(secret).as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(host.read_u8().await.unwrap());
    }
    (host, String::from_utf8(head).unwrap())
}

/// The beginning of what a relay that has a connection to carry says: a frame with yamux in it.
async fn is_opened(host: &mut TcpStream) {
    let mut frame = [0; 3];
    host.read_exact(&mut frame).await.unwrap();
    assert_eq!((frame[0], frame[2]), (0x82, 0), "binary, version 0 of yamux");
}

#[tokio::test]
async fn a_connection_that_came_before_the_host_waits_and_the_host_can_dial_again() {
    let (agents, hosts) = relay().await;
    let mut early = TcpStream::connect(agents).await.unwrap();
    early.write_all(b"GET").await.unwrap();
    let (mut host, head) = dial(hosts, SECRET).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    is_opened(&mut host).await;
    // The carrier is cut: what was on it ends, and the next one carries what comes then.
    drop(host);
    assert!(!matches!(early.read(&mut [0; 16]).await, Ok(1..)));
    let mut late = TcpStream::connect(agents).await.unwrap();
    late.write_all(b"GET").await.unwrap();
    let (mut host, _) = dial(hosts, SECRET).await;
    is_opened(&mut host).await;
    // A host that dials while its carrier is there has lost it: the new one takes its place.
    let (mut newer, _) = dial(hosts, SECRET).await;
    assert!(!matches!(late.read(&mut [0; 16]).await, Ok(1..)));
    let mut rest = Vec::new();
    let _ = host.read_to_end(&mut rest).await;
    let mut latest = TcpStream::connect(agents).await.unwrap();
    latest.write_all(b"GET").await.unwrap();
    is_opened(&mut newer).await;
}

#[tokio::test]
async fn who_has_not_the_secret_neither_takes_the_carriers_place_nor_keeps_the_host_out() {
    let (agents, hosts) = relay().await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(hosts).await.unwrap());
    }
    let (mut host, _) = dial(hosts, SECRET).await;
    let (_, head) = dial(hosts, &"0".repeat(32)).await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    let mut agent = TcpStream::connect(agents).await.unwrap();
    agent.write_all(b"GET").await.unwrap();
    is_opened(&mut host).await;
}
