use crate::fake::{Does, FAILING};
use crate::world::{
    IMAGE, REMOTE, World, engine, is_root, names, remove_image, run, sh, spec, spec_for, stdout_of,
    tap_binary,
};
use dressage_sandbox::bake::{BakeError, BakeEvent, Baked, Baker, DOCKERFILE, Recipe, write_context};
use dressage_sandbox::{Asset, BackendConfig, Sandbox};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// An agent, as it is in the cache of this machine.
fn agent(folder: &Path, says: &str) -> Asset {
    let tree = folder.join("agent");
    std::fs::create_dir_all(tree.join("bin")).unwrap();
    let program = tree.join("bin/agent");
    std::fs::write(&program, format!("#!/bin/sh\necho {says}\n")).unwrap();
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    Asset {
        name: "agent 1.0".into(),
        host_path: tree,
    }
}

fn recipe(name: &str, contents: &[Asset]) -> Recipe {
    Recipe {
        name: name.into(),
        contents: contents.to_vec(),
        ..Recipe::default()
    }
}

fn baker(config: &BackendConfig, name: &str) -> Arc<dyn Baker> {
    (dressage_sandbox::by_name(name).unwrap().baker.unwrap())(config).unwrap()
}

/// What is heard of a build, a line each.
async fn bake(baker: &dyn Baker, recipe: &Recipe) -> (Result<Baked, BakeError>, Vec<String>) {
    let lines = Mutex::new(Vec::new());
    let hear = |event: BakeEvent<'_>| {
        let line = match event {
            BakeEvent::Sending { what, bytes } => {
                assert!(bytes > 0);
                format!("sending {what}")
            }
            BakeEvent::IsThere { what } => format!("{what} is there"),
            BakeEvent::Building { unattended } => unattended.to_owned(),
            BakeEvent::Line(line) => line.to_owned(),
        };
        lines.lock().unwrap().push(line);
    };
    let built = baker.bake(recipe, &hear).await;
    (built, lines.into_inner().unwrap())
}

#[tokio::test]
async fn each_file_is_sent_once_and_the_whole_log_is_told() {
    let world = World::new();
    let baker = baker(&world.remote_config(), "e2b");
    let recipe = recipe("opencode-rl", &[agent(world.folder.path(), "one")]);
    // A service that is busy is asked again.
    world.fake().fault(
        "GET /templates/t1/files/",
        1,
        Does::Refuse(503, r#"{"code":503,"message":"busy"}"#),
    );
    let (built, heard) = bake(&*baker, &recipe).await;
    let built = built.unwrap();
    assert_eq!(
        heard,
        [
            "sending agent 1.0",
            "sending dressage-tap",
            "build b1 of template t1 goes on at E2B",
            "[base] FROM e2bdev/base",
            "[builder 1] COPY",
            "[builder 2] COPY",
            "[builder 3] RUN",
        ]
    );
    assert_eq!(
        (
            built.image.as_str(),
            built.template.as_deref(),
            built.build.as_deref()
        ),
        ("opencode-rl", Some("t1"), Some("b1"))
    );
    assert!(built.sent_bytes > 100_000);
    let sent = || world.fake().asked(&["PUT /__upload__/"]);
    assert_eq!(sent(), 2);
    let (again, heard) = bake(&*baker, &recipe).await;
    assert_eq!(again.unwrap().sent_bytes, 0);
    assert_eq!(heard[..2], ["agent 1.0 is there", "dressage-tap is there"]);
    assert_eq!(sent(), 2);
}

#[tokio::test]
async fn a_step_that_fails_is_told_by_what_it_does_after_the_whole_log() {
    let world = World::new();
    let baker = baker(&world.remote_config(), "e2b");
    let mut recipe = recipe("opencode-rl", &[agent(world.folder.path(), "one")]);
    recipe.from = Some(FAILING.into());
    let (built, heard) = bake(&*baker, &recipe).await;
    assert_eq!(
        built.unwrap_err().to_string(),
        "the build failed at step 2 (COPY dressage-tap to /opt/dressage): failed to run command: exit status 1"
    );
    assert_eq!(heard.last().unwrap(), "[builder 3] RUN");
}

/// An error with its causes.
fn all_of(error: &BakeError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |error| error.source());
    let causes: Vec<String> = causes.map(ToString::to_string).collect();
    format!("{error} {error:?} {causes:?} {:?}", error.hint())
}

