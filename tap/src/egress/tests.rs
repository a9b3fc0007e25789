use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;

/// Names lead where they are said to, and it is kept which were asked for. Of others nothing is known.
#[derive(Default)]
struct Book {
    known: BTreeMap<&'static str, Vec<IpAddr>>,
    asked: Mutex<Vec<String>>,
}

impl Book {
    fn new<const N: usize>(known: [(&'static str, &str); N]) -> Arc<Self> {
        let addresses = |text: &str| text.split(' ').map(|text| text.parse().unwrap()).collect();
        Arc::new(Self {
            known: known.map(|(name, text)| (name, addresses(text))).into(),
            asked: Mutex::default(),
        })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl Names for Book {
    fn addresses<'a>(
        &'a self,
        name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        self.asked.lock().unwrap().push(name.to_owned());
        let found = self.known.get(name).cloned();
        Box::pin(async move { found.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}

fn egress(allowed: &[&str], book: &Arc<Book>) -> Arc<Egress> {
    let allowed = allowed.iter().map(|host| host.parse().unwrap()).collect();
    let names = Arc::clone(book) as Arc<dyn Names>;
    Arc::new(Egress::resolving(RolloutId::new(), allowed, names))
}

/// A server that answers each request with what it got.
async fn server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut got = Vec::new();
                while !got.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut got).await.unwrap() == 0 {
                        return;
                    }
                }
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: x-gone\r\nx-gone: 1\r\n\r\n",
                    got.len()
                );
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&got).await.unwrap();
            });
        }
    });
    address
}

