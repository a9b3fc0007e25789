//! `dressage-tap leader`, the static program.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn leader(script: &str) -> Command {
    let binary = std::env::var_os("DRESSAGE_TAP_BINARY");
    let mut command =
        Command::new(binary.expect("DRESSAGE_TAP_BINARY is not set: run the tests with `make test`"));
    command.args(["leader", "sh", "-c", script]).stdin(Stdio::null());
    command
}

fn run(script: &str) -> Output {
    leader(script).output().unwrap()
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_a_program_writes_comes_whole_with_its_exit_code() {
    let ran =
        run("head -c 3000000 /dev/zero | tr '\\0' o; head -c 2000000 /dev/zero | tr '\\0' e >&2; exit 7");
    assert_eq!(ran.status.code(), Some(7));
    assert_eq!(ran.stdout.len(), 3_000_000);
    assert!(ran.stdout.iter().all(|byte| *byte == b'o'));
    assert_eq!(ran.stderr.len(), 2_000_000);
    assert!(ran.stderr.iter().all(|byte| *byte == b'e'));
}

#[test]
fn it_reads_what_it_was_given() {
    let mut command = leader("cat");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"said").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"said");
}

#[test]
fn a_signal_that_ends_the_program_ends_the_leader() {
    // Not those that whoever runs the tests may have had ignored.
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGPIPE, libc::SIGUSR1] {
        let ran = run(&format!("echo before; kill -{signal} $$"));
        assert_eq!(ran.status.signal(), Some(signal));
        assert_eq!(ran.stdout, b"before\n");
    }
}

#[test]
fn a_program_that_is_not_there_or_is_none_is_said_as_by_a_shell() {
    for (program, code) in [("/nowhere/at-all", 127), ("/etc/passwd", 126)] {
        let binary = std::env::var_os("DRESSAGE_TAP_BINARY").unwrap();
        let ran = Command::new(binary).args(["leader", program]).output().unwrap();
        assert_eq!(ran.status.code(), Some(code));
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(said.contains(program), "{said}");
    }
}

/// The number of the service that a script has left, which it wrote to a file.
struct Service(i32);

impl Service {
    fn left(folder: &Path) -> Self {
        let number = std::fs::read_to_string(folder.join("pid")).unwrap();
        Self(number.trim().parse().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.0),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

#[test]
fn a_service_that_is_left_holds_nothing_up_and_does_not_die_of_writing() {
    for noise in ["sleep 0.01", ":"] {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {}; (while :; do echo noise; echo noise >&2; date > beat; {noise}; done) & echo $! > pid; echo started; exit 3",
            folder.path().display()
        );
        let mut child = leader(&script)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // To the end of both pipes, which the service has had as well.
        let mut errors = child.stderr.take().unwrap();
        let reading = std::thread::spawn(move || errors.read_to_end(&mut Vec::new()).unwrap());
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        reading.join().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
        let _service = Service::left(folder.path());
        assert!(said.contains("started\n"), "{said}");
        for _ in 0..3 {
            std::fs::remove_file(folder.path().join("beat")).ok();
            eventually("the service lives", || folder.path().join("beat").exists());
        }
    }
}

#[test]
fn a_program_goes_on_when_nobody_reads_what_it_writes() {
    let folder = tempfile::tempdir().unwrap();
    let done = folder.path().join("done");
    let script = format!("yes | head -c 1000000; echo over > {}", done.display());
    let mut child = leader(&script).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(done.exists());
}