#[tokio::test]
async fn what_is_refused_is_named_and_no_secret_is_told() {
    let world = World::new();
    let baker = baker(&world.remote_config(), "e2b");
    let recipe = recipe("opencode-rl", &[agent(world.folder.path(), "one")]);
    for (asked, status, body, told) in [
        (
            "POST /v3/templates",
            401,
            r#"{"code":401,"message":"no such key e2b_0123456789"}"#,
            "E2B_API_KEY",
        ),
        (
            "PUT /__upload__/",
            403,
            "<Error>signed-for-an-hour</Error>",
            "could not take agent 1.0",
        ),
        (
            "POST /v2/templates/",
            400,
            r#"{"code":400,"message":"no such image"}"#,
            "no such image",
        ),
        // It was begun, and goes on.
        (
            "/status",
            400,
            r#"{"code":400,"message":"odd"}"#,
            "how build b3 of template t1 ends is not known",
        ),
    ] {
        world.fake().fault(asked, 1, Does::Refuse(status, body));
        let error = bake(&*baker, &recipe).await.0.unwrap_err();
        let text = all_of(&error);
        assert!(text.contains(told), "{text}");
        assert!(
            !text.contains("e2b_0123456789") && !text.contains("signed-for-an-hour"),
            "{text}"
        );
    }
}

/// A sandbox with the agent and a relay, and how many archives were sent for it.
async fn boot(world: &World, name: &str, image: &str, agent: &Asset) -> (Arc<dyn Sandbox>, usize) {
    let backend = world.remote(name);
    let mut spec = spec_for(&*backend);
    spec.image = Some(image.into());
    spec.relay_port = Some(7000);
    spec.assets = vec![Asset {
        name: "agent".into(),
        ..agent.clone()
    }];
    let sent = || world.fake().asked(&["/tmp/.dressage-archive-"]);
    let before = sent();
    let sandbox = backend.create(spec).await.unwrap();
    (sandbox, sent() - before)
}

async fn says(sandbox: &dyn Sandbox) -> String {
    let path = sandbox.asset_path("agent").unwrap();
    stdout_of(sandbox, sh(&format!("{path}/bin/agent"))).await
}

/// An image of a provider with an agent baked in.
async fn baked(world: &World, name: &str, agent: &Asset) {
    let recipe = recipe("opencode-rl", std::slice::from_ref(agent));
    if name == "e2b" {
        bake(&*baker(&world.remote_config(), name), &recipe)
            .await
            .0
            .unwrap();
    } else {
        let folder = world.folder.path().join("context");
        write_context(&world.config.cache_dir, &tap_binary(), &recipe, &folder)
            .await
            .unwrap();
        world.fake().build_image("opencode-rl", &folder);
    }
}

