use super::config::{self, Config};
use super::message::{Answer, Kind, answer, query};
use super::{ask, exchange};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

/// An answer to `query` with these flags and records, the names of which point back to the question.
fn reply(query: &[u8], flags: u16, records: &[(u16, &[u8])]) -> Vec<u8> {
    let mut reply = query.to_vec();
    reply[2..4].copy_from_slice(&flags.to_be_bytes());
    reply[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
    for (kind, data) in records {
        reply.extend_from_slice(&[0xc0, 12]);
        reply.extend_from_slice(&kind.to_be_bytes());
        reply.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
        reply.extend_from_slice(&(data.len() as u16).to_be_bytes());
        reply.extend_from_slice(data);
    }
    reply
}

#[test]
fn a_question_is_the_bytes_that_servers_expect() {
    let asked = query(0x1234, "vllm.local", Kind::Aaaa).unwrap();
    assert_eq!(
        asked,
        b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04vllm\x05local\x00\x00\x1c\x00\x01"
    );
    for bad in ["", "a..b", &"x".repeat(64), &"x.".repeat(140)] {
        assert!(query(1, bad, Kind::A).is_err(), "{bad}");
    }
}

#[test]
fn addresses_are_read_behind_aliases() {
    let asked = query(7, "a.b", Kind::A).unwrap();
    let answered = reply(
        &asked,
        0x8180,
        &[
            (5, b"\x01c\x00"),
            (1, &[10, 0, 0, 1]),
            (28, &[0; 16]),
            (1, &[10, 0, 0, 2]),
        ],
    );
    let found = answer(&answered, 7, &asked, Kind::A);
    assert_eq!(
        found,
        Some(Answer::Addresses(vec![
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into()
        ]))
    );
    assert_eq!(
        answer(&reply(&asked, 0x8183, &[]), 7, &asked, Kind::A),
        Some(Answer::NoSuchName)
    );
    assert_eq!(
        answer(&reply(&asked, 0x8182, &[]), 7, &asked, Kind::A),
        Some(Answer::Failed(2))
    );
    assert_eq!(
        answer(&reply(&asked, 0x8380, &[]), 7, &asked, Kind::A),
        Some(Answer::Truncated)
    );
}

#[test]
fn answers_to_other_questions_and_cut_ones_are_no_answers() {
    let asked = query(7, "a.b", Kind::A).unwrap();
    let good = reply(&asked, 0x8180, &[(1, &[10, 0, 0, 1])]);
    assert_eq!(answer(&good, 8, &asked, Kind::A), None, "another id");
    assert_eq!(answer(&asked, 7, &asked, Kind::A), None, "a question");
    let other = query(7, "a.c", Kind::A).unwrap();
    assert_eq!(
        answer(&reply(&other, 0x8180, &[]), 7, &asked, Kind::A),
        None,
        "another name"
    );
    for length in 0..good.len() {
        assert_eq!(
            answer(&good[..length], 7, &asked, Kind::A),
            None,
            "cut at {length}"
        );
    }
    let lying = reply(&asked, 0x8180, &[(1, &[10, 0, 0])]);
    assert_eq!(
        answer(&lying, 7, &asked, Kind::A),
        None,
        "an address of three bytes"
    );
}

#[test]
fn resolv_conf_is_read_as_the_c_library_does() {
    let config = Config::parse(
        "# made by hand\nnameserver 10.0.0.1\nnameserver fe80::1%eth0 ; here\nnameserver nonsense\n\
         domain old.example\nsearch a.svc svc.\noptions ndots:2 timeout:3 attempts:9 rotate\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n",
    );
    let servers: Vec<String> = config.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["10.0.0.1:53", "[fe80::1]:53", "10.0.0.2:53"]);
    assert_eq!((config.timeout, config.attempts), (Duration::from_secs(3), 5));
    assert_eq!(config.full_names("vllm"), ["vllm.a.svc", "vllm.svc", "vllm"]);
    assert_eq!(
        config.full_names("api.example.com"),
        ["api.example.com", "api.example.com.a.svc", "api.example.com.svc"]
    );
    assert_eq!(config.full_names("api."), ["api"]);
}

