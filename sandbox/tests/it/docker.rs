use crate::isolation::ATTACKS;
use crate::provider::{Scripted, line};
use crate::relay::{ASK, answer};
use crate::world::{
    IMAGE, World, client, containers, engine, is_root, python, remove_image, run, sh, spec, stdout_of,
};
use bollard::query_parameters::ImportImageOptionsBuilder;
use dressage_sandbox::lease::Lease;
use dressage_sandbox::{Asset, Backend, BackendConfig, SandboxError};
use dressage_wire::reward::Separation;
use dressage_wire::task::NetworkPolicy;
use futures_util::TryStreamExt;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;

fn backend(world: &World, host: &str) -> Arc<dyn Backend> {
    let mut config = world.config.clone();
    config.providers.docker.host = Some(host.to_owned());
    make(&config)
}

fn make(config: &BackendConfig) -> Arc<dyn Backend> {
    (dressage_sandbox::by_name("docker").unwrap().make)(config).unwrap()
}

/// What a creation fails with, which leaves nothing.
async fn refusal(world: &World, backend: &dyn Backend, image: &str) -> SandboxError {
    let mut spec = spec();
    spec.image = Some(image.to_owned());
    let id = spec.id;
    let error = backend.create(spec).await.err().expect("it was refused");
    assert_eq!(world.names("leases"), Vec::<String>::new());
    assert_eq!(containers(id).await, []);
    error
}

/// An archive of a folder with these files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let archive = std::process::Command::new("tar")
        .args(["--create", "--owner=0", "--group=0", "--file=-", "--directory"])
        .arg(folder.path())
        .arg(".")
        .output()
        .unwrap();
    archive.stdout
}

/// Has the engine load an image with next to nothing in it, as `docker save` writes such.
async fn load_image(name: &str, architecture: &str) {
    let layer = archive(&[("etc/hostname", b"bare")]);
    let hash: String = Sha256::digest(&layer)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{hash}")] },
    });
    let manifest =
        json!([{ "Config": "config.json", "RepoTags": [format!("{name}:latest")], "Layers": ["layer.tar"] }]);
    let image = archive(&[
        ("manifest.json", manifest.to_string().as_bytes()),
        ("config.json", config.to_string().as_bytes()),
        ("layer.tar", &layer),
    ]);
    let options = ImportImageOptionsBuilder::new().build();
    let client = client().await;
    let body = bollard::body_full(image.into());
    let told: Vec<_> = client
        .import_image(options, body, None)
        .try_collect()
        .await
        .unwrap();
    assert!(!told.is_empty());
}

