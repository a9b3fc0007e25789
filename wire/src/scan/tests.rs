use super::*;
use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::Value;
use std::borrow::Cow;

fn skipped(text: &str) -> Result<&str, ScanProblem> {
    let mut reader = Reader::new(text.as_bytes());
    let span = reader.skip().map_err(|error| error.problem)?;
    Ok(&text[span])
}

#[test]
fn values_are_skipped_whole() {
    for value in [
        "null",
        "-1.5e+3",
        "NaN",
        "-Infinity",
        r#""a\"b\\""#,
        r#"{"a":[1,{"b":"]}"}],"c":"\\"}"#,
        "[[[]],{}]",
    ] {
        for after in ["", ",1", "]", "}", " "] {
            assert_eq!(skipped(&format!(" {value}{after}")), Ok(value), "{value}{after}");
        }
    }
}

#[test]
fn what_is_no_value_is_an_error() {
    for (text, problem) in [
        ("", ScanProblem::End),
        (",", ScanProblem::Unexpected),
        ("]", ScanProblem::Unexpected),
        ("nul", ScanProblem::Literal),
        ("-", ScanProblem::Literal),
        ("True", ScanProblem::Literal),
        ("\"a", ScanProblem::End),
        ("\"a\\", ScanProblem::End),
        ("[1,2", ScanProblem::End),
        ("{\"a\":\"}", ScanProblem::End),
    ] {
        assert_eq!(skipped(text), Err(problem), "{text}");
    }
}

#[test]
fn brackets_and_escapes_are_told_apart_at_every_offset_of_a_block() {
    for lead in 0..140 {
        let value = format!(r#"[{}"\\\"]\\",{{"a":"}}"}},[]]"#, " ".repeat(lead));
        assert_eq!(skipped(&format!("{value}]]")), Ok(value.as_str()), "{lead}");
    }
}

#[test]
fn strings_are_closed_at_every_length() {
    for length in 0..600 {
        let value = format!("\"{}\\\"{}\"", "x".repeat(length), "y".repeat(length % 40));
        assert_eq!(skipped(&format!("{value}\"")), Ok(value.as_str()), "{length}");
    }
}

#[test]
fn members_are_found_with_white_space_and_escapes() {
    let text = "{ \"a\" : 1 ,\n\"b\\n\":[ ] }";
    let found: Vec<_> = members(text.as_bytes()).unwrap();
    let texts: Vec<_> = found
        .iter()
        .map(|member| (&text[member.key.clone()], &text[member.value.clone()]))
        .collect();
    assert_eq!(texts, [("a", "1"), ("b\\n", "[ ]")]);
    for bad in [
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1}x",
        "[]",
        "{a:1}",
        "{\"a\":1 \"b\":2}",
    ] {
        assert!(members(bad.as_bytes()).is_err(), "{bad}");
    }
}

