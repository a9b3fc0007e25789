use super::header::{self, Header, Kind, Time};
use super::{ArchiveError, ArchiveLimits, Rewriter};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

/// An archive of `root`, piece by piece.
#[derive(Default)]
struct Made(Vec<u8>);

impl Made {
    fn any(mut self, kind: u8, name: &[u8], link: &[u8], size: u64, content: &[u8]) -> Self {
        let mut block = Vec::new();
        header::write(&mut block, Kind::File, name, link, 0o644, size, Time::default());
        // The writer knows the kinds that it writes only.
        let start = block.len() - header::BLOCK_BYTES;
        block[start + 156] = kind;
        sum(&mut block[start..]);
        self.0.extend(block);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, content: &str) -> Self {
        self.any(
            b'0',
            name.as_bytes(),
            b"",
            content.len() as u64,
            content.as_bytes(),
        )
    }

    fn folder(self, name: &str) -> Self {
        self.any(b'5', name.as_bytes(), b"", 0, b"")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.any(b'2', name.as_bytes(), target.as_bytes(), 0, b"")
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.any(b'1', name.as_bytes(), target.as_bytes(), 0, b"")
    }

    fn said(self, kind: u8, text: &[u8]) -> Self {
        self.any(kind, b"said", b"", text.len() as u64, text)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

/// Writes the sum of a header anew.
fn sum(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn root() -> Made {
    Made::default().folder("./root/")
}

/// What comes of an archive in pieces, and the places of the links that lead out.
fn rewritten_in(
    archive: &[u8],
    pieces: &[usize],
    limits: ArchiveLimits,
) -> Result<(Vec<u8>, Vec<Vec<u8>>), ArchiveError> {
    let mut rewriter = Rewriter::new("root", Some("/place/root"), limits, Vec::new());
    let (mut rest, mut sizes) = (archive, pieces.iter().cycle());
    while !rest.is_empty() {
        let size = sizes.next().copied().unwrap_or(rest.len()).clamp(1, rest.len());
        let (piece, after) = rest.split_at(size);
        rewriter.push(piece)?;
        rest = after;
    }
    let ending = rewriter.finish()?;
    let outward = ending.outward().map(|link| link.path.clone()).collect();
    Ok((ending.close(&BTreeSet::new())?.0, outward))
}

fn rewritten(archive: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    rewritten_in(archive, &[], ArchiveLimits::default()).map(|(out, _)| out)
}

fn refusal(archive: &[u8]) -> String {
    rewritten(archive).unwrap_err().to_string()
}

/// Kind, name and target of each entry of what was written.
fn listed(archive: &[u8]) -> Vec<(u8, String, String)> {
    let (mut at, mut found, mut name, mut link) = (0, Vec::new(), None, None);
    while archive[at..at + 512].iter().any(|byte| *byte != 0) {
        let header = Header::read(archive[at..at + 512].try_into().unwrap()).unwrap();
        let content = archive[at + 512..][..usize::try_from(header.size).unwrap()].to_vec();
        at += 512 + content.len().next_multiple_of(512);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
        match header.kind {
            b'L' => name = Some(text(&content)),
            b'K' => link = Some(text(&content)),
            b'x' => assert!(text(&content).contains(" mtime="), "{content:?}"),
            kind => found.push((
                kind,
                name.take().unwrap_or_else(|| text(&header.name)),
                link.take().unwrap_or_else(|| text(&header.link)),
            )),
        }
    }
    assert_eq!(archive.len(), at + 1024, "two blocks of zeros are its end");
    found
}

fn names(archive: &[u8]) -> Vec<String> {
    listed(archive).into_iter().map(|(_, name, _)| name).collect()
}

/// Kind, permissions, time, and content or target.
type Seen = (&'static str, u32, (i64, i64), Vec<u8>);

/// What is below a folder.
fn look(folder: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let (kind, content) = if metadata.is_symlink() {
                (
                    "link",
                    std::fs::read_link(&path).unwrap().into_os_string().into_vec(),
                )
            } else if metadata.is_dir() {
                folders.push(path.clone());
                ("folder", Vec::new())
            } else if metadata.is_file() {
                (
                    if metadata.nlink() > 1 {
                        "one of two"
                    } else {
                        "file"
                    },
                    std::fs::read(&path).unwrap(),
                )
            } else {
                ("other", Vec::new())
            };
            let name = path.strip_prefix(folder).unwrap().as_os_str().as_bytes().to_vec();
            let time = (metadata.mtime(), metadata.mtime_nsec());
            found.insert(
                name,
                (kind, metadata.permissions().mode() & 0o7777, time, content),
            );
        }
    }
    found
}

fn tar(folder: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut child = Command::new("tar")
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let done = child.wait_with_output().unwrap();
    let _ = writing.join().unwrap();
    assert!(done.status.success(), "tar {arguments:?}");
    done.stdout
}

#[test]
fn a_tree_comes_through_every_format_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let deep = root.join("d".repeat(120)).join("e".repeat(120));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::create_dir(root.join("empty")).unwrap();
    std::fs::create_dir(root.join("closed")).unwrap();
    for (name, content, mode) in [
        ("plain", vec![b'x'; 1 << 20], 0o644),
        ("none", Vec::new(), 0o600),
        ("program", b"#!/bin/sh\n".to_vec(), 0o755),
        ("readable", vec![0; 512], 0o444),
        ("with\nline and \u{1b}[31m", b"odd".to_vec(), 0o640),
        ("-rf", b"no option".to_vec(), 0o644),
        ("closed/in", b"in".to_vec(), 0o644),
        (&"n".repeat(100), b"a hundred".to_vec(), 0o644),
        (
            &"n".repeat(94),
            b"a hundred with what is before it".to_vec(),
            0o644,
        ),
    ] {
        std::fs::write(root.join(name), content).unwrap();
        std::fs::set_permissions(root.join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::write(root.join(OsStr::from_bytes(b"\xff\xfe")), "no text").unwrap();
    std::fs::write(deep.join("deep"), "deep").unwrap();
    std::fs::hard_link(root.join("plain"), deep.join("again")).unwrap();
    symlink("plain", root.join("link")).unwrap();
    symlink("../plain", root.join("closed/up")).unwrap();
    symlink("x".repeat(150), root.join("dangling")).unwrap();
    std::fs::set_permissions(root.join("closed"), std::fs::Permissions::from_mode(0o555)).unwrap();
    let before = look(folder.path());
    for (format, has_fractions) in [("gnu", false), ("oldgnu", false), ("posix", true)] {
        let format = format!("--format={format}");
        let archive = tar(folder.path(), &[&format, "-cf", "-", "./root"], b"");
        let (out, outward) = rewritten_in(&archive, &[4099], ArchiveLimits::default()).unwrap();
        assert_eq!(outward, Vec::<Vec<u8>>::new());
        let other = tempfile::tempdir().unwrap();
        tar(other.path(), &["-xpoPf", "-"], &out);
        let mut expected = before.clone();
        if !has_fractions {
            expected.values_mut().for_each(|found| found.2.1 = 0);
        }
        let after = look(other.path());
        assert_eq!(
            after.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>()
        );
        for (name, found) in after {
            assert_eq!(
                found,
                expected[&name],
                "{format} {}",
                String::from_utf8_lossy(&name)
            );
        }
    }
}

#[test]
fn one_file_is_an_archive_too() {
    let archive = Made::default().file("./root", "content").end();
    let out = rewritten(&archive).unwrap();
    assert_eq!(listed(&out), [(b'0', "./root".into(), String::new())]);
    assert!(out[512..].starts_with(b"content\0"));
}

#[test]
fn rights_of_others_are_dropped_and_devices_and_pipes_left_out() {
    let mut archive = root();
    for (kind, name) in [(b'3', "char"), (b'4', "block"), (b'6', "pipe")] {
        archive = archive.any(kind, format!("./root/{name}").as_bytes(), b"", 0, b"");
    }
    let mut archive = archive
        .file("./root/setuid", "x")
        .hard_link("./root/also", "./root/pipe")
        .end();
    let at = archive.len() - 1024 - 512 * 3;
    archive[at + 100..at + 108].copy_from_slice(b"0006755\0");
    sum(&mut archive[at..at + 512]);
    let mut rewriter = Rewriter::new("root", None, ArchiveLimits::default(), Vec::new());
    rewriter.push(&archive).unwrap();
    let (out, omitted) = rewriter.finish().unwrap().close(&BTreeSet::new()).unwrap();
    assert_eq!(names(&out), ["./root", "./root/setuid", "./root"]);
    assert_eq!(
        Header::read(out[512..1024].try_into().unwrap()).unwrap().mode,
        0o755
    );
    assert_eq!(&out[512 + 100..512 + 108], b"0000755\0");
    assert_eq!(
        (omitted.count, omitted.examples.as_slice()),
        (4, &["char", "block", "pipe", "also"].map(String::from)[..])
    );
}

#[test]
fn what_no_honest_program_writes_is_refused() {
    let record = |text: &str| format!("{} {text}\n", text.len() + 4).into_bytes();
    assert_eq!(record("path=./x").len(), 12);
    let long = |name: &str| [name.as_bytes(), b"\0"].concat();
    for (archive, problem) in [
        (root().file("/etc/passwd", "x"), "has an absolute name"),
        (
            root().file("./root/../../etc/passwd", "x"),
            "has `..` in its name",
        ),
        (
            root().file("../root/x", "x"),
            "has a name outside of what was asked for",
        ),
        (
            root().file("./other/x", "x"),
            "has a name outside of what was asked for",
        ),
        (root().file("", "x"), "has a name outside of what was asked for"),
        (
            root().said(b'L', &long("./root/../x")).file("./root/x", "x"),
            "has `..` in its name",
        ),
        (
            root().said(b'L', &long("/x")).file("./root/x", "x"),
            "has an absolute name",
        ),
        (
            root().said(b'x', &record("path=/root/x")).file("./root/x", "x"),
            "has an absolute name",
        ),
        (
            root().said(b'x', b"21 path=./root/a\0/b\n").file("./root/x", "x"),
            "extended header that is malformed",
        ),
        (
            root().said(b'x', b"20 path=./root/a\0/b\n").file("./root/x", "x"),
            "has a zero byte in its name",
        ),
        (
            root().said(b'x', b"999 path=x\n").file("./root/x", "x"),
            "extended header that is malformed",
        ),
        (
            root().said(b'x', b"0 path=x\n").file("./root/x", "x"),
            "extended header that is malformed",
        ),
        (
            root().said(b'x', b"path=x\n").file("./root/x", "x"),
            "extended header that is malformed",
        ),
        (
            root().said(b'x', &record("size=-512")).file("./root/x", "x"),
            "has a length that is no number",
        ),
        (
            root().said(b'x', &record("size=ten")).file("./root/x", "x"),
            "has a length that is no number",
        ),
        (
            root().said(b'x', &record("mtime=1e9")).file("./root/x", "x"),
            "has a time that is no number",
        ),
        (
            root().said(b'x', b"").said(b'x', b"").file("./root/x", "x"),
            "has two extended headers",
        ),
        (
            root()
                .said(b'L', &long("./root/a"))
                .said(b'L', &long("./root/b"))
                .file("./root/x", "x"),
            "has two names",
        ),
        (
            root().said(b'g', &record("path=./root/y")).file("./root/x", "x"),
            "renames all that follow",
        ),
        (
            root()
                .said(b'x', &record("GNU.sparse.major=1"))
                .file("./root/x", "x"),
            "is stored with holes",
        ),
        (root().any(b'S', b"./root/x", b"", 0, b""), "is stored with holes"),
        (
            root().any(b'M', b"./root/x", b"", 0, b""),
            "is of an unknown kind",
        ),
        (
            root().any(b'5', b"./root/x", b"", 512, &[b'x'; 512]),
            "has a length, which only files have",
        ),
        (
            root().any(b'2', b"./root/x", b"y", 512, &[b'x'; 512]),
            "has a length, which only files have",
        ),
        (
            root().file("./root/x", "1").file("./root/./x", "2"),
            "is there twice",
        ),
        (
            root().link("./root/x", "a").file("./root/x", "2"),
            "is there twice",
        ),
        (
            root().file("./root/x", "1").link("./root/x", "a"),
            "is there twice",
        ),
        (root().folder("./root/x").folder("./root/x/"), "is there twice"),
        (
            root().file("./root/x/y", "1").file("./root/x", "1"),
            "is there twice",
        ),
        (
            root().link("./root/x", "/etc").file("./root/x/passwd", "1"),
            "is below something that is no directory",
        ),
        (
            root().link("./root/x", "y").folder("./root/x/z"),
            "is below something that is no directory",
        ),
        (
            root().file("./root/x", "").file("./root/x/y/z", "1"),
            "is below something that is no directory",
        ),
        (
            Made::default().link("./root", "/etc").file("./root/passwd", "1"),
            "is below something that is no directory",
        ),
        (
            root().hard_link("./root/x", "/etc/passwd"),
            "has an absolute name",
        ),
        (
            root().hard_link("./root/x", "./root/../../etc/passwd"),
            "has `..` in its name",
        ),
        (
            root().hard_link("./root/x", "./root/none"),
            "is another name of a file that is not in the archive",
        ),
        (
            root().hard_link("./root/x", "./root/x"),
            "is another name of a file that is not in the archive",
        ),
        (
            root().hard_link("./root/x", "./root"),
            "is another name of a file that is not in the archive",
        ),
        (
            root().said(b'K', b"\0").link("./root/x", "y"),
            "is a link to what cannot be a name",
        ),
        (root().link("./root/x", ""), "is a link to what cannot be a name"),
        (
            root().any(b'L', b"said", b"", 1 << 20, b""),
            "has an extended header that is too long",
        ),
    ] {
        let told = refusal(&archive.end());
        assert!(told.contains(problem), "{problem}: {told}");
    }
}

#[test]
fn an_archive_that_breaks_off_or_goes_on_is_refused() {
    let whole = root().file("./root/x", &"x".repeat(600)).end();
    for length in 0..whole.len() {
        let told = refusal(&whole[..length]);
        assert_eq!(told, format!("it ends in the middle, after {length} bytes"));
    }
    let mut more = whole.clone();
    more.extend([0; 512 * 18 + 7]);
    rewritten(&more).unwrap();
    more.push(1);
    assert!(refusal(&more).contains("stands behind the end"));
    let lone = root().file("./root/x", "").0;
    let lone = [&lone[..512], &[0; 512], &lone[512..], &[0; 1024]].concat();
    assert!(refusal(&lone).contains("stands behind the end"));
    // What is said of an entry that never comes.
    assert!(refusal(&root().said(b'L', b"./root/x\0").end()).contains("ends in the middle"));
}

#[test]
fn lengths_and_sums_that_lie_are_refused() {
    let whole = root().file("./root/x", "0123456789").end();
    let with = |field: &[u8]| {
        let mut archive = whole.clone();
        archive[512 + 124..512 + 124 + field.len()].copy_from_slice(field);
        sum(&mut archive[512..1024]);
        refusal(&archive)
    };
    // Longer than what there is; the rest is taken for content.
    assert!(with(b"00000003000\0").contains("ends in the middle"));
    // Shorter: content is taken for a header.
    assert!(with(b"00000000000\0").contains("has a header whose sum is not right"));
    assert!(with(b"\x80\0\0\0\x10\0\0\0\0\0\0\0").contains("it has more than"));
    assert!(
        with(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").contains("has a length that is no number")
    );
    assert!(with(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff").contains("has a length below zero"));
    assert!(with(b"0000000001z\0").contains("has a length that is no number"));
    let mut archive = whole.clone();
    archive[512 + 3] ^= 1;
    assert!(refusal(&archive).contains("has a header whose sum is not right"));
}

#[test]
fn what_is_too_much_is_refused_by_what_it_has_too_much_of() {
    let small = ArchiveLimits {
        bytes: 8192,
        entries: 5,
        name_bytes: 100,
    };
    let told = |archive: Vec<u8>| rewritten_in(&archive, &[700], small).unwrap_err().to_string();
    assert_eq!(
        told(root().file("./root/x", &"x".repeat(9000)).end()),
        "it has more than 8192 bytes"
    );
    let many = (0..6).fold(root(), |made, number| made.file(&format!("./root/{number}"), ""));
    assert_eq!(told(many.end()), "it has more than 5 entries");
    let long = root().file(&format!("./root/{}", "x/".repeat(20)), "");
    assert_eq!(told(long.end()), "the names in it have more than 100 bytes");
    let targets = root().link("./root/x", &"y".repeat(101));
    assert_eq!(told(targets.end()), "the names in it have more than 100 bytes");
    // Headers without an entry, without end.
    let mut endless = Rewriter::new("root", None, small, Vec::new());
    let piece = Made::default().said(b'g', b"").0;
    let refused = (0..100).find_map(|_| endless.push(&piece).err()).unwrap();
    assert_eq!(refused.to_string(), "it has more than 5 entries");
    // Told beforehand, and not after so many bytes.
    let mut early = Rewriter::new("root", None, small, Vec::new());
    let header = Made::default().any(b'0', b"./root", b"", 1 << 33, b"").0;
    assert!(matches!(
        early.push(&header),
        Err(ArchiveError::TooLong { limit: 8192 })
    ));
}

#[test]
fn links_that_lead_out_are_told_from_those_that_do_not() {
    for (links, outward) in [
        (
            vec![("a", "b"), ("d/c", "../b"), ("e", "."), ("f", "d/..")],
            vec![],
        ),
        (
            vec![
                ("a", "/etc/passwd"),
                ("b", "../x"),
                ("c", ".."),
                ("d/x", "../../x"),
            ],
            vec!["a", "b", "c", "d/x"],
        ),
        // Into the place itself, by its own absolute path.
        (
            vec![
                ("a", "/place/root/x"),
                ("b", "/place//./root"),
                ("c", "/place/rooted"),
                ("d", "/place/root/../x"),
            ],
            vec!["c", "d"],
        ),
        // Through each other.
        (
            vec![("out", "/etc"), ("a", "out/passwd"), ("b", "a"), ("c", "./b/.")],
            vec!["out", "a", "b", "c"],
        ),
        (vec![("d/up", ".."), ("a", "d/up/../x")], vec!["a"]),
        (
            vec![("d/e/top", "../.."), ("a", "d/e/top/d"), ("b", "d/e/top/../x")],
            vec!["b"],
        ),
        // What looks as if it led out, and does not: `s` is three levels down.
        (vec![("s", "d/e/f"), ("a", "s/../../../x")], vec![]),
        (vec![("s", "d/e/f"), ("a", "s/../../../../x")], vec!["a"]),
        // Round and round: the kernel gives up.
        (
            vec![("a", "b"), ("b", "a"), ("c", "c"), ("d", "d/../../..")],
            vec![],
        ),
    ] {
        let archive = links.iter().fold(root(), |made, (path, target)| {
            made.link(&format!("./root/{path}"), target)
        });
        let (out, found) = rewritten_in(&archive.end(), &[], ArchiveLimits::default()).unwrap();
        let outward: Vec<Vec<u8>> = outward.iter().map(|path| path.as_bytes().to_vec()).collect();
        assert_eq!(found, outward, "{links:?}");
        let written = listed(&out);
        let written = written.iter().filter(|(kind, ..)| *kind == b'2').count();
        assert_eq!(written, links.len() - outward.len(), "{links:?}");
    }
}

#[test]
fn links_that_lead_out_are_kept_where_that_is_wanted_and_come_last() {
    let archive = root()
        .link("./root/a", "/one")
        .link("./root/b", "/two")
        .folder("./root/c")
        .file("./root/c/d", "x")
        .end();
    let mut rewriter = Rewriter::new("root", None, ArchiveLimits::default(), Vec::new());
    rewriter.push(&archive).unwrap();
    let (out, omitted) = rewriter.finish().unwrap().close(&BTreeSet::from([1])).unwrap();
    let expected = [
        "./root",
        "./root/c",
        "./root/c/d",
        "./root/b",
        "./root/c",
        "./root",
    ];
    assert_eq!(names(&out), expected);
    assert_eq!((omitted.count, omitted.examples), (1, vec!["a".to_owned()]));
}

#[test]
fn a_hundred_thousand_links_through_each_other_are_no_burden() {
    let mut rewriter = Rewriter::new("root", None, ArchiveLimits::default(), std::io::sink());
    rewriter.push(&root().0).unwrap();
    for number in 0..100_000 {
        let name = format!("./root/{number}");
        rewriter
            .push(&Made::default().link(&name, &format!("{}/x", number + 1)).0)
            .unwrap();
    }
    rewriter.push(&[0; 1024]).unwrap();
    let begun = std::time::Instant::now();
    assert_eq!(rewriter.finish().unwrap().outward().count(), 0);
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
}

fn honest() -> Vec<u8> {
    root()
        .folder("./root/a")
        .file("./root/a/b", "content")
        .hard_link("./root/c", "./root/a/b")
        .link("./root/d", "a/b")
        .link("./root/e", "/outside")
        .said(
            b'L',
            [b"./root/".as_slice(), &[b'n'; 120], b"\0"].concat().as_slice(),
        )
        .file("./root/n", &"y".repeat(700))
        .said(b'x', b"22 mtime=1700000000.5\n")
        .file("./root/f", "")
        .end()
}

/// What must hold of whatever is accepted.
fn is_harmless(out: &[u8]) {
    let (mut links, mut files) = (BTreeSet::new(), BTreeSet::new());
    for (kind, name, target) in listed(out) {
        let below = name == "./root" || name.starts_with("./root/");
        assert!(below && !name.split('/').any(|part| part == ".."), "{name}");
        match kind {
            b'0' => {
                assert!(links.is_empty(), "{name} comes after a link");
                files.insert(name);
            }
            b'1' => assert!(files.contains(&target), "{name} -> {target}"),
            b'2' => {
                links.insert(name);
            }
            b'5' => {}
            other => panic!("{other} {name}"),
        }
    }
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same(pieces in prop::collection::vec(1_usize..1500, 1..8)) {
        let whole = rewritten_in(&honest(), &[], ArchiveLimits::default()).unwrap();
        prop_assert_eq!(rewritten_in(&honest(), &pieces, ArchiveLimits::default()).unwrap(), whole);
    }

    #[test]
    fn whatever_is_done_to_an_archive_what_is_accepted_is_harmless(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        right_sums in any::<bool>(),
    ) {
        let mut archive = honest();
        for (index, byte) in changes {
            let at = index.index(archive.len());
            archive[at] = byte;
        }
        if right_sums {
            // Of headers and of content: what is no header is not asked for its sum.
            for block in archive.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
                sum(block);
            }
        }
        if let Ok(out) = rewritten(&archive) {
            is_harmless(&out);
        }
    }

    #[test]
    fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        if let Ok(out) = rewritten(&bytes) {
            is_harmless(&out);
        }
    }

    #[test]
    fn names_and_links_of_any_parts_are_harmless(
        entries in prop::collection::vec(
            (prop::sample::select(vec![b'0', b'1', b'2', b'5', b'6']),
             prop::collection::vec(prop::sample::select(vec!["a", "b", "..", ".", "", "root"]), 0..4),
             prop::collection::vec(prop::sample::select(vec!["a", "b", "..", ".", "", "root"]), 1..5)),
            0..12),
    ) {
        let archive = entries.iter().fold(root(), |made, (kind, name, target)| {
            let target = if *kind == b'2' { target.join("/") } else { format!("./root/{}", target.join("/")) };
            made.any(*kind, format!("./root/{}", name.join("/")).as_bytes(), target.as_bytes(), 0, b"")
        });
        if let Ok((out, _)) = rewritten_in(&archive.end(), &[], ArchiveLimits::default()) {
            is_harmless(&out);
            // As the file system has it: nothing that is reached through a link is outside.
            let folder = tempfile::tempdir().unwrap();
            let place = folder.path().canonicalize().unwrap();
            tar(&place, &["-xpoPf", "-"], &out);
            for (name, (kind, ..)) in look(&place) {
                let path = place.join(OsStr::from_bytes(&name));
                if kind == "link" && let Ok(real) = path.canonicalize() {
                    prop_assert!(real.starts_with(place.join("root")), "{:?} is {real:?}", path);
                }
            }
        }
    }
}
