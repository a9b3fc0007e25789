use super::*;

fn allows(allowed: &str, authority: &str) -> bool {
    let target = Target::parse(authority, None).unwrap();
    allowed.parse::<AllowedHost>().unwrap().allows(&target)
}

#[test]
fn a_name_allows_itself_at_the_usual_ports() {
    for target in [
        "index.example:443",
        "index.example:80",
        "Index.Example.:443",
        "index.example:0443",
    ] {
        assert!(allows("index.example", target), "{target}");
        assert!(allows("INDEX.example.", target), "{target}");
    }
    for target in [
        "index.example:22",
        "files.index.example:443",
        "index.example.evil.example:443",
        "evilindex.example:443",
        "index.exampleg:443",
        "example:443",
    ] {
        assert!(!allows("index.example", target), "{target}");
    }
}

#[test]
fn a_port_is_the_only_one() {
    assert!(allows("git.example.org:22", "git.example.org:22"));
    assert!(!allows("git.example.org:22", "git.example.org:443"));
    assert!(allows("10.0.0.1:8080", "10.0.0.1:8080"));
    assert!(!allows("10.0.0.1:8080", "10.0.0.1:80"));
}

#[test]
fn a_wildcard_allows_what_is_below_and_not_the_name_itself() {
    for target in [
        "a.example.org:443",
        "a.b.example.org:80",
        "A.Example.Org.:443",
        "_x.example.org:80",
    ] {
        assert!(allows("*.example.org", target), "{target}");
    }
    for target in ["example.org:443", "aexample.org:443", "a.example.org.evil:443"] {
        assert!(!allows("*.example.org", target), "{target}");
    }
}

#[test]
fn an_address_allows_itself_in_its_spellings() {
    for target in ["127.0.0.1:80", "[::ffff:127.0.0.1]:80", "[::FFFF:7f00:1]:443"] {
        assert!(allows("127.0.0.1", target), "{target}");
        assert!(allows("::ffff:127.0.0.1", target), "{target}");
    }
    assert!(allows("::1", "[::1]:80") && allows("[::1]", "[0:0:0::1]:443"));
    assert!(allows("[::1]:8080", "[::1]:8080") && !allows("[::1]:8080", "[::1]:80"));
    for target in ["127.0.0.2:80", "[::1]:80", "localhost:80"] {
        assert!(!allows("127.0.0.1", target), "{target}");
    }
}

#[test]
fn what_names_no_host_is_refused_with_the_reason() {
    use AllowedHostError as Error;
    let refused = |text: &str| text.parse::<AllowedHost>().unwrap_err();
    let long = "a".repeat(64);
    let all = format!("{}.org", vec!["a".repeat(60); 5].join("."));
    for text in [
        "",
        ".",
        ":80",
        "a b",
        "*",
        "*a.org",
        "a.*.org",
        "a..b",
        "a.org..",
        "-a.org",
        "a-.org",
        "a/b",
        "user@a.org",
        "é.org",
        "a.org\n",
        "*.1.1.1.1",
        "[1.1.1.1]",
        "[::1",
        "[::1]80",
        "[fe80::1%eth0]",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "0x7f000001",
        "127.0.0.01",
        &long,
        &all,
    ] {
        let error = refused(text);
        assert!(matches!(error, Error::BadName(_)), "{text}: {error}");
    }
    for text in ["0.0.0.0", "255.255.255.255", "224.0.0.1:80", "::", "[ff02::1]:80"] {
        assert!(matches!(refused(text), Error::BadAddress(_)), "{text}");
    }
    for text in [
        "a.org:",
        "a.org:0",
        "a.org:65536",
        "a.org:x",
        "a.org:+80",
        "a:1:2",
        "http://a.org",
    ] {
        assert!(matches!(refused(text), Error::BadPort(_)), "{text}");
    }
    assert!(matches!(refused("*.org"), Error::TooWide(_)));
}

#[test]
fn text_goes_in_and_comes_out() {
    for text in [
        "index.example",
        "*.example.org:8443",
        "localhost:80",
        "10.0.0.1",
        "[::1]",
        "[::1]:80",
    ] {
        let allowed: AllowedHost = text.parse().unwrap();
        assert_eq!(allowed.to_string(), text);
        let json = serde_json::to_string(&allowed).unwrap();
        assert_eq!(serde_json::from_str::<AllowedHost>(&json).unwrap(), allowed);
    }
}

#[test]
fn a_target_is_a_host_and_a_port_and_nothing_else() {
    let parsed = |text: &str, usual| Target::parse(text, usual).map(|target| target.to_string());
    assert_eq!(parsed("A.org.:443", None).unwrap(), "a.org:443");
    assert_eq!(parsed("a.org", Some(80)).unwrap(), "a.org:80");
    assert_eq!(parsed("a.org:8080", Some(80)).unwrap(), "a.org:8080");
    assert_eq!(parsed("[::1]:80", None).unwrap(), "[::1]:80");
    for (text, error) in [
        ("a.org", TargetError::BadPort),
        ("a.org:", TargetError::BadPort),
        ("a.org:443:80", TargetError::BadPort),
        ("a.org:+443", TargetError::BadPort),
        ("a.org:65979", TargetError::BadPort),
        ("a.org:0", TargetError::BadPort),
        ("u@a.org:443", TargetError::Userinfo),
        ("a.org:443@evil.example:443", TargetError::Userinfo),
        ("", TargetError::BadHost),
        (":443", TargetError::BadHost),
        ("::1:443", TargetError::BadHost),
        ("a.org%00.evil.example:443", TargetError::BadHost),
        ("*.a.org:443", TargetError::BadHost),
        ("127.1:443", TargetError::BadHost),
        ("0x7f000001:443", TargetError::BadHost),
        ("[::1]443", TargetError::BadHost),
        ("[127.0.0.1]:443", TargetError::BadHost),
        ("[fe80::1%251]:443", TargetError::BadHost),
    ] {
        assert_eq!(parsed(text, None), Err(error), "{text}");
    }
}