#[test]
fn strings_are_decoded() {
    for (body, text) in [
        (r"a\n\t\b\f\r\/\\", "a\n\t\u{8}\u{c}\r/\\"),
        (r#"\"\u00e9\u20AC"#, "\"é€"),
        (r"\ud83c\udf89!", "🎉!"),
        (r"\ud83c!", "\u{fffd}!"),
        (r"\udf89\ud83c", "\u{fffd}\u{fffd}"),
        (r"\ud83cA", "\u{fffd}A"),
        (r"\u12", "\u{fffd}12"),
        (r"\q", "q"),
        ("\\", ""),
    ] {
        assert_eq!(decode_string(body.as_bytes()), text, "{body}");
    }
    assert_eq!(decode_string(b"a\xff"), "a\u{fffd}");
    assert!(matches!(decode_string("é".as_bytes()), Cow::Borrowed("é")));
}

#[test]
fn numbers_are_read_exactly() {
    assert_eq!(parse_f64(b"-0.005850334651768208"), Some(-0.005850334651768208));
    assert_eq!(parse_f64(b"-1e-3"), Some(-0.001));
    assert_eq!(parse_f64(b"7"), Some(7.0));
    for bad in [
        "", "null", "\"1\"", "1x", "inf", "nan", "infinity", "-", "+1", "1.",
    ] {
        assert_eq!(parse_f64(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
    for bad in ["", "-1", "1.0", "18446744073709551616", "x"] {
        assert_eq!(parse_u64(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn ids_are_read_or_refused() {
    let ids = |text: &str| {
        let mut ids = Vec::new();
        parse_u32_array(&mut Reader::new(text.as_bytes()), &mut ids).map(|there| (there, ids))
    };
    assert_eq!(ids("[1, 4294967295]"), Ok((true, vec![1, u32::MAX])));
    assert_eq!(ids("null"), Ok((false, vec![])));
    for bad in [
        "[4294967296]",
        "[-1]",
        "[1.5]",
        "[null]",
        "[\"1\"]",
        "{}",
        "[1",
        "7",
    ] {
        assert!(ids(bad).is_err(), "{bad}");
    }
}

/// An object with the members named in `cut` taken out.
fn cut(text: &str, cut: &[&str]) -> String {
    let (mut cutter, mut edits) = (Cutter::default(), Edits::default());
    for member in members(text.as_bytes()).unwrap() {
        let (start, end) = (member.key.start - 1, member.value.end);
        if cut.contains(&&text[member.key]) {
            cutter.cut(start, end, &mut edits);
        } else {
            cutter.keep(start, end, &mut edits);
        }
    }
    cutter.close(&mut edits);
    let mut out = BytesMut::new();
    edits.write(text.as_bytes(), &mut out);
    assert_eq!(out.len(), edits.length_of(text.as_bytes()));
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn members_are_cut_with_one_comma_each() {
    let text = r#"{ "a":1, "b":2 ,"c":3 }"#;
    assert_eq!(cut(text, &[]), text);
    assert_eq!(cut(text, &["a"]), r#"{ "b":2 ,"c":3 }"#);
    assert_eq!(cut(text, &["b"]), r#"{ "a":1 ,"c":3 }"#);
    assert_eq!(cut(text, &["c"]), r#"{ "a":1, "b":2 }"#);
    assert_eq!(cut(text, &["a", "b"]), r#"{ "c":3 }"#);
    assert_eq!(cut(text, &["a", "c"]), r#"{ "b":2 }"#);
    assert_eq!(cut(text, &["a", "b", "c"]), "{  }");
}

fn canon(text: &str) -> Result<String, ScanError> {
    canonical(text.as_bytes(), &[]).map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn texts_that_say_the_same_have_one_form() {
    assert_eq!(
        canon(r#" { "b" : [ 1 , 2.50 ] , "a" : "\u00e9\/\n" } "#).unwrap(),
        r#"{"a":"é/\n","b":[1,2.50]}"#
    );
    assert_eq!(
        canon(r#"{"b":{"d":1,"c":2},"a":{}}"#).unwrap(),
        r#"{"a":{},"b":{"c":2,"d":1}}"#
    );
    let without = canonical(br#"{"a":1,"b":{"a":2},"c":3}"#, &["a", "c"]).unwrap();
    assert_eq!(without, br#"{"b":{"a":2}}"#);
}

#[test]
fn what_is_not_json_in_every_detail_has_no_form() {
    for bad in [
        "",
        "01",
        "1.",
        ".5",
        "1e",
        "+1",
        "NaN",
        "-Infinity",
        "[1}",
        "[1,]",
        "{\"a\"}",
        "\"\u{1}\"",
        "\"\\q\"",
        "\"\\u12g4\"",
        "nulll",
        "[1 2]",
        "'a'",
    ] {
        assert!(canon(bad).is_err(), "{bad}");
    }
    assert_eq!(canon(&"[".repeat(129)).unwrap_err().problem, ScanProblem::Depth);
    assert!(canon(&format!("{}{}", "[".repeat(128), "]".repeat(128))).is_ok());
    assert_eq!(
        canonical(b"\"\xff\"", &[]).unwrap_err().problem,
        ScanProblem::Utf8
    );
}

#[test]
fn what_is_nearly_json_is_put_right_and_what_is_not_is_given_up() {
    let right = |text: &[u8]| sound(text).map(|text| String::from_utf8(text.into_owned()).unwrap());
    for (text, expected) in [
        (
            &br#"{"a":NaN,"b":[-Infinity,-1]}"#[..],
            r#"{"a":null,"b":[null,-1]}"#,
        ),
        (b"\"NaN \\q \x01\"", r#""NaN q \u0001""#),
        (b"\"a\xff\"", "\"a\u{fffd}\""),
        (br#""\ud83c\udf89 \ud83c""#, "\"🎉 \u{fffd}\""),
    ] {
        assert_eq!(right(text).as_deref(), Some(expected));
    }
    for bad in ["{\"a\":1 2}", "[", "{:}", "nul"] {
        assert_eq!(right(bad.as_bytes()), None, "{bad}");
    }
    for valid in [&br#"{"a":1}"#[..], br#""\u0010 \ud83c\udf89 \n \\ud83c""#] {
        assert!(matches!(sound(valid), Some(Cow::Borrowed(_))));
    }
}

proptest! {
    #[test]
    fn any_text_is_written_as_the_string_it_is(text in any::<String>()) {
        let mut out = Vec::new();
        write_string(&text, &mut out);
        prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text.clone());
        prop_assert_eq!(decode_string(string_body(&out).unwrap()), text);
    }

    #[test]
    fn a_parser_reads_every_escape_that_is_not_doubtful(
        body in r"(\\[u\\n/q]|d83c|DF89|fffd|[0-9a-g]){0,10}",
    ) {
        let parsed = serde_json::from_str::<String>(&format!("\"{body}\""));
        let replaced = parsed.as_ref().map_or(true, |text| text.contains('\u{fffd}'));
        prop_assert_eq!(has_doubtful_escape(body.as_bytes()), replaced, "{}", body);
    }

    #[test]
    fn canonical_agrees_with_a_parser_on_what_is_json(text in r#"[\[\]{}:,"\\ a0-9.eEnulltrue+-]{0,24}"#) {
        let parsed = serde_json::from_str::<Value>(&text);
        // A parser to floats refuses numbers that are too large; their form is right.
        let too_large = parsed.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
        prop_assert_eq!(canon(&text).is_ok(), parsed.is_ok() || too_large, "{}", text);
        if let (Ok(form), Ok(parsed)) = (canon(&text), parsed) {
            prop_assert_eq!(serde_json::from_str::<Value>(&form).unwrap(), parsed);
        }
    }

    #[test]
    fn a_skipped_value_ends_where_a_parser_ends(value in r#"[\[\]{}"\\ab,]{0,200}"#) {
        // A string that holds the text, among brackets that do not.
        let value = serde_json::json!([{"a": [value, {"b": value}]}, value]).to_string();
        let text = format!("{value}, 1]");
        prop_assert_eq!(skipped(&text), Ok(value.as_str()));
    }
}
