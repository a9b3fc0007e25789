use crate::world::{Output, World, bytes, eventually, processes_with, python, run, sh, spec, stdout_of};
use dressage_sandbox::{Sandbox, SandboxError};
use dressage_wire::ids::SandboxId;
use dressage_wire::reward::Separation;
use std::sync::Arc;

const VERIFIER: &str = "logs/verifier";

async fn separate(sandbox: &dyn Sandbox) -> Separation {
    sandbox
        .separate(&[format!("{}/{VERIFIER}", sandbox.home())])
        .await
        .unwrap()
}

#[tokio::test]
async fn what_the_agent_left_running_is_dead_and_its_files_are_there() {
    let world = World::new();
    for backend in world.backends() {
        let mut spec = spec();
        spec.relay_port = Some(7000);
        let sandbox = backend.create(spec).await.unwrap();
        let mark = format!("mark-{}", SandboxId::new());
        let daemon = format!(
            "mkdir -p {VERIFIER}; echo 1.0 > {VERIFIER}/reward.txt; echo work > result
            (setsid sh -c ': {mark}; while :; do mkdir -p {VERIFIER}; echo 1.0 > {VERIFIER}/reward.txt; sleep 0.01; done' \
             >/dev/null 2>&1 &)"
        );
        stdout_of(&*sandbox, sh(&daemon)).await;
        let mut running = sandbox
            .start(sh("sleep 1000"), Arc::new(Output::default()))
            .await
            .unwrap();
        eventually("the daemon", || !processes_with(&mark).is_empty()).await;
        let expected = if backend.name() == "process" {
            Separation::None
        } else {
            Separation::Namespace
        };
        assert_eq!(separate(&*sandbox).await, expected);
        assert_eq!(processes_with(&mark), Vec::<i32>::new());
        assert!(matches!(running.wait().await, Err(SandboxError::Gone { .. })));
        assert_eq!(stdout_of(&*sandbox, sh("cat result")).await, "work");
        assert_eq!(stdout_of(&*sandbox, sh(&format!("ls -A {VERIFIER}"))).await, "");
        // Verify writes there, and the host reads it.
        stdout_of(&*sandbox, sh(&format!("echo 0.5 > {VERIFIER}/reward.txt"))).await;
        assert_eq!(
            sandbox
                .read_file(&format!("{VERIFIER}/reward.txt"), 100)
                .await
                .unwrap(),
            "0.5\n"
        );
        sandbox
            .write_file("tests/hidden.txt", bytes("hidden"), 0o644)
            .await
            .unwrap();
        assert_eq!(stdout_of(&*sandbox, sh("cat tests/hidden.txt")).await, "hidden");
        // The relay is gone with the agent.
        let port = sandbox
            .relay_address()
            .unwrap()
            .rsplit_once(':')
            .unwrap()
            .1
            .to_owned();
        let connect = python(&format!(
            "import socket; socket.create_connection(('127.0.0.1', {port}))"
        ));
        assert!(
            run(&*sandbox, connect)
                .await
                .stderr
                .contains("ConnectionRefusedError")
        );
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn verify_has_a_new_tmp_and_new_namespaces() {
    let world = World::new();
    let sandbox = world.local().await;
    // An object of the old inter-process namespace; numbers of namespaces may be given again, and prove nothing.
    stdout_of(&*sandbox, sh("ipcmk -M 4096")).await;
    stdout_of(
        &*sandbox,
        sh("for d in /tmp /var/tmp /run /dev/shm; do echo evil > $d/left; done"),
    )
    .await;
    separate(&*sandbox).await;
    let others = "ls /proc | grep -c '^[0-9]'; grep -c . /proc/sysvipc/shm";
    // Init, a guard, and the shell with its ls and grep; of shared memory, the heading alone.
    let found = stdout_of(&*sandbox, sh(others)).await;
    let counts: Vec<u32> = found.lines().map(|line| line.parse().unwrap()).collect();
    assert!(counts[0] <= 5, "{found}");
    assert_eq!(counts[1], 1, "{found}");
    assert_eq!(
        stdout_of(
            &*sandbox,
            sh("ls -A /tmp /var/tmp /run /dev/shm | grep -v :; true")
        )
        .await
        .trim(),
        ""
    );
    // What is mounted there is a file system in memory, not the agent's home.
    let point = format!("/home/user/{VERIFIER}");
    assert_eq!(
        stdout_of(&*sandbox, sh(&format!("stat -f -c %T {point}"))).await,
        "tmpfs"
    );
}

/// Ways in which an agent may forge or obstruct what verify is to write, each a script run in the home.
const FORGERIES: [(&str, &str); 12] = [
    (
        "a file",
        "mkdir -p logs/verifier; echo 1.0 > logs/verifier/reward.txt",
    ),
    (
        "a read-only file",
        "mkdir -p logs/verifier; echo 1.0 > logs/verifier/reward.txt; chmod 444 logs/verifier/reward.txt",
    ),
    (
        "a read-only directory",
        "mkdir -p logs/verifier; echo 1.0 > logs/verifier/reward.txt; chmod 555 logs/verifier logs",
    ),
    (
        "a closed directory",
        "mkdir -p logs/verifier; echo 1.0 > logs/verifier/reward.txt; chmod 0 logs/verifier; chmod 0 logs",
    ),
    (
        "a link to a file",
        "mkdir -p logs/verifier; echo 1.0 > forged; ln -s ../../forged logs/verifier/reward.txt",
    ),
    (
        "a link to a directory",
        "mkdir forged logs; echo 1.0 > forged/reward.txt; ln -s ../forged logs/verifier",
    ),
    (
        "a link above",
        "mkdir -p forged/verifier; echo 1.0 > forged/verifier/reward.txt; ln -s forged logs",
    ),
    (
        "a link out of the home",
        "mkdir logs; ln -s /tmp logs/verifier; echo 1.0 > /tmp/reward-$$.txt",
    ),
    ("a dangling link", "ln -s nowhere logs"),
    (
        "a directory in the place of the file",
        "mkdir -p logs/verifier/reward.txt",
    ),
    ("a named pipe", "mkdir logs; mkfifo logs/verifier"),
    ("a file in the place of a directory", "echo 1.0 > logs"),
];

#[tokio::test]
async fn a_forged_reward_in_any_form_is_out_of_the_way() {
    let world = World::new();
    for backend in world.backends() {
        for (name, script) in FORGERIES {
            let sandbox = backend.create(spec()).await.unwrap();
            let ran = run(&*sandbox, sh(script)).await;
            assert_eq!(ran.exit.code, 0, "{name}: {}", ran.stderr);
            separate(&*sandbox).await;
            let reward = format!("{VERIFIER}/reward.txt");
            assert!(!sandbox.exists(&reward).await.unwrap(), "{name}");
            assert_eq!(
                stdout_of(
                    &*sandbox,
                    sh(&format!("ls -A {VERIFIER}; echo 0.25 > {reward}; cat {reward}"))
                )
                .await,
                "0.25",
                "{name}"
            );
            assert_eq!(sandbox.read_file(&reward, 100).await.unwrap(), "0.25\n", "{name}");
            sandbox.kill().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_home_that_the_agent_closed_is_open_to_verify() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        run(&*sandbox, sh("echo work > result; chmod 0 .")).await;
        separate(&*sandbox).await;
        assert_eq!(stdout_of(&*sandbox, sh("cat result")).await, "work");
    }
}

#[tokio::test]
async fn a_fresh_directory_elsewhere_is_refused_and_kill_still_cleans_up() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        for path in ["/usr/fresh", "/home/user/../x", "/"] {
            let Err(error) = sandbox.separate(&[path.to_owned()]).await else {
                panic!("{path} was accepted");
            };
            assert!(!matches!(error, SandboxError::NotFound { .. }), "{error}");
        }
        sandbox.kill().await.unwrap();
    }
    assert_eq!(world.names("homes"), Vec::<String>::new());
}

#[tokio::test]
async fn what_setup_left_in_the_home_stays_and_separation_can_be_repeated() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        stdout_of(
            &*sandbox,
            sh("echo kept > file; mkdir -p logs/other; echo kept > logs/other/file"),
        )
        .await;
        separate(&*sandbox).await;
        stdout_of(&*sandbox, sh(&format!("echo 1 > {VERIFIER}/reward.txt"))).await;
        separate(&*sandbox).await;
        assert_eq!(
            stdout_of(
                &*sandbox,
                sh(&format!("cat file logs/other/file; ls -A {VERIFIER}"))
            )
            .await,
            "kept\nkept"
        );
        sandbox.kill().await.unwrap();
    }
}
