use crate::support::Place;

/// Runs an input that must be refused before anything is made.
#[track_caller]
fn refused(place: &Place, arguments: &[&str]) -> String {
    let mut all = vec!["run", "--endpoint", "demo"];
    all.extend_from_slice(arguments);
    let ran = place.run(&all).expect(2);
    assert_eq!(ran.out, "");
    assert!(!place.data().exists(), "nothing is made for bad input");
    ran.err
}

#[test]
fn a_task_file_with_an_unknown_key_names_it_and_the_nearest() {
    let place = Place::new();
    place.write("t.toml", "instruction = 'x'\nverfy = ['true']\n");
    let err = refused(&place, &["t.toml"]);
    assert_eq!(
        err,
        "error: task file `t.toml` is not usable\ncause: unknown key `verfy`\nhint: did you mean `verify`?\n"
    );
}

#[test]
fn a_task_file_with_a_wrong_type_names_its_place() {
    let place = Place::new();
    place.write(
        "t.json",
        r#"{"instruction": "x", "limits": {"max_calls": "many"}}"#,
    );
    let err = refused(&place, &["t.json"]);
    assert!(err.contains("limits.max_calls") && err.contains("many"), "{err}");
}

#[test]
fn a_task_file_without_instruction_says_so() {
    let place = Place::new();
    place.write("t.toml", "verify = ['true']\n");
    let err = refused(&place, &["t.toml"]);
    assert!(err.contains("cause: task has no instruction"), "{err}");
}

#[test]
fn a_directory_is_refused_for_one_bad_file_in_it_before_any_rollout() {
    let place = Place::new();
    std::fs::create_dir(place.path("work").join("tasks")).unwrap();
    place.write("tasks/a.toml", "instruction = 'x'\n");
    place.write("tasks/b.json", "{");
    let err = refused(&place, &["tasks"]);
    assert!(err.contains("tasks/b.json") && err.contains("not JSON"), "{err}");
}

#[test]
fn a_directory_without_task_files_is_refused_with_what_to_do() {
    let place = Place::new();
    std::fs::create_dir(place.path("work").join("tasks")).unwrap();
    place.write("tasks/notes.md", "x");
    let err = refused(&place, &["tasks"]);
    assert!(
        err.contains("has no task file") && err.contains("hint: put task files directly into it"),
        "{err}"
    );
}

#[test]
fn an_instruction_of_10_mb_is_refused_wherever_it_comes_from() {
    let place = Place::new();
    let long = "x".repeat(10 << 20);
    place.write("long.txt", &long);
    place.write("t.toml", format!("instruction = '{long}'\n"));
    for arguments in [["@long.txt"].as_slice(), &["--file", "long.txt"], &["t.toml"]] {
        let err = refused(&place, arguments);
        assert!(
            err.contains("over the limit of 4194304"),
            "{arguments:?}: {}",
            &err[..err.len().min(500)]
        );
        assert!(err.len() < 1_000, "the instruction itself is not repeated");
    }
    let piped = place
        .command(&["run", "--endpoint", "demo", "-"])
        .stdin(std::fs::File::open(place.path("work/long.txt")).unwrap())
        .output()
        .unwrap();
    assert_eq!(piped.status.code(), Some(2));
}

#[test]
fn an_empty_instruction_is_none() {
    let place = Place::new();
    place.write("empty.txt", " \n");
    for arguments in [[""].as_slice(), &["@empty.txt"], &["-"]] {
        let err = refused(&place, arguments);
        assert!(
            err.starts_with("error: task has no instruction\n"),
            "{arguments:?}: {err}"
        );
    }
    assert!(refused(&place, &[]).starts_with("error: nothing to do was given\n"));
}

#[test]
fn an_instruction_that_is_no_text_is_refused() {
    let place = Place::new();
    place.write("binary", b"\xff\xfe\x00");
    assert!(refused(&place, &["@binary"]).contains("is not UTF-8 text"));
}

#[test]
fn an_unknown_agent_preset_or_sandbox_comes_with_the_nearest() {
    let place = Place::new();
    let err = refused(&place, &["x", "--agent", "opncode"]);
    assert!(
        err.contains("no agent is named `opncode`") && err.contains("did you mean `opencode`?"),
        "{err}"
    );
    let err = refused(&place, &["--preset", "fizbuzz"]);
    assert!(err.contains("did you mean `fizzbuzz`?"), "{err}");
    let ran = place
        .run(&["run", "--endpoint", "demo", "x", "--sandbox", "locl"])
        .expect(2);
    assert_eq!(
        ran.err,
        "error: no sandbox backend is named `locl`\nhint: did you mean `local`?\n"
    );
}

#[test]
fn a_broken_configuration_file_is_shown_where_it_is_broken() {
    let place = Place::new();
    let path = place.write("c.toml", "[endpoints.mine]\nurll = 'http://x'\n");
    let err = refused(&place, &["x", "--config", path.to_str().unwrap()]);
    assert!(
        err.contains("urll") && err.contains("line 2") && err.contains("did you mean `url`?"),
        "{err}"
    );
    let err = refused(&place, &["x", "--config", "none.toml"]);
    assert!(
        err.contains("configuration file `none.toml` could not be read"),
        "{err}"
    );
}
