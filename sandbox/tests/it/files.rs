use crate::world::{REMOTE, World, bytes, is_root, python, sh, spec, spec_for, stdout_of};
use bytes::Bytes;
use dressage_sandbox::{Sandbox, SandboxError, Size};
use std::time::{Duration, Instant};

const NO_LIMIT: u64 = u64::MAX;

#[tokio::test]
async fn parents_are_made_and_a_name_alone_is_in_the_home() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let home = sandbox.home().to_owned();
        for (path, absolute) in [
            ("a/b/c.txt", format!("{home}/a/b/c.txt")),
            ("name.txt", format!("{home}/name.txt")),
            ("./dot.txt", format!("{home}/dot.txt")),
            (&format!("{home}/d/e"), format!("{home}/d/e")),
        ] {
            sandbox.write_file(path, bytes(path), 0o640).await.unwrap();
            assert_eq!(sandbox.read_file(&absolute, NO_LIMIT).await.unwrap(), path);
            assert!(sandbox.exists(path).await.unwrap());
            assert_eq!(
                stdout_of(&*sandbox, sh(&format!("stat -c %a '{absolute}'"))).await,
                "640"
            );
        }
        assert!(!sandbox.exists("a/none").await.unwrap());
        assert!(!sandbox.exists("name.txt/below").await.unwrap());
    }
}

#[tokio::test]
async fn bytes_come_back_as_they_went_in() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        sandbox
            .write_file("binary", Bytes::from(content.clone()), 0o644)
            .await
            .unwrap();
        assert_eq!(sandbox.read_file("binary", NO_LIMIT).await.unwrap(), content);
        sandbox.write_file("binary", Bytes::new(), 0o644).await.unwrap();
        assert_eq!(sandbox.read_file("binary", NO_LIMIT).await.unwrap(), "");
        sandbox
            .write_file("ünïcode 名 .txt", bytes("x"), 0o644)
            .await
            .unwrap();
        assert_eq!(sandbox.read_file("ünïcode 名 .txt", NO_LIMIT).await.unwrap(), "x");
        let long = "n".repeat(255);
        sandbox.write_file(&long, bytes("x"), 0o644).await.unwrap();
        assert!(sandbox.exists(&long).await.unwrap());
    }
}

/// Not over providers by others: one of them puts the name into a header of its answer as it is, and then breaks off.
#[tokio::test]
async fn a_line_break_in_a_name_is_a_part_of_it() {
    let world = World::new();
    for backend in world
        .backends()
        .into_iter()
        .chain(REMOTE.map(|name| world.remote(name)))
    {
        let sandbox = backend.create(spec_for(&*backend)).await.unwrap();
        sandbox.write_file("a\nb", bytes("x"), 0o644).await.unwrap();
        assert_eq!(sandbox.read_file("a\nb", NO_LIMIT).await.unwrap(), "x");
        assert_eq!(stdout_of(&*sandbox, sh("ls -d a* | wc -l")).await, "2");
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn a_hundred_megabytes_go_in_and_come_back() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let content = Bytes::from((0..100u32 << 20).map(|i| (i % 251) as u8).collect::<Vec<u8>>());
        sandbox.write_file("large", content.clone(), 0o644).await.unwrap();
        assert_eq!(
            stdout_of(&*sandbox, sh("wc -c < large")).await,
            (100 << 20).to_string()
        );
        assert!(sandbox.read_file("large", NO_LIMIT).await.unwrap() == content);
        sandbox.kill().await.unwrap();
    }
}

