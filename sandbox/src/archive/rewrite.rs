use super::header::{self, BLOCK_BYTES, Block, Header, Time};
use super::links::{Link, Tree};
use super::said::Said;
use super::{ArchiveError, ArchiveLimits};
use std::collections::{BTreeSet, HashMap};
use std::io::Write;

/// The longest name, and the longest target of a link: the kernel's limit.
const PATH_BYTES: usize = 4096;

/// The longest extended header.
const EXTENSION_BYTES: u64 = 64 << 10;

/// Names that are told of what was left out.
const EXAMPLES: usize = 5;

/// Takes the archive of one file or directory, and writes another; see the [module](super).
#[derive(Debug)]
pub struct Rewriter<W> {
    root: Vec<u8>,
    /// Where the root is, before and after.
    place: Option<Vec<u8>>,
    limits: ArchiveLimits,
    out: W,
    state: State,
    read_bytes: u64,
    name_bytes: u64,
    entries: u64,
    /// What is said of the next entry by headers before its own.
    said: Said,
    /// Every name so far, below the root, which is the empty one.
    names: HashMap<Vec<u8>, What>,
    links: Vec<Link>,
    omitted: Omitted,
}

/// What was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Omitted {
    /// How many entries.
    pub count: u64,
    /// Some of their names, readable.
    pub examples: Vec<String>,
}

/// An archive that has ended, but for its links.
#[derive(Debug)]
pub struct Ending<W> {
    rewriter: Rewriter<W>,
    /// Numbers of links that lead out.
    outward: Vec<usize>,
}

/// What is read next.
#[derive(Debug)]
enum State {
    /// A header, of which some may be there already.
    Header(Vec<u8>),
    /// Content, and zeros after it.
    Content { of: Content, left: u64, padding: u64 },
    /// Nothing but zeros; so many blocks of them so far.
    End { blocks: u64, part: usize },
}

/// Whose content.
#[derive(Debug)]
enum Content {
    /// A file's: it goes on as it is.
    File,
    /// That of a header of this kind, which says something of the next entry.
    Said(u8, Vec<u8>),
}

/// What has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    File,
    Directory(u32, Time),
    /// A directory that was not named itself so far.
    Implied,
    Link,
    Omitted,
}

impl<W: Write> Rewriter<W> {
    /// A rewriter of the archive of what is called `root` in the folder it is in. `place` is its absolute path where it is the
    /// same for who wrote the archive and who will read it: absolute links below it do not lead out then.
    pub fn new(root: &str, place: Option<&str>, limits: ArchiveLimits, out: W) -> Self {
        Self {
            root: root.as_bytes().to_vec(),
            place: place.map(|place| place.as_bytes().to_vec()),
            limits,
            out,
            state: State::Header(Vec::new()),
            read_bytes: 0,
            name_bytes: 0,
            entries: 0,
            said: Said::default(),
            names: HashMap::new(),
            links: Vec::new(),
            omitted: Omitted::default(),
        }
    }