#[tokio::test]
async fn an_engine_that_does_not_answer_is_named_with_what_to_do() {
    let world = World::new();
    let error = refusal(&world, &*backend(&world, "unix:///no/such/socket"), IMAGE).await;
    assert!(
        error
            .to_string()
            .contains("no engine answers at `unix:///no/such/socket`"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("DOCKER_HOST"));
    // A port that was just closed.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = refusal(&world, &*backend(&world, &address), IMAGE).await;
    assert!(error.to_string().contains("no engine answers"), "{error}");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn a_page_of_html_is_no_engine() {
    let world = World::new();
    for (status, page) in [(200, "<html>welcome</html>"), (502, "<html>bad gateway</html>")] {
        let server = Scripted::start(vec![line("GET /", status, page)]).await;
        let address = server.url.replace("http://", "tcp://");
        let error = refusal(&world, &*backend(&world, &address), IMAGE).await;
        assert!(error.to_string().contains("is no Docker engine"), "{error}");
    }
}

#[tokio::test]
async fn a_socket_without_permission_is_told_as_that() {
    use std::os::unix::fs::PermissionsExt;
    // Root may use every socket; the whole suite runs as an ordinary user too.
    if is_root() {
        return;
    }
    let world = World::new();
    let path = world.folder.path().join("docker.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let host = format!("unix://{}", path.display());
    let error = refusal(&world, &*backend(&world, &host), IMAGE).await;
    assert!(
        error.to_string().contains("this user may not use the engine"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("group `docker`"));
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_is_named_with_what_the_engine_said() {
    let world = World::new();
    let version = || {
        line(
            "GET /version",
            200,
            r#"{"ApiVersion":"1.41","Version":"20.10.24"}"#,
        )
    };
    let absent = || {
        line(
            "GET /images/none/json",
            404,
            r#"{"message":"No such image: none:latest"}"#,
        )
    };
    let denied = "{\"status\":\"Pulling from library/none\",\"id\":\"latest\"}\r\n\
                  {\"errorDetail\":{\"message\":\"pull access denied for none\"},\"error\":\"pull access denied for none\"}\r\n";
    let broken = r#"{"message":"Get https://registry/v2/: dial tcp: lookup registry: no such host"}"#;
    for (answer, transient, said) in [
        (
            line("POST /images/create", 200, denied),
            false,
            "pull access denied for none",
        ),
        (
            line("POST /images/create", 500, broken),
            true,
            "pull the image `none`",
        ),
    ] {
        let server = Scripted::start(vec![version(), absent(), absent(), answer]).await;
        let address = server.url.replace("http://", "tcp://");
        let error = refusal(&world, &*backend(&world, &address), "none").await;
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.to_string().contains("image `none`"), "{error}");
        assert_eq!(error.is_transient(), transient);
        let asked = server.asked();
        let pull = asked.iter().find(|line| line.starts_with("POST")).unwrap();
        // One tag, not all there are; and the architecture of what runs inside.
        assert!(
            pull.contains("fromImage=none") && pull.contains("tag=latest"),
            "{pull}"
        );
        assert!(pull.contains("platform=linux%2F"), "{pull}");
    }
}

#[tokio::test]
async fn names_that_can_be_no_image_are_refused_before_anything_is_asked() {
    let world = World::new();
    let server = Scripted::start(Vec::new()).await;
    let backend = backend(&world, &server.url.replace("http://", "tcp://"));
    for name in ["", "../containers/json", "a b", "a\nb", "a?b", "ä"] {
        let error = refusal(&world, &*backend, name).await;
        assert!(matches!(error, SandboxError::Unsupported { .. }), "{error}");
    }
    assert_eq!(server.asked(), Vec::<String>::new());
    let mut config = world.config.clone();
    config.providers.docker.image = None;
    let error = make(&config).create(spec()).await.err().unwrap();
    assert!(error.hint().unwrap().contains("--image"), "{error}");
}

#[tokio::test]
async fn an_image_without_bash_and_one_of_another_architecture_are_named() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let docker = world.backend("docker");
    let ours = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    load_image("dressage-bare", ours).await;
    let error = refusal(&world, &*docker, "dressage-bare").await;
    assert!(
        error.to_string().contains("image `dressage-bare` has no bash"),
        "{error}"
    );
    remove_image("dressage-bare").await;
    let other = if cfg!(target_arch = "aarch64") {
        "amd64"
    } else {
        "arm64"
    };
    load_image("dressage-foreign", other).await;
    let error = refusal(&world, &*docker, "dressage-foreign").await;
    assert!(
        error.to_string().contains(&format!("is for linux/{other}")),
        "{error}"
    );
    remove_image("dressage-foreign").await;
}

#[tokio::test]
async fn a_program_is_an_ordinary_user_without_capabilities_or_a_way_up() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let sandbox = world.backend("docker").create(spec()).await.unwrap();
    assert_eq!(
        stdout_of(
            &*sandbox,
            sh("id -u; id -g; id -G; id -un; echo $USER; cd; pwd; echo ~user")
        )
        .await,
        "61000\n61000\n61000\nuser\nuser\n/home/user\n/home/user"
    );
    let status = "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs)' /proc/self/status";
    let status = stdout_of(&*sandbox, sh(status)).await;
    for line in status.lines() {
        let expected = if line.starts_with("NoNewPrivs") {
            "1"
        } else {
            "0000000000000000"
        };
        assert_eq!(line.split_whitespace().nth(1), Some(expected), "{line}");
    }
    for place in ["/", "/usr/bin", "/etc", "/opt", "/opt/dressage", "/home"] {
        let touched = run(&*sandbox, sh(&format!("touch {place}/forged"))).await;
        assert_ne!(touched.exit.code, 0, "{place}");
    }
    for place in ["/tmp", "/var/tmp", "/home/user", "/dev/shm"] {
        stdout_of(
            &*sandbox,
            sh(&format!("echo '#!/bin/sh' > {place}/mine; chmod +x {place}/mine")),
        )
        .await;
    }
    // What is in memory runs too: builds make programs there.
    stdout_of(&*sandbox, sh("/tmp/mine")).await;
    assert_eq!(
        stdout_of(
            &*sandbox,
            sh("sudo -n true 2>&1 || su -c true 2>&1 || echo no way")
        )
        .await
        .lines()
        .last(),
        Some("no way")
    );
}

#[tokio::test]
async fn without_a_network_a_container_has_loopback_alone_and_with_one_it_has_more() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let interfaces = sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort");
    let none = world.backend("docker").create(spec()).await.unwrap();
    assert_eq!(stdout_of(&*none, interfaces.clone()).await, "lo");
    let mut open = spec();
    open.network = NetworkPolicy::Open;
    let open = world.backend("docker").create(open).await.unwrap();
    assert_eq!(stdout_of(&*open, interfaces).await, "eth0\nlo");
    let (one, two) = tokio::join!(none.kill(), open.kill());
    one.unwrap();
    two.unwrap();
}

#[tokio::test]
async fn an_agent_can_do_nothing_to_init_or_the_relay() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let mut spec = spec();
    spec.relay_port = Some(7000);
    let sandbox = world.backend("docker").create(spec).await.unwrap();
    assert_eq!(stdout_of(&*sandbox, python(ATTACKS)).await, "tried");
    // The relay, found by how its command line begins.
    let relay = "
import os, signal
for pid in filter(str.isdigit, os.listdir('/proc')):
    if open(f'/proc/{pid}/cmdline', 'rb').read().startswith(b'/opt/dressage/dressage-tap\\0relay'):
        for number in (0, 9, 19):
            try:
                os.kill(int(pid), number)
                print('signalled')
            except PermissionError:
                print('refused')
        for name in ('fd', 'environ', 'mem'):
            try:
                path = f'/proc/{pid}/{name}'
                os.listdir(path) if name == 'fd' else open(path, 'rb').read(1)
                print('read', name)
            except PermissionError:
                print('refused')";
    assert_eq!(
        stdout_of(&*sandbox, python(relay)).await,
        ["refused"; 6].join("\n")
    );
    run(&*sandbox, python("import os; os.kill(-1, 9)")).await;
    let answering = tokio::spawn(answer(sandbox.open_relay().await.unwrap()));
    let mut ask = python(ASK);
    ask.argv.push(sandbox.relay_address().unwrap());
    assert_eq!(stdout_of(&*sandbox, ask).await, "answered");
    sandbox.kill().await.unwrap();
    answering.await.unwrap();
}

