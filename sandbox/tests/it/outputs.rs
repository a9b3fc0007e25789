use crate::world::{World, bytes, sh, spec_for, stdout_of};
use dressage_sandbox::archive::{ArchiveError, ArchiveLimits};
use dressage_sandbox::outputs::{self, Output, OutputsError};
use dressage_sandbox::{Sandbox, SandboxError};
use std::io::{Seek, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(60);

async fn take(sandbox: &dyn Sandbox, path: &str, limits: ArchiveLimits) -> Result<Output, OutputsError> {
    let path = format!("{}/{path}", sandbox.home());
    let spool = tempfile::tempfile().unwrap();
    outputs::take(sandbox, &path, Some(&path), spool, limits, WITHIN).await
}

/// All there is to be seen of a folder.
async fn seen(sandbox: &dyn Sandbox, folder: &str) -> String {
    let look = format!(
        "cd {folder} && find . -printf '%p %y %m %n %T@ %l\\n' | sort && find . -type f | sort | xargs -d '\\n' md5sum"
    );
    stdout_of(sandbox, sh(&look)).await
}

#[tokio::test]
async fn a_folder_is_the_same_in_another_sandbox_and_what_was_there_is_gone() {
    let world = World::new();
    for backend in world.everywhere() {
        let (one, other) = (
            backend.create(spec_for(&*backend)).await.unwrap(),
            backend.create(spec_for(&*backend)).await.unwrap(),
        );
        let make = "mkdir -p out/a/empty out/closed; cd out; head -c 9000000 /dev/urandom > big; echo x > a/file; ln a/file twice
            ln -s a/file link; chmod 600 twice; echo y > closed/in; chmod 555 closed; touch -d 2001-02-03T04:05:06.789 a/empty a";
        stdout_of(&*one, sh(make)).await;
        stdout_of(
            &*other,
            sh("mkdir -p out/a/file/ro; touch out/old out/a/file/ro/x; chmod 555 out/a/file/ro"),
        )
        .await;
        one.separate(&[]).await.unwrap();
        let taken = take(&*one, "out", ArchiveLimits::default()).await.unwrap();
        assert_eq!(taken.complaint, None);
        let expected = seen(&*one, "out").await;
        one.kill().await.unwrap();
        let place = format!("{}/out", other.home());
        let omitted = taken.put(&*other, &place, WITHIN).await.unwrap();
        assert_eq!(omitted.count, 0);
        assert_eq!(seen(&*other, "out").await, expected, "{}", backend.name());
        assert_eq!(stdout_of(&*other, sh("ls -A")).await, "out");
    }
}

#[tokio::test]
async fn a_file_and_nothing_are_outputs_too() {
    let world = World::new();
    for backend in world.everywhere() {
        let (one, other) = (
            backend.create(spec_for(&*backend)).await.unwrap(),
            backend.create(spec_for(&*backend)).await.unwrap(),
        );
        stdout_of(&*one, sh("mkdir dir; echo new > dir/-file")).await;
        stdout_of(&*other, sh("mkdir -p gone/deep; mkdir -p dir/-file/x")).await;
        for path in ["dir/-file", "gone", "none/deeper"] {
            let taken = take(&*one, path, ArchiveLimits::default()).await.unwrap();
            taken
                .put(&*other, &format!("{}/{path}", other.home()), WITHIN)
                .await
                .unwrap();
        }
        assert_eq!(other.read_file("dir/-file", 100).await.unwrap(), "new\n");
        assert!(!other.exists("gone").await.unwrap());
    }
}

#[tokio::test]
async fn what_is_too_much_ends_the_program_that_would_write_it() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        stdout_of(&*sandbox, sh("mkdir out; truncate -s 1T out/huge")).await;
        let limits = ArchiveLimits {
            bytes: 1 << 20,
            ..ArchiveLimits::default()
        };
        let begun = Instant::now();
        match take(&*sandbox, "out", limits).await {
            Err(OutputsError::Archive {
                source: ArchiveError::TooLong { limit },
                ..
            }) => assert_eq!(limit, 1 << 20),
            other => panic!("{other:?}"),
        }
        assert!(begun.elapsed() < WITHIN / 2);
        // Two share what there is.
        stdout_of(&*sandbox, sh("mkdir small; echo > small/a")).await;
        let rest = take(&*sandbox, "small", limits).await.unwrap().rest_of(limits);
        assert!(
            rest.bytes < limits.bytes && rest.bytes > limits.bytes - 20_480,
            "{rest:?}"
        );
    }
}

#[tokio::test]
async fn a_sandbox_that_goes_meanwhile_is_gone() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        stdout_of(&*sandbox, sh("mkdir out; truncate -s 1T out/huge")).await;
        let killing = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            sandbox.kill().await.unwrap();
        };
        let limits = ArchiveLimits {
            bytes: u64::MAX,
            ..ArchiveLimits::default()
        };
        // What it writes goes nowhere.
        let path = format!("{}/out", sandbox.home());
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let taking = outputs::take(&*sandbox, &path, None, null, limits, WITHIN);
        let (taken, ()) = tokio::join!(taking, killing);
        assert!(
            matches!(taken, Err(OutputsError::Sandbox(SandboxError::Gone { .. }))),
            "{taken:?}"
        );
    }
}

#[tokio::test]
async fn what_takes_too_long_is_ended_and_told() {
    let world = World::new();
    let sandbox = world.local().await;
    stdout_of(&*sandbox, sh("mkdir out; truncate -s 1T out/huge")).await;
    let limits = ArchiveLimits {
        bytes: u64::MAX,
        ..ArchiveLimits::default()
    };
    let path = format!("{}/out", sandbox.home());
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
    let taken = outputs::take(&*sandbox, &path, None, null, limits, Duration::from_millis(300)).await;
    assert!(matches!(taken, Err(OutputsError::TimedOut { .. })), "{taken:?}");
}

#[tokio::test]
async fn a_file_of_any_length_is_uploaded_in_pieces() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        for length in [0, 1, 4 << 20, (4 << 20) + 1, 9 << 20] {
            let content: Vec<u8> = (0..length).map(|at: usize| (at * 7 % 251) as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&content).unwrap();
            // Where it was read to before is of no account.
            file.seek(std::io::SeekFrom::End(0)).unwrap();
            sandbox
                .upload("deep/er/file", Arc::new(file), 0o640)
                .await
                .unwrap();
            assert_eq!(
                sandbox.read_file("deep/er/file", 16 << 20).await.unwrap(),
                content
            );
        }
        assert_eq!(stdout_of(&*sandbox, sh("stat -c %a deep/er/file")).await, "640");
        sandbox.write_file("plain", bytes("x"), 0o644).await.unwrap();
        let refused = sandbox
            .upload("plain/below", Arc::new(tempfile::tempfile().unwrap()), 0o644)
            .await;
        assert!(refused.is_err());
    }
}
