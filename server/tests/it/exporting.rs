use crate::support::{Place, Ran};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

/// A place with finished rollouts of the scripted agent, and the ids of those.
fn with_rollouts(count: usize) -> (Place, Vec<String>) {
    let place = Place::new();
    let cache = place.scripted_agent();
    let count = count.to_string();
    let arguments = [
        "run",
        "x",
        "--endpoint",
        "demo",
        "--cache-dir",
        cache.to_str().unwrap(),
        "--verify",
        "true",
        "--samples",
        &count,
        "--json",
    ];
    let ran = place.run(&arguments).expect(0);
    let ids = lines(ran.out.as_bytes())
        .into_iter()
        .map(|line| line["id"].as_str().unwrap().to_owned());
    let mut ids: Vec<String> = ids.collect();
    ids.sort();
    (place, ids)
}

fn lines(text: &[u8]) -> Vec<Value> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn rollouts_are_exported_checked_taken_in_elsewhere_and_exported_as_the_same_bytes() {
    let (place, ids) = with_rollouts(2);
    let ran = place.run(&["export"]).expect(0);
    let rows = lines(ran.out.as_bytes());
    let exported: Vec<&str> = rows
        .iter()
        .map(|row| row["rollout"]["id"].as_str().unwrap())
        .collect();
    assert_eq!(exported, [ids[1].as_str(), ids[0].as_str()], "the latest first");
    assert_eq!(
        ran.err, "",
        "nothing is said where the rows go to standard output"
    );

    for name in ["out/", "verl.parquet", "verl.jsonl.zst"] {
        let ran = place
            .run(&["export", "--shape", "verl", "--output", name])
            .expect(0);
        let said = format!("{name}{}", if name.ends_with('/') { "verl.jsonl" } else { "" });
        assert!(
            ran.err.starts_with(&format!("{said} of verl: 2 rollouts, ")),
            "{}",
            ran.err
        );
        assert!(ran.out.is_empty());
        place.run(&["validate", &said]).expect(0);
    }
    assert_eq!(
        files(&place.path("work/out")),
        ["verl.jsonl"],
        "nothing else is left"
    );
    let rows = lines(&std::fs::read(place.path("work/out/verl.jsonl")).unwrap());
    for row in &rows {
        let mask: u64 = row["response_mask"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mask| mask.as_u64().unwrap())
            .sum();
        assert!(mask > 0 && row["reward"] == 1.0, "{row}");
    }

    let one = place
        .run(&["export", &ids[0], "--filter", "reward>=1 -flag=truncated"])
        .expect(0);
    assert_eq!(lines(one.out.as_bytes()).len(), 1);
    let none = place.run(&["export", "--filter", "reward>1"]).expect(0);
    assert_eq!(none.out, "");

    place.write("native.jsonl", &ran.out);
    let elsewhere = place.path("elsewhere");
    let elsewhere = ["--data-dir", elsewhere.to_str().unwrap()];
    let taken = place
        .run(&[&["import", "native.jsonl"], &elsewhere[..]].concat())
        .expect(0);
    assert_eq!(taken.err, "2 rollouts taken in\n");
    let again = place
        .run(&[&["import", "native.jsonl"], &elsewhere[..]].concat())
        .expect(0);
    assert_eq!(
        again.err,
        "0 rollouts taken in; 2 were there already, and were left as they were\n"
    );
    let there = place.run(&[&["export"], &elsewhere[..]].concat()).expect(0);
    assert_eq!(there.out, ran.out);
    let sound = place.run(&[&["validate"], &elsewhere[..]].concat()).expect(0);
    assert!(sound.err.starts_with("sound: 2 rows, "), "{}", sound.err);
}

#[test]
fn damage_is_exit_5_with_its_place_and_is_not_taken_in() {
    let (place, ids) = with_rollouts(2);
    let exported = place.run(&["export"]).expect(0).out;
    let mut rows = lines(exported.as_bytes());
    let sequence = &mut rows[1]["sequences"][0];
    let last = sequence["token_ids"].as_array().unwrap().len() - 1;
    sequence["token_ids"][last] = (sequence["token_ids"][last].as_u64().unwrap() + 1).into();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let file = place.write("damaged.jsonl", &text);

    let ran = place.run(&["validate", "damaged.jsonl"]).expect(5);
    let place_of = format!(
        "damaged.jsonl:2: rollout {}, sequence 0, position {last}: tokens_differ: ",
        ids[0]
    );
    assert!(ran.out.starts_with(&place_of), "{}", ran.out);
    assert!(ran.err.starts_with("damaged: 2 rows"), "{}", ran.err);

    let mut command = place.command(&["validate", "-", "--json"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap()).expect(5);
    let told = lines(ran.out.as_bytes());
    assert_eq!(
        (&told[0]["file"], &told[0]["line"]),
        (&json!("standard input"), &json!(2))
    );
    assert_eq!(
        (&told[0]["damage"], &told[0]["place"]["position"]),
        (&json!("tokens_differ"), &json!(last))
    );
    assert_eq!(told.last().unwrap()["findings"], 1);

    let refused = place
        .run(&[
            "import",
            "damaged.jsonl",
            "--data-dir",
            place.path("other").to_str().unwrap(),
        ])
        .expect(2);
    assert!(
        refused.err.contains("damaged.jsonl:2: tokens_differ: "),
        "{}",
        refused.err
    );

    std::fs::write(&file, &exported.as_bytes()[..exported.len() - 100]).unwrap();
    let cut = place.run(&["validate", "damaged.jsonl"]).expect(5);
    assert!(
        cut.out.starts_with("damaged.jsonl:2: unreadable: "),
        "{}",
        cut.out
    );
    let parquet = place.write("damaged.parquet", "PAR1 and no more");
    let unreadable = place.run(&["validate", parquet.to_str().unwrap()]).expect(2);
    assert!(
        unreadable.err.contains("cannot be read as Parquet"),
        "{}",
        unreadable.err
    );
}

#[test]
fn what_cannot_be_exported_is_told_and_leaves_nothing() {
    let place = Place::new();
    place.run(&["export"]).expect(2);
    let (place, _) = with_rollouts(1);
    for (arguments, part) in [
        (
            &["export", "--shape", "atari"][..],
            "known are native, trl, verl, chat, atif",
        ),
        (&["export", "--filter", "reward>high"], "`high` is not a number"),
        (&["export", "--train", "foreign"], "`foreign` is not trained"),
        (&["export", "ffffffff"], "there is no rollout ffffffff"),
        (&["export", "--output", "gopher://x/y"], "is not a kind of URL"),
        (
            &["export", "--format", "parquet", "--output", "x.jsonl.zst"],
            "compressed in itself",
        ),
        (
            &["validate", "nothing.jsonl"],
            "there is no rollout nothing.jsonl",
        ),
        (&["import", "nothing.jsonl"], "could not be read"),
    ] {
        let ran = place.run(arguments).expect(2);
        assert!(ran.err.contains(part), "{arguments:?}: {}", ran.err);
    }
    let ran = place.run(&["export", "--output", "/dev/null/x.jsonl"]).expect(3);
    assert!(ran.err.contains("could not be written"), "{}", ran.err);
    assert!(files(&place.path("work")).is_empty());
}
