use crate::support::Place;

#[test]
fn help_lists_the_commands_and_the_exit_codes() {
    let place = Place::new();
    insta::assert_snapshot!(place.run(&["--help"]).expect(0).redacted(&place));
    insta::assert_snapshot!(place.run(&["run", "-h"]).expect(0).redacted(&place));
    insta::assert_snapshot!(place.run(&["sandboxes", "list", "-h"]).expect(0).redacted(&place));
    insta::assert_snapshot!(place.run(&["sandboxes", "kill", "-h"]).expect(0).redacted(&place));
    insta::assert_snapshot!(place.run(&["template", "build", "-h"]).expect(0).redacted(&place));
    insta::assert_snapshot!(
        place
            .run(&["template", "context", "-h"])
            .expect(0)
            .redacted(&place)
    );
}

#[test]
fn a_misspelt_option_is_exit_2_with_the_one_that_was_meant() {
    let place = Place::new();
    let ran = place.run(&["run", "x", "--max-call", "3"]).expect(2);
    assert!(ran.err.contains("--max-calls"), "{}", ran.err);
    assert_eq!(ran.out, "");
}

#[test]
fn numbers_that_are_none_are_exit_2_and_named() {
    let place = Place::new();
    for (option, value) in [
        ("--temperature", "nan"),
        ("--top-p", "inf"),
        ("--agent-timeout", "0"),
        ("--agent-timeout", "-1"),
        ("--concurrency", "0"),
        ("--samples", "0"),
        ("--env", "novalue"),
        ("--network", "all"),
        ("--network", "allow:*.org"),
        ("--verify-in", "other"),
        ("--snapshot", "always"),
        ("--mode", "proxy"),
    ] {
        let ran = place.run(&["run", "x", &format!("{option}={value}")]).expect(2);
        assert!(ran.err.contains(option), "{option} {value}: {}", ran.err);
    }
}

#[test]
fn the_version_is_said() {
    let ran = Place::new().run(&["--version"]).expect(0);
    assert_eq!(ran.out, format!("dressage {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_made_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = place.run(&["completions", shell]).expect(0);
        assert!(ran.out.contains("max-calls"), "{shell}");
    }
}

#[test]
fn output_into_a_closed_pipe_is_no_failure() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_dressage");
    let mut command = std::process::Command::new("bash");
    place.prepare(&mut command);
    let script = format!(
        "set -o pipefail; '{program}' completions bash | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    );
    let ran = crate::support::Ran::of(command.args(["-c", &script]).output().unwrap());
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("0\n", ""));
}

#[test]
fn nothing_run_yet_is_an_empty_list_and_no_failure() {
    let place = Place::new();
    let ran = place.run(&["list"]).expect(0);
    assert_eq!(ran.out, "");
    assert!(!place.data().exists(), "listing makes nothing");
    place.run(&["list", "--json"]).expect(0);
    place.run(&["show", "last"]).expect(2);
}

#[test]
fn output_that_a_full_disk_does_not_take_is_exit_3() {
    let place = Place::new();
    for arguments in [&["doctor"] as &[&str], &["agents", "list"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = place.command(arguments).stdout(full).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {error}");
        assert!(
            error.contains("error: standard output could not be written\ncause: No space left on device"),
            "{arguments:?}: {error}"
        );
    }
}
