use bytes::{BufMut, Bytes, BytesMut};

/// A block of an archive.
const BLOCK: usize = 512;

/// Names longer than this need an extension of the format.
const MAX_NAME: usize = 100;

/// User and group of what is ours.
pub(super) const ROOT: (u32, u32) = (0, 0);

/// An archive of a few entries, in the form of POSIX.1-1988 (ustar).
#[derive(Default)]
pub(super) struct Archive(BytesMut);

impl Archive {
    /// A directory, which keeps what is in it where it is there.
    pub(super) fn directory(&mut self, path: &str, mode: u32, owner: (u32, u32)) {
        self.entry(path, b'5', mode, owner, &[], "");
    }

    /// A file of root's.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, b'0', mode, ROOT, content, "");
    }

    /// A symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.entry(path, b'2', 0o777, ROOT, &[], target);
    }

    /// The beginning of a file of root's whose content follows from elsewhere, and then [`padding`].
    pub(super) fn begin(mut self, path: &str, mode: u32, length: u64) -> Bytes {
        self.header(path, b'0', mode, ROOT, length, "");
        self.0.freeze()
    }

    /// What there is so far, without an end.
    pub(super) fn open(self) -> Bytes {
        self.0.freeze()
    }

    /// The whole of it.
    pub(super) fn finish(mut self) -> Bytes {
        self.0.put_bytes(0, 2 * BLOCK);
        self.0.freeze()
    }

    fn entry(
        &mut self,
        path: &str,
        kind: u8,
        mode: u32,
        (user, group): (u32, u32),
        content: &[u8],
        target: &str,
    ) {
        let length = content.len() as u64;
        self.header(path, kind, mode, (user, group), length, target);
        self.0.put_slice(content);
        self.0.put_slice(&padding(length));
    }

    fn header(
        &mut self,
        path: &str,
        kind: u8,
        mode: u32,
        (user, group): (u32, u32),
        length: u64,
        target: &str,
    ) {
        let mut header = BytesMut::with_capacity(BLOCK);
        let text = |header: &mut BytesMut, text: &str, width: usize| {
            let text = text.as_bytes();
            let text = text.get(..width).unwrap_or(text);
            header.put_slice(text);
            header.put_bytes(0, width - text.len());
        };
        text(&mut header, path.trim_start_matches('/'), MAX_NAME);
        text(&mut header, &format!("{mode:07o}"), 8);
        text(&mut header, &format!("{user:07o}"), 8);
        text(&mut header, &format!("{group:07o}"), 8);
        text(&mut header, &format!("{length:011o}"), 12);
        text(&mut header, "00000000000", 12);
        // The sum is made as if its own field were blanks.
        let sum_at = header.len();
        header.put_bytes(b' ', 8);
        header.put_u8(kind);
        text(&mut header, target, MAX_NAME);
        header.put_slice(b"ustar\x0000");
        header.put_bytes(0, BLOCK - header.len());
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        let sum = format!("{sum:06o}\0 ");
        if let Some(field) = header.get_mut(sum_at..sum_at + sum.len()) {
            field.copy_from_slice(sum.as_bytes());
        }
        self.0.put_slice(&header);
    }
}

/// What follows a content of that length.
pub(super) fn padding(length: u64) -> Bytes {
    let block = BLOCK as u64;
    let count = length.next_multiple_of(block) - length;
    Bytes::from(vec![0; usize::try_from(count).unwrap_or_default()])
}

/// Whether a path fits into such an archive.
pub(super) fn fits(path: &str) -> bool {
    path.len() <= MAX_NAME
}

/// The content of the file that is the first entry of an archive; `None` where that is something else.
pub(super) fn first_file(archive: &[u8]) -> Option<&[u8]> {
    let (header, rest) = archive.split_at_checked(BLOCK)?;
    let size = std::str::from_utf8(header.get(124..136)?).ok()?;
    let size = usize::from_str_radix(size.trim_matches(['\0', ' ']), 8).ok()?;
    // An old form of the format has a zero byte here.
    matches!(header.get(156)?, b'0' | 0).then(|| rest.get(..size))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn what_is_packed_is_what_tar_reads() {
        let mut archive = Archive::default();
        archive.directory("/home/user", 0o755, (1000, 100));
        archive.file("/etc/passwd", 0o644, b"root:x:0:0");
        archive.link("/home/other", "/home/user");
        let bytes = archive.finish();
        let mut tar = Command::new("tar")
            .args(["--list", "--verbose", "--numeric-owner", "--file=-"])
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        let listed = String::from_utf8(tar.wait_with_output().unwrap().stdout).unwrap();
        let listed: Vec<String> = listed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            listed,
            [
                "drwxr-xr-x 1000/100 0 1970-01-01 00:00 home/user",
                "-rw-r--r-- 0/0 10 1970-01-01 00:00 etc/passwd",
                "lrwxrwxrwx 0/0 0 1970-01-01 00:00 home/other -> /home/user",
            ]
        );
    }

    #[test]
    fn the_first_file_is_found_and_nothing_else_is_one() {
        let mut archive = Archive::default();
        archive.file("/etc/passwd", 0o644, b"root:x:0:0");
        let bytes = archive.finish();
        assert_eq!(first_file(&bytes), Some(&b"root:x:0:0"[..]));
        for length in 0..BLOCK {
            assert_eq!(first_file(&bytes[..length]), None);
        }
        let mut archive = Archive::default();
        archive.link("/etc/passwd", "elsewhere");
        assert_eq!(first_file(&archive.finish()), None);
    }
}