/// What comes back for `sent`, until the proxy closes.
async fn asked(egress: &Arc<Egress>, sent: &str) -> String {
    let (mut client, proxy) = tokio::io::duplex(1 << 20);
    let serving = tokio::spawn(Arc::clone(egress).serve_connection(proxy));
    client.write_all(sent.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    client.read_to_end(&mut got).await.unwrap();
    serving.await.unwrap();
    String::from_utf8(got).unwrap()
}

#[tokio::test]
async fn a_whole_url_goes_to_its_host_without_what_is_for_the_proxy() {
    let book = Book::new([("plain.example", "127.0.0.1")]);
    let port = server().await.port();
    let egress = egress(
        &[&format!("plain.example:{port}"), &format!("127.0.0.1:{port}")],
        &book,
    );
    let sent = format!(
        "GET http://Plain.Example.:{port}/a?b=c HTTP/1.1\r\nhost: other.example\r\nproxy-authorization: Basic x\r\n\
         proxy-connection: keep-alive\r\nconnection: close, x-hop\r\nx-hop: 1\r\nx-kept: 2\r\n\r\n"
    );
    let got = asked(&egress, &sent).await;
    assert!(
        got.starts_with("HTTP/1.1 200 OK\r\n") && !got.contains("x-gone"),
        "{got}"
    );
    let (_, body) = got.split_once("\r\n\r\n").unwrap();
    assert!(body.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{body}");
    assert!(
        body.contains(&format!("host: plain.example:{port}\r\n")) && body.contains("x-kept: 2\r\n"),
        "{body}"
    );
    for gone in ["other.example", "proxy-", "x-hop"] {
        assert!(!body.contains(gone), "{gone} in {body}");
    }
    assert_eq!(
        book.asked(),
        ["plain.example"],
        "and not again after it was checked"
    );
    assert_eq!((egress.passed(), egress.refusals().count), (1, 0));
}

#[tokio::test]
async fn a_tunnel_passes_on_what_is_said_in_it() {
    let book = Book::new([("secure.example", "127.0.0.1")]);
    let port = server().await.port();
    let egress = egress(
        &[&format!("secure.example:{port}"), &format!("127.0.0.1:{port}")],
        &book,
    );
    let (mut client, proxy) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(Arc::clone(&egress).serve_connection(proxy));
    // The header that says otherwise has no say; and what comes before the answer is not lost.
    let head = format!("CONNECT secure.example:{port} HTTP/1.1\r\nhost: evil.example:443\r\n\r\nfirst ");
    client.write_all(head.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\n") {
        client.read_buf(&mut got).await.unwrap();
    }
    assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n"));
    client.write_all(b"and more\r\n\r\n").await.unwrap();
    let mut got = String::new();
    client.read_to_string(&mut got).await.unwrap();
    assert!(got.ends_with("\r\n\r\nfirst and more\r\n\r\n"), "{got}");
    // Until then it may have more to say.
    drop(client);
    serving.await.unwrap();
    assert_eq!((egress.passed(), egress.refusals().count), (1, 0));
    assert_eq!(egress.moved_bytes(), got.len() as u64 + 18);
}

#[tokio::test]
async fn what_is_not_allowed_is_told_with_its_name_and_how_to_allow_it() {
    let book = Book::new([]);
    let egress = egress(&["plain.example", "*.wide.example:8443", "10.1.2.3:80"], &book);
    let long = format!("{}.example:443", vec!["a".repeat(60); 4].join("."));
    let too_long = format!("{}.example:443", vec!["a".repeat(60); 400].join("."));
    for (sent, status, told) in [
        (
            "CONNECT evil.example:443",
            403,
            "`evil.example:443` is not among the hosts that this sandbox may reach, which are `plain.example`, \
             `*.wide.example:8443`, `10.1.2.3:80`. The task allows it with network = { allow = [\"evil.example:443\"] }, \
             `dressage run` with --network allow:evil.example:443",
        ),
        ("CONNECT plain.example:22", 403, "`plain.example:22`"),
        ("CONNECT PLAIN.example.evil.:443", 403, "`plain.example.evil:443`"),
        ("CONNECT wide.example:8443", 403, "`wide.example:8443`"),
        ("CONNECT 127.0.0.1:443", 403, "`127.0.0.1:443`"),
        ("CONNECT [::ffff:127.0.0.1]:443", 403, "`127.0.0.1:443`"),
        ("CONNECT [::1]:443", 403, "`[::1]:443`"),
        ("CONNECT [2606:4700::1111]:443", 403, "`[2606:4700::1111]:443`"),
        ("CONNECT 10.1.2.3:443", 403, "`10.1.2.3:443`"),
        (&format!("CONNECT {long}"), 403, &long),
        ("GET http://evil.example/", 403, "`evil.example:80`"),
        (
            "GET http://evil.example:8080/plain.example",
            403,
            "`evil.example:8080`",
        ),
        (
            &format!("CONNECT {too_long}"),
            400,
            "neither a name nor an address",
        ),
        ("CONNECT 2130706433:443", 400, "neither a name nor an address"),
        ("CONNECT 0x7f.1:443", 400, "neither a name nor an address"),
        ("CONNECT plain.example:443:80", 400, ""),
        ("CONNECT plain.example:+443", 400, ""),
        ("CONNECT plain.example:65979", 400, ""),
        ("CONNECT plain.example", 400, "no port"),
        ("CONNECT http://plain.example/", 400, "this is a proxy"),
        ("CONNECT user@plain.example:443", 400, ""),
        (
            "GET http://plain.example@evil.example/",
            400,
            "stands before the host",
        ),
        (
            "GET http://evil.example@plain.example/",
            400,
            "stands before the host",
        ),
        ("GET http://plain.example:80@evil.example/", 400, ""),
        ("GET http://plain.example\\@evil.example/", 400, ""),
        ("GET http://plain.example%2eevil.example/", 400, ""),
        ("GET https://plain.example/", 400, "this is a proxy"),
        ("GET ftp://plain.example/", 400, "this is a proxy"),
        ("GET //plain.example/", 400, "this is a proxy"),
        ("GET plain.example:443", 400, "this is a proxy"),
        ("GET /", 400, "this is a proxy"),
        ("OPTIONS *", 400, "this is a proxy"),
    ] {
        let head = format!("{sent} HTTP/1.1\r\nhost: plain.example\r\nconnection: close\r\n\r\n");
        let got = asked(&egress, &head).await;
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{sent}: {got}");
        assert!(got.contains(told), "{sent}: {got}");
    }
    let refusals = egress.refusals();
    assert_eq!((refusals.count, refusals.hosts.len()), (12, 11));
    assert_eq!(refusals.hosts["127.0.0.1:443"], 2);
    assert_eq!(egress.passed(), 0);
    assert_eq!(
        book.asked(),
        Vec::<String>::new(),
        "nothing is resolved that is not allowed"
    );
}

#[tokio::test]
async fn an_allowed_name_leads_to_no_address_that_is_not_public_unless_that_is_listed() {
    let book = Book::new([
        ("loopback.example", "127.0.0.1"),
        ("mapped.example", "::ffff:127.0.0.1"),
        ("six.example", "::1"),
        ("metadata.example", "169.254.169.254"),
        ("translated.example", "64:ff9b::a9fe:a9fe"),
        ("private.example", "10.0.0.1 192.168.0.1 fd00::1"),
        ("any.example", "0.0.0.0"),
    ]);
    let port = server().await.port();
    let names = book.known.keys().map(|name| format!("{name}:{port}"));
    let mut allowed: Vec<String> = names.collect();
    let head = |name: &str| format!("CONNECT {name}:{port} HTTP/1.1\r\nconnection: close\r\n\r\n");
    let strict = egress(&allowed.iter().map(String::as_str).collect::<Vec<_>>(), &book);
    for (name, why) in [
        ("loopback.example", "127.0.0.1 is not a public address"),
        ("mapped.example", "127.0.0.1 is not a public address"),
        ("six.example", "::1 is not a public address"),
        ("metadata.example", "169.254.169.254 is a link-local address"),
        ("translated.example", "64:ff9b::a9fe:a9fe is a link-local address"),
        ("private.example", "fd00::1 is not a public address"),
        ("any.example", "0.0.0.0 is not the address of one host"),
    ] {
        let got = asked(&strict, &head(name)).await;
        assert!(
            got.starts_with("HTTP/1.1 403 ") && got.contains(why),
            "{name}: {got}"
        );
    }
    assert_eq!((strict.passed(), strict.refusals().count), (0, 7));

    allowed.push(format!("127.0.0.1:{port}"));
    let listed = egress(&allowed.iter().map(String::as_str).collect::<Vec<_>>(), &book);
    for sent in [
        format!("GET http://loopback.example:{port}/"),
        format!("GET http://mapped.example:{port}/"),
        format!("GET http://127.0.0.1:{port}/"),
    ] {
        let got = asked(&listed, &format!("{sent} HTTP/1.1\r\nconnection: close\r\n\r\n")).await;
        assert!(got.starts_with("HTTP/1.1 200 "), "{sent}: {got}");
    }
    for name in ["six.example", "metadata.example", "any.example"] {
        let got = asked(&listed, &head(name)).await;
        assert!(got.starts_with("HTTP/1.1 403 "), "{name}: {got}");
    }
}

#[tokio::test]
async fn a_name_of_which_nothing_is_known_and_a_host_that_does_not_answer_are_no_refusals() {
    let port = dressage_testkit::closed::ClosedPort::take().unwrap();
    let closed = port.address().port();
    let book = Book::new([("closed.example", "127.0.0.1")]);
    let egress = egress(
        &[
            "lost.example",
            &format!("closed.example:{closed}"),
            &format!("127.0.0.1:{closed}"),
        ],
        &book,
    );
    for (sent, told) in [
        (
            "CONNECT lost.example:443".to_owned(),
            "`lost.example:443`: it was not found",
        ),
        (
            format!("CONNECT closed.example:{closed}"),
            "it cannot be reached: Connection refused",
        ),
    ] {
        let got = asked(&egress, &format!("{sent} HTTP/1.1\r\nconnection: close\r\n\r\n")).await;
        assert!(
            got.starts_with("HTTP/1.1 502 ") && got.contains(told),
            "{sent}: {got}"
        );
    }
    assert_eq!((egress.passed(), egress.refusals().count), (0, 0));
}

#[tokio::test]
async fn each_request_of_a_connection_is_looked_at() {
    let book = Book::new([]);
    let port = server().await.port();
    let egress = egress(&[&format!("127.0.0.1:{port}")], &book);
    let got = asked(
        &egress,
        &format!(
            "GET http://127.0.0.1:{port}/ HTTP/1.1\r\nhost: x\r\n\r\n\
             GET http://evil.example/ HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n\r\n"
        ),
    )
    .await;
    assert!(
        got.starts_with("HTTP/1.1 200 OK\r\n") && got.contains("HTTP/1.1 403 Forbidden\r\n"),
        "{got}"
    );
}

#[tokio::test]
async fn a_head_without_end_is_answered_and_closed() {
    let egress = egress(&["plain.example"], &Book::new([]));
    let head = format!(
        "CONNECT plain.example:443 HTTP/1.1\r\nx: {}\r\n\r\n",
        "x".repeat(HEAD_BYTES)
    );
    let got = asked(&egress, &head).await;
    assert!(got.starts_with("HTTP/1.1 431 "), "{got}");
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_slowly_is_not_waited_for() {
    let egress = egress(&["plain.example"], &Book::new([]));
    let (mut client, proxy) = tokio::io::duplex(1 << 16);
    let began = Instant::now();
    let serving = tokio::spawn(Arc::clone(&egress).serve_connection(proxy));
    let head = b"CONNECT plain.example:443 HTTP/1.1\r\n";
    let mut sent = 0;
    for byte in head.iter().cycle() {
        if client.write_all(&[*byte]).await.is_err() {
            break;
        }
        sent += 1;
        tokio::time::sleep(Duration::from_secs(4)).await;
    }
    serving.await.unwrap();
    assert!(
        began.elapsed() < IDLE + Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    assert!(sent < 20, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn a_tunnel_in_which_nothing_moves_is_closed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let egress = egress(&[&format!("127.0.0.1:{port}")], &Book::new([]));
    let (mut client, proxy) = tokio::io::duplex(1 << 16);
    let serving = tokio::spawn(Arc::clone(&egress).serve_connection(proxy));
    let head = format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let (_host, _) = listener.accept().await.unwrap();
    let began = Instant::now();
    let mut got = String::new();
    client.read_to_string(&mut got).await.unwrap();
    assert!(got.starts_with("HTTP/1.1 200 "), "{got}");
    let waited = began.elapsed();
    assert!(
        (passing::QUIET..passing::QUIET + Duration::from_secs(30)).contains(&waited),
        "{waited:?}"
    );
    serving.await.unwrap();
}

#[tokio::test]
async fn the_systems_names_are_what_the_system_says() {
    let found = SystemNames.addresses("localhost").await.unwrap();
    assert!(
        found.iter().all(IpAddr::is_loopback) && !found.is_empty(),
        "{found:?}"
    );
}

/// Heads of requests, of parts that hosts and ports are smuggled with.
fn head() -> impl Strategy<Value = Vec<u8>> {
    const PARTS: [&str; 44] = [
        "CONNECT ",
        "GET ",
        "POST ",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        "\r\n",
        "\r\n\r\n",
        "\n",
        "\r",
        " ",
        "\t",
        "http://",
        "https://",
        "//",
        "/",
        "\\",
        "@",
        ":",
        ":443",
        ":80",
        ":0443",
        ":+80",
        ":65979",
        "%00",
        "%2e",
        "#",
        "?",
        "plain.example",
        "PLAIN.example.",
        "a.wide.example",
        "wide.example",
        "evil.example",
        ".",
        "*",
        "127.0.0.1",
        "2130706433",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "host: plain.example\r\n",
        "connection: close\r\n",
        "transfer-encoding: chunked\r\n",
        "content-length: 4\r\n",
        "\0",
        "\u{e9}",
    ];
    let part = prop_oneof![
        8 => prop::sample::select(PARTS.as_slice()).prop_map(|part| part.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_is_asked_no_name_is_looked_up_and_no_address_connected_to_that_is_not_allowed(head in head(), start in 0..3_usize) {
        let book = Book::new([]);
        let egress = egress(&["plain.example", "*.wide.example"], &book);
        let start = ["", "CONNECT ", "GET http://"][start];
        let sent = [start.as_bytes(), &head, b" HTTP/1.1\r\nconnection: close\r\n\r\n"].concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let got = runtime.block_on(async {
            let (mut client, proxy) = tokio::io::duplex(1 << 16);
            let serving = tokio::spawn(Arc::clone(&egress).serve_connection(proxy));
            client.write_all(&sent).await.unwrap();
            let mut got = Vec::new();
            client.read_to_end(&mut got).await.unwrap();
            serving.await.unwrap();
            got
        });
        for name in book.asked() {
            prop_assert!(name == "plain.example" || name.ends_with(".wide.example"), "{name:?}");
        }
        prop_assert_eq!(egress.passed(), 0);
        prop_assert!(got.is_empty() || got.starts_with(b"HTTP/1."));
    }
}