#[tokio::test]
async fn verify_has_new_temporary_folders_and_namespaces() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let sandbox = world.backend("docker").create(spec()).await.unwrap();
    stdout_of(&*sandbox, sh("ipcmk -M 4096")).await;
    // Wherever the user can write, but for the home.
    let writable = "find / -xdev -type d -writable -not -path '/proc/*' -not -path '/home/user*' 2>/dev/null; \
                    for d in /tmp /var/tmp /run /dev/shm /dev/mqueue; do [ -w $d ] && echo $d; done; true";
    let places = stdout_of(&*sandbox, sh(writable)).await;
    assert!(places.lines().count() >= 3, "{places}");
    for place in places.lines() {
        run(&*sandbox, sh(&format!("echo evil > {place}/left"))).await;
    }
    sandbox
        .separate(&["/home/user/logs/verifier".to_owned()])
        .await
        .unwrap();
    for place in places.lines() {
        assert_eq!(
            run(&*sandbox, sh(&format!("cat {place}/left"))).await.stdout,
            "",
            "{place}"
        );
    }
    let others = "ls /proc | grep -c '^[0-9]'; grep -c . /proc/sysvipc/shm";
    let found = stdout_of(&*sandbox, sh(others)).await;
    let counts: Vec<u32> = found.lines().map(|line| line.parse().unwrap()).collect();
    assert!(counts[0] <= 5, "{found}");
    assert_eq!(counts[1], 1, "{found}");
}