    /// Takes the next bytes. After an error nothing more is to be expected of it.
    ///
    /// # Errors
    /// [`ArchiveError`]: they are not the archive that they should be.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), ArchiveError> {
        while !bytes.is_empty() {
            let taken = self.take(bytes)?;
            bytes = bytes.get(taken..).unwrap_or_default();
            self.read_bytes += taken as u64;
            if self.read_bytes > self.limits.bytes {
                return Err(self.too_long());
            }
        }
        Ok(())
    }

    /// Takes some of the bytes, and says how many.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, ArchiveError> {
        match &mut self.state {
            State::Header(part) => {
                let missing = BLOCK_BYTES - part.len();
                let piece = bytes.get(..missing).unwrap_or(bytes);
                part.extend_from_slice(piece);
                let taken = piece.len();
                if let Ok(block) = Block::try_from(part.as_slice()) {
                    part.clear();
                    self.header(&block)?;
                }
                Ok(taken)
            }
            State::Content { of, left, padding } => {
                let within = usize::try_from(*left).unwrap_or(usize::MAX);
                let piece = bytes.get(..within).unwrap_or(bytes);
                *left -= piece.len() as u64;
                let mut taken = piece.len();
                match of {
                    Content::File => self.out.write_all(piece).map_err(ArchiveError::Keep)?,
                    Content::Said(_, text) => text.extend_from_slice(piece),
                }
                if *left > 0 {
                    return Ok(taken);
                }
                let within = usize::try_from(*padding).unwrap_or(usize::MAX);
                let skipped = bytes.len().saturating_sub(taken).min(within);
                *padding -= skipped as u64;
                taken += skipped;
                if matches!(of, Content::File) {
                    let zeros = [0; BLOCK_BYTES];
                    let zeros = zeros.get(..skipped).unwrap_or_default();
                    self.out.write_all(zeros).map_err(ArchiveError::Keep)?;
                }
                if *padding == 0 {
                    self.content_ended()?;
                }
                Ok(taken)
            }
            State::End { blocks, part } => {
                if bytes.iter().any(|byte| *byte != 0) {
                    return Err(self.wrong(b"", "stands behind the end"));
                }
                let whole = *part + bytes.len();
                *blocks += (whole / BLOCK_BYTES) as u64;
                *part = whole % BLOCK_BYTES;
                Ok(bytes.len())
            }
        }
    }

    fn content_ended(&mut self) -> Result<(), ArchiveError> {
        let ended = std::mem::replace(&mut self.state, State::Header(Vec::new()));
        match ended {
            State::Content {
                of: Content::Said(kind, text),
                ..
            } => self.said(kind, &text),
            State::Content {
                of: Content::File, ..
            } => Ok(()),
            State::Header(_) | State::End { .. } => Ok(()),
        }
    }

    /// What a header before another says of that.
    fn said(&mut self, kind: u8, text: &[u8]) -> Result<(), ArchiveError> {
        let taken = self.said.take_in(kind, text);
        taken.map_err(|problem| self.wrong(b"", problem))
    }

    fn header(&mut self, block: &Block) -> Result<(), ArchiveError> {
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::End { blocks: 1, part: 0 };
            return Ok(());
        }
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(ArchiveError::TooMany {
                limit: self.limits.entries,
            });
        }
        let header = Header::read(block).map_err(|problem| self.wrong(b"", problem))?;
        match header.kind {
            b'x' | b'g' | b'L' | b'K' => {
                if header.size > EXTENSION_BYTES {
                    return Err(self.wrong(&header.name, "has an extended header that is too long"));
                }
                self.content(Content::Said(header.kind, Vec::new()), header.size)
            }
            _ => self.entry(header),
        }
    }

    /// Expects the content of what was just read.
    fn content(&mut self, of: Content, size: u64) -> Result<(), ArchiveError> {
        if size > self.limits.bytes.saturating_sub(self.read_bytes) {
            return Err(self.too_long());
        }
        let padding = size.next_multiple_of(BLOCK_BYTES as u64) - size;
        self.state = State::Content {
            of,
            left: size,
            padding,
        };
        // Nothing may be all of it.
        if size == 0 { self.content_ended() } else { Ok(()) }
    }

    fn entry(&mut self, header: Header) -> Result<(), ArchiveError> {
        let said = std::mem::take(&mut self.said);
        let raw = said.path.or(said.long_name).unwrap_or(header.name);
        let target = said.link.or(said.long_link).unwrap_or(header.link);
        let size = said.size.unwrap_or(header.size);
        let mtime = said.mtime.unwrap_or(header.mtime);
        let path = self
            .below_root(&raw)
            .map_err(|problem| self.wrong(&raw, problem))?;
        let is_file = matches!(header.kind, b'0' | b'7') || (header.kind == 0 && !raw.ends_with(b"/"));
        if size > 0 && !is_file {
            return Err(self.wrong(&raw, "has a length, which only files have"));
        }
        match header.kind {
            _ if is_file => {
                self.name(&path, What::File, &raw)?;
                self.write(header::Kind::File, &path, b"", header.mode, size, mtime)?;
                self.content(Content::File, size)
            }
            0 | b'5' => {
                self.name(&path, What::Directory(header.mode, mtime), &raw)?;
                // Its own permissions and time come last, when all is in it.
                self.write(header::Kind::Directory, &path, b"", header.mode | 0o700, 0, mtime)
            }
            b'1' => {
                let to = self
                    .below_root(&target)
                    .map_err(|problem| self.wrong(&raw, problem))?;
                match self.names.get(&to).copied() {
                    Some(What::File) => {
                        self.name(&path, What::File, &raw)?;
                        let to = self.told_as(&to);
                        self.write(header::Kind::HardLink, &path, &to, header.mode, 0, mtime)
                    }
                    // Another name of what was left out, or is to come last.
                    Some(What::Omitted | What::Link) => self.omit(&path, &raw),
                    _ => Err(self.wrong(&raw, "is another name of a file that is not in the archive")),
                }
            }
            b'2' => {
                if target.is_empty() || target.len() > PATH_BYTES || target.contains(&0) {
                    return Err(self.wrong(&raw, "is a link to what cannot be a name"));
                }
                self.count_name(target.len())?;
                self.name(&path, What::Link, &raw)?;
                self.links.push(Link { path, target, mtime });
                Ok(())
            }
            b'3' | b'4' | b'6' => self.omit(&path, &raw),
            b'S' => Err(self.wrong(&raw, "is stored with holes")),
            _ => Err(self.wrong(&raw, "is of an unknown kind")),
        }
    }

    fn omit(&mut self, path: &[u8], raw: &[u8]) -> Result<(), ArchiveError> {
        self.name(path, What::Omitted, raw)?;
        self.omitted.add(path);
        Ok(())
    }

    /// A name as one below the root: without `.`, and without the root's own name before it.
    fn below_root(&self, raw: &[u8]) -> Result<Vec<u8>, &'static str> {
        if raw.len() > PATH_BYTES {
            return Err("has a name that is too long");
        }
        if raw.starts_with(b"/") {
            return Err("has an absolute name");
        }
        if raw.contains(&0) {
            return Err("has a zero byte in its name");
        }
        let mut parts = raw
            .split(|byte| *byte == b'/')
            .filter(|part| !matches!(*part, b"" | b"."));
        if parts.next() != Some(self.root.as_slice()) {
            return Err("has a name outside of what was asked for");
        }
        let parts: Vec<&[u8]> = parts.collect();
        if parts.contains(&b"..".as_slice()) {
            return Err("has `..` in its name");
        }
        Ok(parts.join(&b'/'))
    }

    /// Takes a name for something, once: below directories only.
    fn name(&mut self, path: &[u8], what: What, raw: &[u8]) -> Result<(), ArchiveError> {
        match (self.names.get(path), what) {
            (None, _) | (Some(What::Implied), What::Directory(..)) => {}
            _ => return Err(self.wrong(raw, "is there twice")),
        }
        let mut above = path;
        while let Some(parent) = parent(above) {
            match self.names.get(parent) {
                Some(What::Directory(..) | What::Implied) => break,
                Some(_) => return Err(self.wrong(raw, "is below something that is no directory")),
                None => {}
            }
            // Where a directory is, each above it is known to be one.
            self.count_name(parent.len())?;
            self.names.insert(parent.to_vec(), What::Implied);
            above = parent;
        }
        self.count_name(path.len())?;
        self.names.insert(path.to_vec(), what);
        Ok(())
    }

    fn count_name(&mut self, length: usize) -> Result<(), ArchiveError> {
        self.name_bytes += length as u64;
        if self.name_bytes > self.limits.name_bytes {
            return Err(ArchiveError::Names {
                limit: self.limits.name_bytes,
            });
        }
        Ok(())
    }

    /// A name as it is written: below the folder that the root is in.
    fn told_as(&self, path: &[u8]) -> Vec<u8> {
        match path {
            b"" => [b"./".as_slice(), &self.root].concat(),
            path => [b"./".as_slice(), &self.root, b"/", path].concat(),
        }
    }

    fn write(
        &mut self,
        kind: header::Kind,
        path: &[u8],
        link: &[u8],
        mode: u32,
        size: u64,
        mtime: Time,
    ) -> Result<(), ArchiveError> {
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        header::write(&mut bytes, kind, &self.told_as(path), link, mode, size, mtime);
        self.out.write_all(&bytes).map_err(ArchiveError::Keep)
    }

    /// Whether nothing was pushed.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        self.read_bytes == 0
    }

    /// Ends it. What is left to do is to decide about links that lead out.
    ///
    /// # Errors
    /// [`ArchiveError::Truncated`] where its end is missing; [`ArchiveError::Entry`] where links cannot be followed.
    pub fn finish(self) -> Result<Ending<W>, ArchiveError> {
        let is_whole = matches!(self.state, State::End { blocks: 2.., .. });
        if !is_whole || !self.said.is_empty() {
            return Err(ArchiveError::Truncated {
                bytes: self.read_bytes,
            });
        }
        let outward = Tree::new(&self.links, self.place.as_deref()).outward();
        match outward {
            Ok(outward) => Ok(Ending {
                rewriter: self,
                outward,
            }),
            Err(number) => {
                let name = self.links.get(number).map(|link| link.path.as_slice());
                Err(self.wrong(name.unwrap_or_default(), "is a link through too many others"))
            }
        }
    }

    fn too_long(&self) -> ArchiveError {
        ArchiveError::TooLong {
            limit: self.limits.bytes,
        }
    }

    fn wrong(&self, name: &[u8], problem: &'static str) -> ArchiveError {
        ArchiveError::Entry {
            entry: self.entries,
            name: readable(name),
            problem,
        }
    }
}