#[tokio::test]
async fn what_is_no_regular_file_is_a_named_error_at_once() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        stdout_of(
            &*sandbox,
            sh("mkdir dir; mkfifo fifo; echo secret > target; ln -s target link; ln -s nowhere dangling"),
        )
        .await;
        stdout_of(
            &*sandbox,
            python("import socket; socket.socket(socket.AF_UNIX).bind('socket')"),
        )
        .await;
        let begun = Instant::now();
        for (path, expected) in [
            ("dir", "a directory"),
            ("fifo", "a named pipe"),
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("socket", "a socket or a device"),
            ("/dev/zero", "a device"),
        ] {
            match sandbox.read_file(path, NO_LIMIT).await {
                Err(SandboxError::NotRegular { kind, .. }) => assert_eq!(kind, expected, "{path}"),
                other => panic!("{path}: {other:?}"),
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(60));
        for path in ["none", "none/deeper", "target/below"] {
            match sandbox.read_file(path, NO_LIMIT).await {
                Err(SandboxError::NotFound { path: named }) => assert!(named.ends_with(path), "{named}"),
                other => panic!("{path}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_file_over_the_limit_is_refused_with_its_size() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        sandbox
            .write_file("ten", bytes("0123456789"), 0o644)
            .await
            .unwrap();
        assert_eq!(sandbox.read_file("ten", 10).await.unwrap(), "0123456789");
        match sandbox.read_file("ten", 9).await {
            Err(SandboxError::TooLarge {
                size: 10, limit: 9, ..
            }) => {}
            other => panic!("{other:?}"),
        }
        // Sparse: claims a terabyte, holds nothing.
        stdout_of(&*sandbox, sh("truncate -s 1T sparse")).await;
        match sandbox.read_file("sparse", 1 << 20).await {
            Err(SandboxError::TooLarge { size, .. }) => assert_eq!(size, 1 << 40),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_link_at_the_name_is_replaced_and_not_written_through() {
    let world = World::new();
    for sandbox in world.sandboxes_everywhere().await {
        stdout_of(
            &*sandbox,
            sh("echo kept > target; ln -s target link; mkfifo fifo"),
        )
        .await;
        for name in ["link", "fifo"] {
            sandbox.write_file(name, bytes("new"), 0o644).await.unwrap();
            assert_eq!(sandbox.read_file(name, NO_LIMIT).await.unwrap(), "new");
        }
        assert_eq!(sandbox.read_file("target", NO_LIMIT).await.unwrap(), "kept\n");
    }
}

#[tokio::test]
async fn a_place_that_cannot_be_written_is_an_error_and_leaves_nothing() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        stdout_of(&*sandbox, sh("mkdir dir; echo x > file")).await;
        for (path, expected) in [("dir", libc::EISDIR), (".", libc::EISDIR), ("/", libc::EISDIR)] {
            match sandbox.write_file(path, bytes("x"), 0o644).await {
                Err(SandboxError::Operation {
                    operation: "write",
                    errno,
                    ..
                }) => {
                    assert_eq!(errno, Some(expected), "{path}");
                }
                other => panic!("{path}: {other:?}"),
            }
        }
        assert!(sandbox.write_file("file/below", bytes("x"), 0o644).await.is_err());
        assert_eq!(list(&*sandbox).await, ["file"]);
    }
    let local = world.local().await;
    match local.write_file("/usr/forged", bytes("x"), 0o644).await {
        Err(SandboxError::Operation { errno, .. }) => assert_eq!(errno, Some(libc::EROFS)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_full_disk_is_an_error_and_leaves_no_half_file() {
    let world = World::new();
    let mut spec = spec();
    spec.size = Size {
        memory_bytes: 64 << 20,
        ..spec.size
    };
    let sandbox = world.backend("local").create(spec).await.unwrap();
    match sandbox
        .write_file("/run/big", Bytes::from(vec![1; 20 << 20]), 0o644)
        .await
    {
        Err(SandboxError::Operation { errno, .. }) => assert_eq!(errno, Some(libc::ENOSPC)),
        other => panic!("{other:?}"),
    }
    assert_eq!(stdout_of(&*sandbox, sh("ls -A /run")).await, "");
}

#[tokio::test]
async fn a_write_that_is_given_up_leaves_nothing() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        let content = Bytes::from(vec![7; 200 << 20]);
        let writing = sandbox.write_file("big", content, 0o644);
        let _ = tokio::time::timeout(Duration::from_millis(30), writing)
            .await
            .unwrap_err();
        // Whatever was under way has been dealt with once a later request of each of init's threads has.
        for _ in 0..8 {
            sandbox.exists("big").await.unwrap();
        }
        assert_eq!(stdout_of(&*sandbox, sh("ls -A")).await, "");
    }
}

async fn list(sandbox: &dyn Sandbox) -> Vec<String> {
    let found = sandbox.list_files(".", 10, 1000).await.unwrap();
    let prefix = format!("{}/", sandbox.home());
    found
        .files
        .into_iter()
        .map(|(path, _)| path.strip_prefix(&prefix).unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_listing_holds_regular_files_only_and_follows_no_links() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        stdout_of(
            &*sandbox,
            sh("mkdir -p a/b/c; echo 12 > a/one; echo 1234 > a/b/two; echo > a/b/c/three; echo > zero
                ln -s /etc etc; ln -s a/one link; ln -s .. a/up; mkfifo fifo; mkdir closed; echo > closed/x; chmod 0 closed"),
        )
        .await;
        let home = sandbox.home().to_owned();
        let all = sandbox.list_files(&home, 10, 1000).await.unwrap();
        let mut expected = vec![
            (format!("{home}/a/b/c/three"), 1),
            (format!("{home}/a/b/two"), 5),
            (format!("{home}/a/one"), 3),
            (format!("{home}/zero"), 1),
        ];
        if is_root() && sandbox.relay_address().is_none() && home != "/home/user" {
            // Without isolation, root's programs enter every directory.
            expected.insert(3, (format!("{home}/closed/x"), 1));
        }
        assert_eq!(all.files, expected);
        assert!(!all.truncated);
        let shallow = sandbox.list_files("a", 1, 1000).await.unwrap();
        assert_eq!(shallow.files, [(format!("{home}/a/one"), 3)]);
        let few = sandbox.list_files(".", 10, 2).await.unwrap();
        assert_eq!((few.files.len(), few.truncated), (2, true));
        assert!(matches!(
            sandbox.list_files("none", 1, 1).await,
            Err(SandboxError::NotFound { .. })
        ));
        assert!(matches!(
            sandbox.list_files("link", 1, 1).await,
            Err(SandboxError::NotRegular { .. })
        ));
        assert!(matches!(
            sandbox.list_files("zero", 1, 1).await,
            Err(SandboxError::NotRegular { .. })
        ));
    }
}

#[tokio::test]
async fn a_million_files_are_listed_up_to_the_limit() {
    let world = World::new();
    let mut spec = spec();
    spec.size = Size {
        memory_bytes: 4 << 30,
        ..spec.size
    };
    let sandbox = world.backend("local").create(spec).await.unwrap();
    // In memory, and links to few files: what is listed are names.
    stdout_of(&*sandbox, python(&many_files("/tmp", 50, 20_000))).await;
    let begun = Instant::now();
    let few = sandbox.list_files("/tmp", 10, 2_000).await.unwrap();
    assert_eq!((few.files.len(), few.truncated), (2_000, true));
    assert!(begun.elapsed() < Duration::from_secs(10));
    let all = sandbox.list_files("/tmp", 10, 1_000_001).await.unwrap();
    assert_eq!((all.files.len(), all.truncated), (1_000_000, false));
}

#[tokio::test]
async fn a_home_full_of_files_is_removed() {
    let world = World::new();
    for sandbox in world.sandboxes().await {
        stdout_of(&*sandbox, python(&many_files(".", 10, 2_000))).await;
        sandbox.kill().await.unwrap();
    }
    assert_eq!(world.names("homes"), Vec::<String>::new());
}

/// Makes folders with links to one file each.
fn many_files(place: &str, folders: u32, files: u32) -> String {
    format!(
        "import os
for d in range({folders}):
    folder = f'{place}/d{{d}}'
    os.mkdir(folder)
    open(f'{{folder}}/first', 'w').close()
    for n in range({files} - 1):
        os.link(f'{{folder}}/first', f'{{folder}}/{{n}}')"
    )
}