#[tokio::test]
async fn limits_are_the_engines() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let mut spec = spec();
    spec.size.memory_bytes = 128 << 20;
    spec.size.pids = 64;
    // More than the machine has: as much as it has.
    spec.size.cpus = 1000.0;
    let sandbox = world.backend("docker").create(spec).await.unwrap();
    let hog = "
blocks = []
while True:
    blocks.append(bytearray(8 << 20))
    for i in range(0, 8 << 20, 4096):
        blocks[-1][i] = 1";
    let exit = run(&*sandbox, python(hog)).await.exit;
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    let bomb = "
import os, time
count = 0
try:
    while count < 1000:
        if os.fork() == 0:
            time.sleep(1000)
        count += 1
except OSError:
    pass
print(count)
os.killpg(0, 9)";
    let output = run(
        &*sandbox,
        python(&bomb.replace("print(count)", "print(count, flush=True)")),
    )
    .await
    .stdout;
    let count: u32 = output.trim().parse().unwrap();
    assert!((20..64).contains(&count), "{count}");
    assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
}

#[tokio::test]
async fn what_an_image_says_of_its_environment_holds_but_for_the_home() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let client = client().await;
    let commit = bollard::query_parameters::CommitContainerOptionsBuilder::new()
        .container("dressage-environment")
        .repo("dressage-environment")
        .build();
    let create = bollard::query_parameters::CreateContainerOptionsBuilder::new()
        .name("dressage-environment")
        .build();
    let body = bollard::models::ContainerCreateBody {
        image: Some(IMAGE.into()),
        cmd: Some(vec!["true".into()]),
        ..Default::default()
    };
    let made = client.create_container(Some(create), body).await.unwrap();
    let config = bollard::models::ContainerConfig {
        env: Some(vec![
            "PATH=/opt/own:/usr/bin:/bin".into(),
            "HOME=/elsewhere".into(),
            "OWN=1=2".into(),
        ]),
        entrypoint: Some(vec!["/bin/false".into()]),
        ..Default::default()
    };
    client.commit_container(commit, config).await.unwrap();
    let gone = bollard::query_parameters::RemoveContainerOptionsBuilder::new()
        .force(true)
        .build();
    client.remove_container(&made.id, Some(gone)).await.unwrap();
    let mut spec = spec();
    spec.image = Some("dressage-environment".into());
    let sandbox = world.backend("docker").create(spec).await.unwrap();
    assert_eq!(
        stdout_of(&*sandbox, sh("echo $PATH $HOME $OWN $LANG")).await,
        "/opt/own:/usr/bin:/bin /home/user 1=2 C.UTF-8"
    );
    sandbox.kill().await.unwrap();
    remove_image("dressage-environment").await;
}

#[tokio::test]
async fn an_image_is_built_of_a_dockerfile_once_and_one_that_cannot_be_is_told_with_its_last_lines() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let docker = world.backend("docker");
    let mut spec = spec();
    let mark = spec.id;
    spec.dockerfile = Some(format!(
        "FROM {IMAGE}\nENV MARK={mark}\nRUN echo $MARK > /built\n"
    ));
    for _ in 0..2 {
        spec.id = dressage_wire::ids::SandboxId::new();
        let sandbox = docker.create(spec.clone()).await.unwrap();
        assert_eq!(
            stdout_of(&*sandbox, sh("cat /built; echo $MARK")).await,
            format!("{mark}\n{mark}")
        );
        sandbox.kill().await.unwrap();
    }
    let images = client()
        .await
        .list_images(None::<bollard::query_parameters::ListImagesOptions>)
        .await
        .unwrap();
    let built = images
        .iter()
        .flat_map(|image| &image.repo_tags)
        .filter(|tag| tag.starts_with("dressage-build:"));
    for tag in built {
        remove_image(tag).await;
    }
    spec.dockerfile = Some(format!("FROM {IMAGE}\nRUN echo about to fail && false\n"));
    let error = docker.create(spec).await.err().unwrap();
    assert!(!error.is_transient());
    let text = error.to_string();
    assert!(
        text.contains("could not be built") && text.contains("about to fail"),
        "{text}"
    );
}