impl<W: Write> Ending<W> {
    /// The links that lead out of the archive, through others or by themselves. They are not in it unless
    /// [`Ending::close`] is told so.
    pub fn outward(&self) -> impl Iterator<Item = &Link> {
        self.outward
            .iter()
            .filter_map(|number| self.rewriter.links.get(*number))
    }

    /// What is left of its limits.
    #[must_use]
    pub fn rest(&self) -> ArchiveLimits {
        let (limits, used) = (self.rewriter.limits, &self.rewriter);
        ArchiveLimits {
            bytes: limits.bytes.saturating_sub(used.read_bytes),
            entries: limits.entries.saturating_sub(used.entries),
            name_bytes: limits.name_bytes.saturating_sub(used.name_bytes),
        }
    }

    /// Writes the links, of those that lead out the ones that are to be kept by their place among them, then what
    /// directories are like when all is in them, then the end.
    ///
    /// # Errors
    /// [`ArchiveError::Keep`].
    pub fn close(self, kept: &BTreeSet<usize>) -> Result<(W, Omitted), ArchiveError> {
        let Self {
            mut rewriter,
            outward,
        } = self;
        let mut is_left_out = vec![false; rewriter.links.len()];
        for (place, number) in outward.iter().enumerate() {
            if let Some(is_left_out) = is_left_out.get_mut(*number) {
                *is_left_out = !kept.contains(&place);
            }
        }
        for (link, is_left_out) in std::mem::take(&mut rewriter.links).iter().zip(is_left_out) {
            if is_left_out {
                rewriter.omitted.add(&link.path);
            } else {
                let kind = header::Kind::SymbolicLink;
                rewriter.write(kind, &link.path, &link.target, 0o777, 0, link.mtime)?;
            }
        }
        let mut directories: Vec<_> = std::mem::take(&mut rewriter.names)
            .into_iter()
            .filter_map(|(path, what)| match what {
                What::Directory(mode, mtime) => Some((path, mode, mtime)),
                _ => None,
            })
            .collect();
        // What is in a directory has a longer name, and is done before the directory is closed.
        directories.sort_by(|one, other| other.0.cmp(&one.0));
        for (path, mode, mtime) in directories {
            rewriter.write(header::Kind::Directory, &path, b"", mode, 0, mtime)?;
        }
        let end = rewriter.out.write_all(&[0; 2 * BLOCK_BYTES]);
        end.and_then(|()| rewriter.out.flush())
            .map_err(ArchiveError::Keep)?;
        Ok((rewriter.out, rewriter.omitted))
    }
}

impl Omitted {
    fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(readable(path));
        }
    }

    /// Adds what was left out elsewhere.
    pub fn and(&mut self, other: Self) {
        self.count += other.count;
        let room = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

/// The name above; `None` of the root.
pub(super) fn parent(path: &[u8]) -> Option<&[u8]> {
    if path.is_empty() {
        return None;
    }
    let slash = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
    path.get(..slash)
}

/// A name as messages show it.
fn readable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    text.chars().take(120).flat_map(char::escape_debug).collect()
}
