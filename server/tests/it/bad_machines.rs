use crate::support::{Place, Ran};
use std::process::Command;

/// Runs a script in which `"$@"` is the program, with mounts of its own.
fn with_mounts(place: &Place, script: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new("unshare");
    place.prepare(&mut command);
    command.args([
        "--mount",
        "--map-root-user",
        "bash",
        "-euc",
        script,
        "sh",
        env!("CARGO_BIN_EXE_dressage"),
    ]);
    Ran::of(command.args(arguments).output().unwrap())
}

const RUN: &[&str] = &["run", "--preset", "fizzbuzz", "--endpoint", "demo"];

#[test]
fn without_bubblewrap_the_remedy_is_named() {
    let place = Place::new();
    // Hides it wherever it is.
    let script = r#"for program in $(type -ap bwrap); do mount --bind /dev/null "$program"; done; exec "$@""#;
    let ran = with_mounts(&place, script, RUN).expect(3);
    assert!(
        ran.err.contains("backend `local` is not available"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("hint: install bubblewrap"), "{}", ran.err);
    let ran = with_mounts(&place, script, &["doctor"]).expect(3);
    assert!(
        ran.out.contains("✗ local") && ran.out.contains("bwrap            not on PATH"),
        "{}",
        ran.out
    );
}

#[test]
fn an_agent_that_is_not_installed_is_said_before_anything_is_made() {
    let place = Place::new();
    let cache = place.path("cache");
    let mut arguments = RUN.to_vec();
    arguments.extend(["--cache-dir", cache.to_str().unwrap()]);
    let ran = place.run(&arguments).expect(3);
    assert!(ran.err.contains("is not installed"), "{}", ran.err);
    assert!(
        ran.err.contains("hint: run `dressage agents install opencode"),
        "{}",
        ran.err
    );
    assert!(!place.data().exists());
}

#[test]
fn an_agent_of_another_architecture_is_said() {
    let place = Place::new();
    let listed = place.run(&["agents", "list", "--json"]).expect(0);
    let agents: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let version = agents[0]["pinned_version"].as_str().unwrap();
    let folder = place
        .path("cache")
        .join("agents/opencode")
        .join(version)
        .join("bin");
    std::fs::create_dir_all(&folder).unwrap();
    // The head of an ELF program for 64-bit ARM.
    let mut program = b"\x7fELF\x02\x01\x01".to_vec();
    program.resize(16, 0);
    program.extend(2u16.to_le_bytes());
    program.extend(183u16.to_le_bytes());
    program.resize(64, 0);
    std::fs::write(folder.join("opencode"), program).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.join("opencode"), executable).unwrap();
    let mut arguments = RUN.to_vec();
    let cache = place.path("cache");
    arguments.extend(["--cache-dir", cache.to_str().unwrap()]);
    let ran = place.run(&arguments).expect(3);
    assert!(ran.err.contains("cannot be run on this machine"), "{}", ran.err);
    assert!(ran.err.contains("--force"), "{}", ran.err);
}

#[test]
fn a_read_only_data_directory_is_said() {
    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    let script = r#"mount --bind "$DRESSAGE_DATA_DIR" "$DRESSAGE_DATA_DIR"
        mount -o remount,bind,ro "$DRESSAGE_DATA_DIR"
        exec "$@""#;
    let ran = with_mounts(&place, script, RUN).expect(3);
    assert!(ran.err.contains("Read-only file system"), "{}", ran.err);
    assert!(ran.err.contains(place.data().to_str().unwrap()), "{}", ran.err);
    assert!(ran.err.contains("hint: "), "{}", ran.err);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_said() {
    let place = Place::new();
    let file = place.write("file", "");
    let below = file.join("data");
    let mut arguments = RUN.to_vec();
    arguments.extend(["--data-dir", below.to_str().unwrap()]);
    let ran = place.run(&arguments).expect(3);
    assert!(
        ran.err.contains("Not a directory") && ran.err.contains("--data-dir"),
        "{}",
        ran.err
    );
}

#[test]
fn a_full_disk_is_said() {
    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    let script = r#"mount -t tmpfs -o size=64k none "$DRESSAGE_DATA_DIR"
        head -c 1M /dev/zero > "$DRESSAGE_DATA_DIR/full" 2>/dev/null || true
        exec "$@""#;
    let ran = with_mounts(&place, script, RUN).expect(3);
    assert!(
        ran.err.to_lowercase().contains("no space left") || ran.err.contains("full"),
        "{}",
        ran.err
    );
}

/// Runs on a disk with so much left beside a database that is there already; then tells how many rollouts are stored.
fn nearly_full(place: &Place, left: &str, arguments: &[&str]) -> Ran {
    let script = format!(
        r#"mount -t tmpfs -o size=16m none "$DRESSAGE_DATA_DIR"
        "$1" run x --endpoint demo --setup false --quiet || [ $? = 1 ]
        head -c 32M /dev/zero > "$DRESSAGE_DATA_DIR/full" 2>/dev/null || true
        truncate -s -{left} "$DRESSAGE_DATA_DIR/full"
        "$@" || echo "code $?" >&2
        "$1" list --json | wc -l >&2"#
    );
    with_mounts(place, &script, arguments).expect(0)
}

#[test]
fn a_disk_that_is_full_when_a_rollout_starts_is_named_and_nothing_is_offered_that_is_not_there() {
    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    // The second leaves room for SQLite's shared memory alone: the database opens, and takes no row.
    for (left, started) in [("0K", false), ("32K", true)] {
        let err = nearly_full(&place, left, RUN).err;
        assert!(err.to_lowercase().contains("no space"), "{left}: {err}");
        assert!(err.contains("hint: free some space"), "{left}: {err}");
        if started {
            assert!(
                err.contains("could not be stored: no space is left"),
                "{left}: {err}"
            );
        }
        assert_eq!(
            err.contains("could not be stored"),
            err.contains("not stored: there is no more than this"),
            "{left}: {err}"
        );
        assert!(!err.contains("dressage show"), "{left}: {err}");
        assert!(err.contains("code 3\n"), "{left}: {err}");
        // With no room at all the list cannot be read either.
        assert!(!started || err.ends_with("\n1\n"), "{left}: {err}");
    }
}

#[test]
fn a_rollout_that_a_full_disk_did_not_take_says_so_in_json() {
    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    let mut arguments = RUN.to_vec();
    arguments.push("--json");
    let ran = nearly_full(&place, "32K", &arguments);
    let line: serde_json::Value = serde_json::from_str(ran.out.trim()).unwrap();
    assert_eq!(line["stored"], false, "{line}");
    let message = line["unstored"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("could not be stored: no space is left"),
        "{line}"
    );
    assert!(
        ran.err.contains("error: 1 rollout is not stored") && ran.err.contains("hint: free some space"),
        "{}",
        ran.err
    );
}

#[test]
fn a_file_that_is_no_database_is_said_and_left_as_it_is() {
    let place = Place::new();
    std::fs::create_dir(place.data()).unwrap();
    let path = place.data().join("dressage.db");
    std::fs::write(
        &path,
        "this is a letter to a friend, and no database at all\n".repeat(20),
    )
    .unwrap();
    let before = std::fs::read(&path).unwrap();
    for arguments in [RUN, &["list"]] {
        let ran = place.run(arguments).expect(3);
        assert!(ran.err.contains("dressage.db"), "{}", ran.err);
    }
    assert_eq!(std::fs::read(&path).unwrap(), before);
}
