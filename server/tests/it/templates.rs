use crate::fake::{E2B_KEY, ENDLESS, FAILING, Fake};
use crate::support::{Place, Ran};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::Command;

/// With access to the provider that is played here, and the test kit's agent in the place of OpenCode.
fn command(place: &Place, fake: &Fake, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command
        .env("DRESSAGE_CACHE_DIR", place.scripted_agent())
        .env("E2B_API_KEY", E2B_KEY)
        .env("E2B_API_URL", &fake.url)
        .env("E2B_SANDBOX_URL", &fake.url);
    command
}

fn run(place: &Place, fake: &Fake, arguments: &[&str]) -> Ran {
    Ran::of(command(place, fake, arguments).output().unwrap())
}

#[test]
fn a_template_is_built_and_a_rollout_in_it_is_sent_nothing() {
    let (place, fake) = (Place::new(), Fake::start());
    let ran = run(
        &place,
        &fake,
        &["template", "build", "--backend", "e2b", "--json"],
    )
    .expect(0);
    for told in [
        "sending opencode ",
        "sending dressage-tap",
        "[builder 1] COPY",
        "[builder 3] RUN",
    ] {
        assert!(ran.err.contains(told), "{}", ran.err);
    }
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (
            &told["backend"],
            &told["image"],
            &told["template"],
            &told["contents"][1]
        ),
        (
            &"e2b".into(),
            &"opencode-rl".into(),
            &"t1".into(),
            &"dressage-tap".into()
        )
    );
    let ran = run(&place, &fake, &["template", "build"]).expect(0);
    assert_eq!(ran.out, "opencode-rl is built\n");
    assert!(ran.err.contains("dressage-tap is there already"), "{}", ran.err);
    let rollout = |image: &str| {
        let arguments = [
            "run",
            "say hello",
            "--sandbox",
            "e2b",
            "--image",
            image,
            "--endpoint",
            "demo",
            "--verify",
            "true",
        ];
        run(&place, &fake, &arguments).expect(0);
        fake.asked(&["POST /files", "/tmp/.dressage-archive-"])
    };
    if nix::unistd::geteuid().is_root() {
        assert_eq!(rollout("opencode-rl"), 0);
    }
    assert_eq!(rollout("base"), 2);
}

#[test]
fn a_build_that_fails_ends_with_its_step_and_one_that_is_left_says_that_it_goes_on() {
    let (place, fake) = (Place::new(), Fake::start());
    let ran = run(&place, &fake, &["template", "build", "--from", FAILING]).expect(3);
    assert!(
        ran.err.contains(
            "error: the build failed at step 2 (COPY dressage-tap to /opt/dressage): failed to run"
        ),
        "{}",
        ran.err
    );
    assert_eq!(ran.out, "");
    let err = place.path("endless.err");
    let child = command(&place, &fake, &["template", "build", "--from", ENDLESS])
        .stdout(std::fs::File::create(place.path("endless.out")).unwrap())
        .stderr(std::fs::File::create(&err).unwrap())
        .spawn()
        .unwrap();
    let mut running = crate::support::Running {
        child,
        out: place.path("endless.out"),
        err: err.clone(),
    };
    running.until("the log", || {
        std::fs::read_to_string(&err).unwrap().contains("[builder 3] RUN")
    });
    running.signal(Signal::SIGINT);
    let ran = running.wait().expect(130);
    assert!(
        ran.err
            .contains("stopped: build b2 of template t1 goes on at E2B"),
        "{}",
        ran.err
    );
}

#[test]
fn a_context_is_written_and_odd_wishes_are_refused() {
    let (place, fake) = (Place::new(), Fake::start());
    let ran = run(
        &place,
        &fake,
        &["template", "context", "made", "--from", "debian:12"],
    )
    .expect(0);
    assert_eq!(ran.out.lines().next(), Some("made/Dockerfile"));
    let text = std::fs::read_to_string(place.path("work/made/Dockerfile")).unwrap();
    assert!(text.contains("\nARG BASE=debian:12\n"), "{text}");
    for (arguments, told) in [
        (vec!["build", "--agent", "opencod"], "opencode"),
        (vec!["build", "--agent", "command"], "has nothing to bake in"),
        (vec!["build", "--agent", "opencode@../x"], "../x"),
        (vec!["build", "--name", "Mine"], "lower-case"),
        (vec!["build", "--backend", "local"], "docker"),
        (vec!["build", "--cpus", "0"], "--cpus"),
        (vec!["context", "x", "--from", "a b"], "can be no image's name"),
    ] {
        let ran = run(&place, &fake, &[&["template"], arguments.as_slice()].concat()).expect(2);
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
    }
}