#[test]
fn hosts_file_and_loopback_names() {
    let text = "127.0.0.1 localhost\n10.1.1.1 Vllm vllm.local # here\n::1 vllm\nbad line\n";
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(config::hosts(text, "vllm"), [address("10.1.1.1"), address("::1")]);
    assert_eq!(config::hosts(text, "vllm.local."), [address("10.1.1.1")]);
    assert_eq!(config::hosts(text, "other"), [] as [IpAddr; 0]);
    assert_eq!(config::hosts("", "box.localhost"), [address("127.0.0.1")]);
}

async fn server() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

#[tokio::test]
async fn a_forged_answer_is_passed_over_and_a_truncated_one_asked_for_again_over_tcp() {
    let (udp, address) = server().await;
    let tcp = TcpListener::bind(address).await.unwrap();
    let serving = tokio::spawn(async move {
        let mut asked = [0; 512];
        let (length, from) = udp.recv_from(&mut asked).await.unwrap();
        let asked = &asked[..length];
        let mut forged = reply(asked, 0x8180, &[(1, &[6, 6, 6, 6])]);
        forged[0] ^= 1;
        udp.send_to(&forged, from).await.unwrap();
        udp.send_to(&reply(asked, 0x8380, &[]), from).await.unwrap();
        let (mut stream, _) = tcp.accept().await.unwrap();
        let length = stream.read_u16().await.unwrap();
        let mut asked = vec![0; length.into()];
        stream.read_exact(&mut asked).await.unwrap();
        let whole = reply(&asked, 0x8180, &[(1, &[10, 0, 0, 9])]);
        stream.write_u16(whole.len() as u16).await.unwrap();
        stream.write_all(&whole).await.unwrap();
    });
    let found = exchange(address, "big.example", Kind::A).await.unwrap();
    assert_eq!(found, Answer::Addresses(vec![[10, 0, 0, 9].into()]));
    serving.await.unwrap();
}

#[tokio::test]
async fn the_next_server_is_asked_where_one_fails_and_the_next_name_where_one_is_not_there() {
    let (failing, first) = server().await;
    let (working, second) = server().await;
    let answering = |socket: UdpSocket, works: bool| async move {
        let mut asked = [0; 512];
        loop {
            let (length, from) = socket.recv_from(&mut asked).await.unwrap();
            let asked = &asked[..length];
            let known = asked.windows(6).any(|six| six == b"\x04site\x00");
            let is_a = asked[length - 3] == 1;
            let answered = match (works, known) {
                (false, _) => reply(asked, 0x8182, &[]),
                (true, false) => reply(asked, 0x8183, &[]),
                (true, true) if is_a => reply(asked, 0x8180, &[(1, &[10, 2, 2, 2])]),
                (true, true) => reply(asked, 0x8180, &[]),
            };
            socket.send_to(&answered, from).await.unwrap();
        }
    };
    let serving = [
        tokio::spawn(answering(failing, false)),
        tokio::spawn(answering(working, true)),
    ];
    let mut config = Config::parse("search nowhere site\n");
    config.servers = vec![first, second];
    assert_eq!(ask(&config, "vllm").await.unwrap(), [IpAddr::from([10, 2, 2, 2])]);
    let missing = ask(&config, "x.example").await;
    assert_eq!(
        missing.unwrap(),
        [IpAddr::from([10, 2, 2, 2])],
        "found under the search domain"
    );
    config = Config::parse("");
    config.servers = vec![second];
    assert_eq!(
        ask(&config, "x.example").await.unwrap_err().kind(),
        std::io::ErrorKind::NotFound
    );
    serving.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn addresses_and_names_of_loopback_need_no_name_server() {
    assert_eq!(
        super::addresses("10.1.2.3").await.unwrap(),
        [IpAddr::from([10, 1, 2, 3])]
    );
    let local = super::addresses("localhost").await.unwrap();
    assert!(
        local.iter().all(IpAddr::is_loopback) && !local.is_empty(),
        "{local:?}"
    );
}