#[tokio::test]
async fn a_user_of_the_image_is_taken_by_name_and_roots_verification_is_not_called_separate() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    let docker = world.backend("docker");
    for (user, id, separation) in [
        ("nobody", "65534", Separation::Namespace),
        ("root", "0", Separation::None),
    ] {
        let mut spec = spec();
        spec.user = Some(user.into());
        spec.relay_port = Some(7000);
        let sandbox = docker.create(spec).await.unwrap();
        let who = stdout_of(
            &*sandbox,
            sh("id -u; id -un; echo $USER $HOME; echo x > file; stat -c %u file ."),
        )
        .await;
        assert_eq!(who, format!("{id}\n{user}\n{user} /home/user\n{id}\n{id}"));
        // Root installs packages, and no more.
        let chown = run(&*sandbox, sh("chown 1:1 file && chown 0:0 file"))
            .await
            .exit
            .code;
        assert_eq!(chown == 0, user == "root");
        for refused in [
            "mount -t tmpfs none /mnt",
            "mknod device c 1 3",
            "cat /proc/1/environ",
            "chroot / true",
        ] {
            assert_ne!(
                run(&*sandbox, sh(refused)).await.exit.code,
                0,
                "{user}: {refused}"
            );
        }
        let fresh = ["/home/user/logs/verifier".to_owned()];
        assert_eq!(sandbox.separate(&fresh).await.unwrap(), separation);
        assert_eq!(stdout_of(&*sandbox, sh("stat -c %u logs/verifier")).await, id);
        sandbox.kill().await.unwrap();
    }
    let mut spec = spec();
    spec.user = Some("nobody-knows".into());
    let error = docker.create(spec).await.err().unwrap();
    assert!(
        error.to_string().contains("has no user `nobody-knows`"),
        "{error}"
    );
}

#[tokio::test]
async fn what_the_engine_does_not_see_is_sent_to_it() {
    if engine().is_none() {
        return;
    }
    let world = World::new();
    // Mounted after the engine was started in a mount namespace of its own: to that, as to an engine elsewhere, all is empty.
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
    let result = tokio::spawn({
        let (mut config, hidden) = (world.config.clone(), hidden.clone());
        async move {
            let tap = hidden.join("tap");
            std::fs::copy(&config.tap_binary, &tap).unwrap();
            config.tap_binary = tap;
            std::fs::create_dir_all(hidden.join("agent/bin")).unwrap();
            std::fs::write(hidden.join("agent/bin/agent"), "#!/bin/sh\necho agent\n").unwrap();
            std::fs::set_permissions(
                hidden.join("agent/bin/agent"),
                std::os::unix::fs::PermissionsExt::from_mode(0o755),
            )
            .unwrap();
            let mut spec = spec();
            spec.relay_port = Some(7000);
            spec.assets = vec![Asset {
                name: "agent".into(),
                host_path: hidden.join("agent"),
            }];
            let sandbox = make(&config).create(spec).await.unwrap();
            let path = sandbox.asset_path("agent").unwrap();
            assert_eq!(
                stdout_of(&*sandbox, sh(&format!("{path}/bin/agent"))).await,
                "agent"
            );
            let forged = run(
                &*sandbox,
                sh(&format!("echo x > {path}/bin/agent; touch {path}/x")),
            )
            .await;
            assert_ne!(forged.exit.code, 0);
            sandbox
                .separate(&["/home/user/logs/verifier".to_owned()])
                .await
                .unwrap();
            assert_eq!(
                stdout_of(&*sandbox, sh(&format!("{path}/bin/agent"))).await,
                "agent"
            );
            sandbox.kill().await.unwrap();
        }
    })
    .await;
    nix::mount::umount(&hidden).unwrap();
    result.unwrap();
    assert_eq!(Lease::all(&world.config.data_dir).unwrap().0, []);
}
