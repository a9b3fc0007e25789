use crate::world::{Output, World, eventually, processes_with, python, run, sh, spec, stdout_of, try_run};
use bytes::Bytes;
use dressage_sandbox::{Command, OutputSink, SandboxError};
use dressage_wire::event::OutputStream;
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Text that no other process of this machine has on its command line.
fn mark() -> String {
    format!("mark-{}", SandboxId::new())
}

/// A shell script that leaves processes everywhere: sessions of their own, forked twice, deaf to SIGTERM.
fn spread(mark: &str) -> String {
    format!(
        r#"
        trap '' TERM HUP INT
        setsid sh -c 'trap "" TERM; : {mark}; while :; do sleep 0.05; done' &
        (sh -c ': {mark}; sleep 1000; :' &)
        python3 -c '
import os, threading, ctypes, time, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        # The first thread ends; to a quick look the process is a zombie.
        threading.Thread(target=lambda: time.sleep(1000)).start()
        ctypes.CDLL(None).syscall(60, 0)
' {mark}
        echo spread
        while :; do sleep 0.05; done
        "#
    )
}

#[tokio::test]
async fn outputs_are_separate_and_the_exit_code_is_the_programs() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let ran = run(&*sandbox, sh("echo out; echo err >&2; exit 7")).await;
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(
            (ran.exit.code, ran.exit.signal, ran.exit.timed_out),
            (7, None, false)
        );
    }
}

#[tokio::test]
async fn output_is_streamed_while_the_program_runs() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let output = Arc::new(Output::default());
        let script = sh("echo first; while [ ! -e go ]; do sleep 0.01; done; echo second");
        let mut process = sandbox.start(script, output.clone()).await.unwrap();
        eventually("the first line", || output.stdout() == "first\n").await;
        sandbox.write_file("go", Bytes::new(), 0o644).await.unwrap();
        assert_eq!(process.wait().await.unwrap().code, 0);
        assert_eq!(output.stdout(), "first\nsecond\n");
    }
}

#[tokio::test]
async fn a_signal_is_told_and_is_not_exit_0() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let exit = run(&*sandbox, sh("kill -SEGV $$")).await.exit;
        assert_eq!((exit.code, exit.signal, exit.timed_out), (139, Some(11), false));
        let exit = run(&*sandbox, sh("kill -KILL $$")).await.exit;
        assert_eq!((exit.code, exit.signal), (137, Some(9)));
        let exit = run(&*sandbox, sh("exit 255")).await.exit;
        assert_eq!((exit.code, exit.signal), (255, None));
    }
}

#[tokio::test]
async fn a_deadline_gives_124_and_the_whole_tree_is_dead() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let mark = mark();
        let mut command = sh(&spread(&mark));
        command.timeout = Some(Duration::from_millis(1500));
        let ran = run(&*sandbox, command).await;
        assert_eq!(ran.stdout, "spread\n", "{}", ran.stderr);
        assert_eq!((ran.exit.code, ran.exit.timed_out), (124, true));
        assert!(ran.exit.duration >= Duration::from_millis(1500));
        assert_eq!(processes_with(&mark), Vec::<i32>::new());
        // The sandbox itself goes on.
        assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
    }
}

#[tokio::test]
async fn a_deadline_holds_against_a_program_that_stops_its_guard() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let mark = mark();
        let mut command = sh(&format!(
            ": {mark}; kill -STOP $PPID; while :; do sleep 0.05; done"
        ));
        command.timeout = Some(Duration::from_millis(500));
        let exit = run(&*sandbox, command).await.exit;
        assert_eq!((exit.code, exit.timed_out), (124, true));
        assert_eq!(processes_with(&mark), Vec::<i32>::new());
    }
}

#[tokio::test]
async fn a_program_that_kills_its_guard_is_killed_with_what_it_left() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let mark = mark();
        let script = format!(
            "(setsid sh -c ': {mark}; while :; do sleep 0.05; done' &) ; kill -KILL $PPID; sleep 1000"
        );
        let exit = run(&*sandbox, sh(&script)).await.exit;
        assert_eq!((exit.code, exit.signal), (137, Some(9)));
        assert_eq!(processes_with(&mark), Vec::<i32>::new());
        assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
    }
}

