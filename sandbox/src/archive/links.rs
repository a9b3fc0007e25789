use super::header::Time;
use super::rewrite::parent;
use std::collections::HashMap;

/// Links that the kernel follows on the way to one thing; beyond that it gives up, and the link leads nowhere.
const FOLLOWED: usize = 40;

/// What may be compared on the way to all of them, in bytes: no honest tree comes near.
const EFFORT_BYTES: usize = 256 << 20;

/// A symbolic link of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Where it is, below the root; empty for the root itself.
    pub path: Vec<u8>,
    /// What it says.
    pub target: Vec<u8>,
    pub(super) mtime: Time,
}

/// The links of an archive, by where they are. All else in it is a directory or a file: no link is above any of it.
pub(super) struct Tree<'a> {
    links: &'a [Link],
    by_path: HashMap<&'a [u8], &'a Link>,
    /// The parts of the root's own absolute path, where it is known.
    root: Option<Vec<&'a [u8]>>,
}

/// Where a link leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leads {
    /// Below the root, or nowhere.
    Inside,
    Outside,
}

impl<'a> Tree<'a> {
    pub(super) fn new(links: &'a [Link], root: Option<&'a [u8]>) -> Self {
        let by_path = links.iter().map(|link| (link.path.as_slice(), link)).collect();
        Self {
            links,
            by_path,
            root: root.map(|root| parts(root).collect()),
        }
    }

    /// Numbers of the links that lead out of the root, each followed as the kernel does; the number of one that takes too much
    /// effort is the error.
    pub(super) fn outward(&self) -> Result<Vec<usize>, usize> {
        let mut effort = EFFORT_BYTES;
        let mut outward = Vec::new();
        for (number, link) in self.links.iter().enumerate() {
            if self.follow(link, &mut effort).ok_or(number)? == Leads::Outside {
                outward.push(number);
            }
        }
        Ok(outward)
    }

    /// `None` where it takes too much effort.
    fn follow(&self, link: &'a Link, effort: &mut usize) -> Option<Leads> {
        // Of the root itself there is no inside to lead to.
        let Some(folder) = parent(&link.path) else {
            return Some(Leads::Outside);
        };
        let mut at = folder.to_vec();
        let mut ahead = Vec::new();
        match self.enter(link, &mut at) {
            Some(way) => ahead.push(way),
            None => return Some(Leads::Outside),
        }
        let mut followed = 1;
        while let Some(way) = ahead.last_mut() {
            let Some(part) = way.next() else {
                ahead.pop();
                continue;
            };
            *effort = effort.checked_sub(at.len() + part.len() + 1)?;
            let above = at.len();
            if part == b".." {
                let Some(folder) = parent(&at).map(<[u8]>::len) else {
                    return Some(Leads::Outside);
                };
                at.truncate(folder);
                continue;
            }
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(part);
            if let Some(next) = self.by_path.get(at.as_slice()).copied() {
                followed += 1;
                if followed > FOLLOWED {
                    return Some(Leads::Inside);
                }
                at.truncate(above);
                match self.enter(next, &mut at) {
                    Some(way) => ahead.push(way),
                    None => return Some(Leads::Outside),
                }
            }
        }
        Some(Leads::Inside)
    }

    /// The way that a link tells, from the folder that it is in, or from the root on; `None` where it begins elsewhere.
    fn enter(&self, link: &'a Link, at: &mut Vec<u8>) -> Option<Parts<'a>> {
        let mut way = parts(&link.target);
        if link.target.starts_with(b"/") {
            for part in self.root.as_ref()? {
                way.next().filter(|next| next == part)?;
            }
            at.clear();
        }
        Some(way)
    }
}

type Parts<'a> = Box<dyn Iterator<Item = &'a [u8]> + 'a>;

/// The parts of a path that say something.
fn parts(path: &[u8]) -> Parts<'_> {
    Box::new(
        path.split(|byte| *byte == b'/')
            .filter(|part| !matches!(*part, b"" | b".")),
    )
}
