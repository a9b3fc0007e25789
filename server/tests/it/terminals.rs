use crate::support::{Place, Ran};
use std::process::Command;

const RUN: &[&str] = &[
    "run",
    "x",
    "--endpoint",
    "demo",
    "-n",
    "2",
    "--setup",
    "sleep 1; false",
];

/// Runs the program on a terminal of its own, and gives what that got. `script` (util-linux) makes the terminal.
fn on_a_terminal(place: &Place, variable: Option<(&str, &str)>, more: &[&str]) -> String {
    let mut command = Command::new("script");
    place.prepare(&mut command);
    command.env("TERM", "xterm-256color");
    command.envs(variable);
    let words = [env!("CARGO_BIN_EXE_dressage")]
        .into_iter()
        .chain(RUN.iter().copied());
    let words: Vec<_> = words
        .chain(more.iter().copied())
        .map(|word| format!("'{word}'"))
        .collect();
    let line = format!("stty cols 100 rows 30; exec {}", words.join(" "));
    command.args(["-qec", &line, "/dev/null"]);
    let ran = Ran::of(command.output().unwrap()).expect(1);
    assert!(ran.out.contains("2 of 2 rollouts ended"), "{}", ran.out);
    ran.out
}

/// Whether a text sets colours or other styles; moving about is something else.
fn has_styles(text: &str) -> bool {
    text.split("\x1b[").skip(1).any(|sequence| {
        sequence
            .trim_start_matches(|character: char| character.is_ascii_digit() || character == ';')
            .starts_with('m')
    })
}

#[test]
fn a_terminal_gets_bars_in_colour() {
    let place = Place::new();
    let shown = on_a_terminal(&place, None, &[]);
    assert!(shown.contains("0/2 rollouts"), "{shown:?}");
    assert!(shown.contains("x #0") && shown.contains("x #1"), "{shown:?}");
    assert!(has_styles(&shown), "{shown:?}");
}

#[test]
fn bars_have_no_colours_where_none_are_wanted() {
    let place = Place::new();
    let unwanted = on_a_terminal(&place, Some(("NO_COLOR", "1")), &[]);
    let never = on_a_terminal(&place, None, &["--color", "never"]);
    for shown in [unwanted, never] {
        assert!(
            shown.contains("0/2 rollouts") && shown.contains("setup"),
            "{shown:?}"
        );
        assert!(!has_styles(&shown), "{shown:?}");
    }
}

#[test]
fn a_quiet_terminal_gets_no_bars() {
    let place = Place::new();
    let mut command = Command::new("script");
    place.prepare(&mut command);
    let line = format!(
        "'{}' run x --endpoint demo --setup false --quiet",
        env!("CARGO_BIN_EXE_dressage")
    );
    command.args(["-qec", &line, "/dev/null"]);
    let ran = Ran::of(command.output().unwrap()).expect(1);
    assert_eq!(ran.out, "");
}

#[test]
fn whoever_is_no_terminal_gets_plain_lines() {
    let place = Place::new();
    let ran = place.run(RUN).expect(1);
    assert!(
        !ran.err.contains('\x1b') && !ran.err.contains('\r'),
        "{:?}",
        ran.err
    );
    assert!(!ran.err.contains("/2 rollouts"), "{}", ran.err);
    let lines: Vec<_> = ran.err.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.err);
    assert!(lines[2].starts_with("2 of 2 rollouts ended"), "{}", ran.err);
}