#[tokio::test]
async fn a_wait_is_given_up_at_its_deadline_and_kill_ends_the_tree() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let mark = mark();
        let output = Arc::new(Output::default());
        let mut process = sandbox.start(sh(&spread(&mark)), output.clone()).await.unwrap();
        eventually("the tree", || output.stdout() == "spread\n").await;
        assert!(
            tokio::time::timeout(Duration::from_millis(200), process.wait())
                .await
                .is_err()
        );
        process.kill().await.unwrap();
        assert_eq!(processes_with(&mark), Vec::<i32>::new());
        let exit = process.wait().await.unwrap();
        assert_eq!((exit.code, exit.signal, exit.timed_out), (137, Some(9), false));
        // Again: it has ended, which is all that is asked for.
        process.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_service_that_a_command_leaves_lives_on_and_holds_nothing_up() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let script = "(while :; do echo noise; echo noise >&2; date > beat; sleep 0.02; done) & echo started";
        let ran = tokio::time::timeout(Duration::from_secs(60), run(&*sandbox, sh(script)));
        let ran = ran.await.expect("the exit waits for a service");
        assert_eq!(ran.exit.code, 0);
        assert!(ran.stdout.contains("started\n"));
        // It writes to a pipe that nobody wants any more, and does not die of it.
        stdout_of(&*sandbox, sh("rm -f beat; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; [ -e beat ] && exit 0; done; exit 1"))
            .await;
    }
}

struct Counter(AtomicU64);

impl OutputSink for Counter {
    fn write(&self, _: OutputStream, bytes: &[u8]) {
        self.0.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn fifty_megabytes_of_output_pass_in_pieces() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let counter = Arc::new(Counter(AtomicU64::new(0)));
        let exit = sandbox
            .exec(sh("head -c 52428800 /dev/zero"), counter.clone())
            .await
            .unwrap();
        assert_eq!(exit.code, 0);
        assert_eq!(counter.0.load(Ordering::Relaxed), 50 << 20);
    }
}

#[tokio::test]
async fn output_need_not_be_text() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let output = Arc::new(Output::default());
        let script = python("import sys; sys.stdout.buffer.write(bytes(range(256)))");
        sandbox.exec(script, output.clone()).await.unwrap();
        assert_eq!(output.stdout_bytes(), (0..=255).collect::<Vec<u8>>());
    }
}

#[tokio::test]
async fn ten_megabytes_of_standard_input_arrive_and_may_be_left_unread() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let stdin = Bytes::from(vec![b'x'; 10 << 20]);
        let count = Command {
            stdin: stdin.clone(),
            ..sh("wc -c")
        };
        assert_eq!(stdout_of(&*sandbox, count).await, "10485760");
        let unread = Command {
            stdin,
            ..sh("exit 3")
        };
        assert_eq!(run(&*sandbox, unread).await.exit.code, 3);
        assert_eq!(stdout_of(&*sandbox, sh("cat")).await, "");
    }
}

#[tokio::test]
async fn environment_is_the_sandboxes_then_the_commands_or_only_the_commands() {
    let world = World::new();
    for backend in world.backends() {
        let mut spec = spec();
        spec.env = BTreeMap::from([("A".into(), "spec".into()), ("B".into(), "spec".into())]);
        let sandbox = backend.create(spec).await.unwrap();
        let env = BTreeMap::from([("B".into(), "command".into()), ("EMPTY".into(), String::new())]);
        let over = Command {
            env: env.clone(),
            ..sh("echo $A $B \"[${EMPTY-unset}]\" $HOME")
        };
        let expected = format!("spec command [] {}", sandbox.home());
        assert_eq!(stdout_of(&*sandbox, over).await, expected);
        let alone = Command {
            env,
            clear_env: true,
            argv: vec!["/usr/bin/env".into()],
            ..Command::default()
        };
        assert_eq!(stdout_of(&*sandbox, alone).await, "B=command\nEMPTY=");
        // Nothing of this process's own environment comes in.
        let own = Command {
            argv: vec!["/usr/bin/env".into()],
            ..Command::default()
        };
        assert!(!stdout_of(&*sandbox, own).await.contains("DRESSAGE_TAP_BINARY"));
    }
}