#[tokio::test]
async fn a_sandbox_is_sent_what_its_image_has_not_and_nothing_else() {
    if !is_root() {
        eprintln!("SKIPPED: what images have is not root's where this user plays them");
        return;
    }
    for name in REMOTE {
        let world = World::new();
        let one = agent(world.folder.path(), "one");
        baked(&world, name, &one).await;
        let (sandbox, sent) = boot(&world, name, "opencode-rl", &one).await;
        assert_eq!(sent, 0, "{name}");
        assert_eq!(says(&*sandbox).await, "one");
        let path = sandbox.asset_path("agent").unwrap();
        assert!(path.starts_with("/opt/dressage/"), "{path}");
        sandbox.kill().await.unwrap();

        // A stale tree: that of the agent alone is sent.
        let two = agent(world.folder.path(), "two");
        let (sandbox, sent) = boot(&world, name, "opencode-rl", &two).await;
        assert_eq!((sent, says(&*sandbox).await.as_str()), (1, "two"), "{name}");
        sandbox.kill().await.unwrap();

        let (sandbox, sent) = boot(&world, name, "another", &two).await;
        assert_eq!((sent, says(&*sandbox).await.as_str()), (2, "two"), "{name}");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn what_others_than_root_could_have_changed_is_not_taken() {
    if !is_root() {
        eprintln!("SKIPPED: what images have is not root's where this user plays them");
        return;
    }
    for name in REMOTE {
        let world = World::new();
        let one = agent(world.folder.path(), "one");
        baked(&world, name, &one).await;
        for (script, expected) in [
            ("chmod o+w /opt/dressage/*/bin/agent", 1),
            ("chmod g+w /opt/dressage/*/bin", 1),
            ("chown 1000 /opt/dressage/*/bin/agent", 1),
            ("chmod o+w /opt/dressage", 2),
            ("chmod o+w /opt", 2),
            ("chown -R 1000 /opt/dressage", 2),
            ("mv /opt/dressage /opt/real; ln -s real /opt/dressage", 2),
            // Where it is unpacked otherwise.
            (
                "mv /opt/dressage /tmp/.dressage; chown 1000 /tmp/.dressage; echo x > /tmp/.dressage/x",
                2,
            ),
            (
                "rm -r /opt/dressage; mkdir /tmp/theirs; chmod 777 /tmp/theirs; ln -s /tmp/theirs /tmp/.dressage",
                2,
            ),
            // And this may be.
            ("mv /opt/dressage /tmp/.dressage", 0),
        ] {
            world.fake().derive_image("changed", "opencode-rl", script);
            let (sandbox, sent) = boot(&world, name, "changed", &one).await;
            assert_eq!(sent, expected, "{name}: {script}");
            assert_eq!(says(&*sandbox).await, "one", "{name}: {script}");
            let put = stdout_of(
                &*sandbox,
                sh("[ ! -e /tmp/.dressage ] || find -P /tmp/.dressage ! -uid 0 -o ! -type l -perm -002"),
            )
            .await;
            assert_eq!(put, "", "{name}: {script}");
            sandbox.kill().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_context_is_written_over_nothing_of_others() {
    let world = World::new();
    let recipe = recipe("mine", &[]);
    let folder = world.folder.path().join("mine");
    let archives = folder.join("dressage");
    std::fs::create_dir_all(&archives).unwrap();
    let write = async || write_context(&world.config.cache_dir, &tap_binary(), &recipe, &folder).await;
    let precious = world.folder.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    let dockerfile = folder.join("Dockerfile");
    let backup = archives.join("backup.tar.gz");
    std::fs::write(&backup, "data").unwrap();
    assert!(matches!(write().await, Err(BakeError::Occupied(path)) if path == backup));
    std::fs::write(&dockerfile, "FROM mine\n").unwrap();
    assert!(matches!(write().await, Err(BakeError::Occupied(path)) if path == dockerfile));
    std::fs::remove_file(&dockerfile).unwrap();
    std::os::unix::fs::symlink(&precious, &dockerfile).unwrap();
    assert!(matches!(write().await, Err(BakeError::Occupied(path)) if path == dockerfile));
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    assert_eq!(std::fs::read(&backup).unwrap(), b"data");
    assert_eq!(names(&folder), ["Dockerfile", "dressage"]);
    assert_eq!(names(&archives), ["backup.tar.gz"]);
}

#[tokio::test]
async fn a_context_is_the_repositorys_dockerfile_with_archives_and_can_be_written_again() {
    let world = World::new();
    let folder = world.folder.path().join("a/context");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images/Dockerfile");
    let write = async |recipe: Recipe| {
        write_context(&world.config.cache_dir, &tap_binary(), &recipe, &folder)
            .await
            .unwrap()
    };
    let one = recipe("mine", &[agent(world.folder.path(), "one")]);
    let written = write(one).await;
    let expected: Vec<PathBuf> = [
        "Dockerfile",
        "dressage/agent-1.0.tar.gz",
        "dressage/dressage-tap.tar.gz",
        "README.md",
    ]
    .map(|name| folder.join(name))
    .into();
    assert_eq!(written, expected);
    let text = std::fs::read_to_string(folder.join("Dockerfile")).unwrap();
    assert_eq!(text, std::fs::read_to_string(repository).unwrap());
    assert_eq!(text, DOCKERFILE);
    let card = std::fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(card.starts_with("---\ntitle: mine\nsdk: docker\n---\n"), "{card}");

    std::fs::write(folder.join("README.md"), "of my own").unwrap();
    let mut other = agent(world.folder.path(), "two");
    other.name = "agent 2.0".into();
    write(recipe("mine", &[other])).await;
    assert_eq!(
        names(&folder.join("dressage")),
        ["agent-2.0.tar.gz", "dressage-tap.tar.gz"]
    );
    assert_eq!(
        std::fs::read_to_string(folder.join("README.md")).unwrap(),
        "of my own"
    );
}

/// A configuration whose engine does not see what it mounts, as one elsewhere: the folder is mounted after the engine was
/// started in a mount namespace of its own.
async fn where_nothing_is_seen<T>(world: &World, work: impl AsyncFnOnce(&BackendConfig, &Path) -> T) -> T {
    let hidden = world.folder.path().join("hidden");
    std::fs::create_dir(&hidden).unwrap();
    nix::mount::mount(
        Some("none"),
        &hidden,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        None::<&str>,
    )
    .unwrap();
    let mounted = Mounted(hidden.clone());
    let mut config = world.config.clone();
    config.tap_binary = hidden.join("tap");
    std::fs::copy(tap_binary(), &config.tap_binary).unwrap();
    let done = work(&config, &hidden).await;
    drop(mounted);
    done
}

struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        nix::mount::umount(&self.0).unwrap();
    }
}

#[tokio::test]
async fn an_engine_builds_an_image_and_takes_of_it_what_it_would_be_sent() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    where_nothing_is_seen(&world, async |config, hidden| {
        let one = agent(hidden, "one");
        let mut recipe = recipe("bake-test", std::slice::from_ref(&one));
        recipe.from = Some(IMAGE.into());
        let (built, heard) = bake(&*baker(config, "docker"), &recipe).await;
        assert_eq!(built.unwrap().image, "dressage/bake-test");
        assert!(heard.iter().any(|line| line.contains("ADD dressage/*.tar.gz")), "{heard:?}");
        // What the image says instead of the host's agent tells which of the two was taken.
        let cases = [
            ("true", "one"),
            (
                "for file in /opt/dressage/*/bin/agent; do echo 'echo of the image' > $file; done",
                "of the image",
            ),
            (
                "for file in /opt/dressage/*/bin/agent; do echo 'echo of the image' > $file; chmod o+w $file; done",
                "one",
            ),
        ];
        for (script, expected) in cases {
            let mut spec = spec();
            spec.dockerfile = Some(format!("FROM dressage/bake-test\nRUN {script}\n"));
            spec.relay_port = Some(7000);
            spec.assets = vec![Asset {
                name: "agent".into(),
                ..one.clone()
            }];
            let docker = (dressage_sandbox::by_name("docker").unwrap().make)(config).unwrap();
            let sandbox = docker.create(spec).await.unwrap();
            let path = sandbox.asset_path("agent").unwrap();
            assert_eq!(
                stdout_of(&*sandbox, sh(&format!("sh {path}/bin/agent"))).await,
                expected,
                "{script}"
            );
            let forged = run(&*sandbox, sh(&format!("echo x > {path}/bin/agent"))).await;
            assert_ne!(forged.exit.code, 0, "{script}");
            sandbox
                .separate(&["/home/user/logs/verifier".to_owned()])
                .await
                .unwrap();
            sandbox.kill().await.unwrap();
        }
        remove_image("dressage/bake-test").await;
    })
    .await;
}

#[tokio::test]
async fn an_engines_build_that_fails_is_told_with_its_step() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let baker = baker(&world.config, "docker");
    let mut recipe = recipe("bake-test-fails", &[agent(world.folder.path(), "one")]);
    recipe.from = Some("dressage-no-such-image".into());
    let (built, _) = bake(&*baker, &recipe).await;
    let text = built.unwrap_err().to_string();
    assert!(
        text.starts_with("the build failed at Step 2/3 : FROM ${BASE}: "),
        "{text}"
    );
    recipe.memory_mb = Some(1024);
    let text = bake(&*baker, &recipe).await.0.unwrap_err().to_string();
    assert!(text.contains("tasks do"), "{text}");
    recipe.memory_mb = None;
    recipe.name = "Not A Name".into();
    let text = bake(&*baker, &recipe).await.0.unwrap_err().to_string();
    assert!(text.contains("can be no image's name"), "{text}");
}