#[tokio::test]
async fn a_working_directory_is_made_and_python_and_bash_are_there() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let home = sandbox.home().to_owned();
        assert_eq!(stdout_of(&*sandbox, sh("pwd")).await, home);
        let made = Command {
            cwd: Some("new/deep".into()),
            ..sh("pwd")
        };
        assert_eq!(stdout_of(&*sandbox, made).await, format!("{home}/new/deep"));
        assert_eq!(stdout_of(&*sandbox, sh("python -c 'print(1+1)'")).await, "2");
    }
}

#[tokio::test]
async fn a_program_that_cannot_start_is_an_error_that_names_it() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        sandbox
            .write_file("file", Bytes::from_static(b"text"), 0o644)
            .await
            .unwrap();
        let cases = [
            (
                Command {
                    argv: vec!["no-such-program".into()],
                    ..Command::default()
                },
                Some(libc::ENOENT),
            ),
            (
                Command {
                    argv: vec!["./file".into()],
                    ..Command::default()
                },
                Some(libc::EACCES),
            ),
            (
                Command {
                    argv: Vec::new(),
                    ..Command::default()
                },
                Some(libc::EINVAL),
            ),
            (
                Command {
                    argv: vec!["a\0b".into()],
                    ..Command::default()
                },
                Some(libc::EINVAL),
            ),
            (
                Command {
                    cwd: Some("file".into()),
                    ..sh("true")
                },
                Some(libc::EEXIST),
            ),
            (
                Command {
                    env: BTreeMap::from([("A=B".into(), "c".into())]),
                    ..sh("true")
                },
                Some(libc::EINVAL),
            ),
            (sh(&"x".repeat(200 << 10)), Some(libc::E2BIG)),
            (sh(&"x".repeat(5 << 20)), Some(libc::E2BIG)),
        ];
        for (command, expected) in cases {
            let name = command.argv.first().cloned().unwrap_or_default();
            match try_run(&*sandbox, command).await.map(|ran| ran.exit) {
                Err(SandboxError::Operation {
                    operation: "start",
                    errno,
                    message,
                    ..
                }) => {
                    assert_eq!(errno, expected, "{name}: {message}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
        assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
    }
}

#[tokio::test]
async fn a_slow_program_and_a_flood_hold_up_no_other_request() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let flood = Arc::new(Counter(AtomicU64::new(0)));
        let mut flooding = sandbox.start(sh("yes"), flood.clone()).await.unwrap();
        eventually("the flood", || flood.0.load(Ordering::Relaxed) > 1 << 20).await;
        let begun = Instant::now();
        for _ in 0..5 {
            assert_eq!(stdout_of(&*sandbox, sh("echo on")).await, "on");
            assert!(!sandbox.exists("nothing").await.unwrap());
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        flooding.kill().await.unwrap();
    }
}

#[tokio::test]
async fn thirty_programs_at_once_do_not_mix() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let mut all = tokio::task::JoinSet::new();
        for number in 0..30 {
            let sandbox = Arc::clone(&sandbox);
            all.spawn(async move {
                let script = format!("for i in 1 2 3; do echo {number}; done; exit {number}");
                let ran = run(&*sandbox, sh(&script)).await;
                assert_eq!(ran.stdout, format!("{number}\n").repeat(3));
                assert_eq!(ran.exit.code, number);
            });
        }
        while let Some(result) = all.join_next().await {
            result.unwrap();
        }
    }
}

#[tokio::test]
async fn a_program_has_no_descriptors_but_its_own_and_default_signals() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let script = python(
            "import os; print([(n, os.readlink('/proc/self/fd/' + n)) for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists('/proc/self/fd/' + n)])",
        );
        assert_eq!(stdout_of(&*sandbox, script).await, "[]");
        // The 31 that programs use; glibc keeps two beyond to itself.
        let script = "
for line in open('/proc/self/status'):
    if line.startswith(('SigBlk', 'SigIgn')):
        print(int(line.split()[1], 16) & 0x7fffffff)";
        // Python itself ignores SIGPIPE (1 << 12) and SIGXFSZ (1 << 24).
        assert_eq!(
            stdout_of(&*sandbox, python(script)).await,
            format!("0\n{}", 1 << 12 | 1 << 24)
        );
    }
}
