use std::collections::HashMap;

/// A radix tree over 32-bit symbols: token ids, or the numbers of messages. What two lines share from their start is
/// held once, wherever they part, also in the middle of something that was inserted as one piece.
///
/// A line is named by the node at its end. Such a name stays good for ever: where an edge is split, the new node is
/// the upper half. Inserting costs time linear in the line's length; memory grows by what is new of it.
#[derive(Debug)]
pub struct TokenGraph {
    segments: Vec<Box<[u32]>>,
    nodes: Vec<Node>,
    edges: HashMap<(NodeId, u32), NodeId>,
}

/// A place in a [`TokenGraph`]: the end of a line from the root to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize);

/// A node, with the edge that leads to it: symbols `start..end` of every line through it.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: NodeId,
    segment: usize,
    offset: usize,
    start: usize,
    end: usize,
    owner: u32,
}

/// What came of inserting a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// The line's end.
    pub node: NodeId,
    /// Length of the longest prefix that was there already, from the root.
    pub shared: usize,
    /// Owner of an earlier line that begins with that prefix; `None` where nothing is shared.
    pub shared_with: Option<u32>,
}

impl TokenGraph {
    /// Where every line begins.
    pub const ROOT: NodeId = NodeId(0);

    /// A graph of the empty line alone.
    #[must_use]
    pub fn new() -> Self {
        let root = Node {
            parent: Self::ROOT,
            segment: 0,
            offset: 0,
            start: 0,
            end: 0,
            owner: 0,
        };
        Self {
            segments: vec![Box::default()],
            nodes: vec![root],
            edges: HashMap::new(),
        }
    }

    /// Goes on from `from` with `symbols`, adding what is not there. `owner` is kept with what is added, for
    /// [`Inserted::shared_with`] of later lines.
    pub fn insert(&mut self, from: NodeId, symbols: &[u32], owner: u32) -> Inserted {
        let mut at = from;
        let mut rest = symbols;
        let mut shared = self.length(from);
        let mut shared_with = self
            .node(from)
            .filter(|_| from != Self::ROOT)
            .map(|node| node.owner);
        while let Some(first) = rest.first() {
            let Some(&child) = self.edges.get(&(at, *first)) else {
                at = self.append(at, rest, owner);
                break;
            };
            let edge = self.edge(child);
            let common = common_prefix(edge, rest);
            let whole = common == edge.len();
            rest = rest.get(common..).unwrap_or_default();
            shared += common;
            shared_with = self.node(child).map(|node| node.owner);
            at = if whole { child } else { self.split(child, common) };
        }
        Inserted {
            node: at,
            shared,
            shared_with,
        }
    }

    /// The place `length` symbols from the root on the line to `node`; `None` where the line is shorter.
    pub fn place_on(&mut self, node: NodeId, length: usize) -> Option<NodeId> {
        if length > self.length(node) {
            return None;
        }
        let mut at = node;
        while let Some(found) = self.node(at).copied() {
            if length == found.end {
                return Some(at);
            }
            if length > found.start {
                return Some(self.split(at, length - found.start));
            }
            at = found.parent;
        }
        None
    }

    /// Length of the line to `node`.
    #[must_use]
    pub fn length(&self, node: NodeId) -> usize {
        self.node(node).map_or(0, |found| found.end)
    }

    /// The whole line to `node`.
    #[must_use]
    pub fn line(&self, node: NodeId) -> Vec<u32> {
        let mut line = vec![0; self.length(node)];
        for at in self.upwards(node) {
            let range = self.node(at).map_or(0..0, |found| found.start..found.end);
            if let Some(to) = line.get_mut(range) {
                to.copy_from_slice(self.edge(at));
            }
        }
        line
    }

    /// Symbol `position` of the line to `node`.
    #[must_use]
    pub fn symbol(&self, node: NodeId, position: usize) -> Option<u32> {
        let at = self.upwards(node).find(|at| self.start(*at) <= position)?;
        self.edge(at).get(position - self.start(at)).copied()
    }

    /// Length of what the lines to `a` and `b` share from the root. Exact for the ends of inserted lines, as these
    /// part at nodes.
    #[must_use]
    pub fn shared(&self, a: NodeId, b: NodeId) -> usize {
        let (mut a, mut b) = (a, b);
        while a != b {
            // Of two different nodes, the one whose edge begins later cannot be above the other.
            if self.start(a) >= self.start(b) && a != Self::ROOT {
                a = self.parent(a);
            } else {
                b = self.parent(b);
            }
        }
        self.length(a)
    }

    /// `node` and the nodes above it, the root left out.
    pub fn upwards(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let mut next = node;
        std::iter::from_fn(move || {
            let at = next;
            next = self.parent(at);
            (at != Self::ROOT).then_some(at)
        })
    }

    /// Symbols held, each counted once: what memory grows with.
    #[must_use]
    pub fn symbols_held(&self) -> usize {
        self.segments.iter().map(|segment| segment.len()).sum()
    }

    fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.0)
    }

    fn parent(&self, id: NodeId) -> NodeId {
        self.node(id).map_or(Self::ROOT, |node| node.parent)
    }

    fn start(&self, id: NodeId) -> usize {
        self.node(id).map_or(0, |node| node.start)
    }

    fn edge(&self, id: NodeId) -> &[u32] {
        let found = self.node(id).and_then(|node| {
            let segment = self.segments.get(node.segment)?;
            segment.get(node.offset..node.offset + (node.end - node.start))
        });
        found.unwrap_or_default()
    }

    fn append(&mut self, parent: NodeId, symbols: &[u32], owner: u32) -> NodeId {
        let start = self.length(parent);
        let id = NodeId(self.nodes.len());
        self.nodes.push(Node {
            parent,
            segment: self.segments.len(),
            offset: 0,
            start,
            end: start + symbols.len(),
            owner,
        });
        self.segments.push(symbols.into());
        if let Some(first) = symbols.first() {
            self.edges.insert((parent, *first), id);
        }
        id
    }

    /// Cuts the edge to `lower` after `keep` symbols (more than none, fewer than all) and gives the node in between.
    fn split(&mut self, lower: NodeId, keep: usize) -> NodeId {
        let upper = NodeId(self.nodes.len());
        let first = self.edge(lower).first().copied();
        let next = self.edge(lower).get(keep).copied();
        let Some(below) = self.nodes.get_mut(lower.0) else {
            return lower;
        };
        let above = Node {
            end: below.start + keep,
            ..*below
        };
        below.parent = upper;
        below.offset += keep;
        below.start += keep;
        self.nodes.push(above);
        if let (Some(first), Some(next)) = (first, next) {
            self.edges.insert((above.parent, first), upper);
            self.edges.insert((upper, next), lower);
        }
        upper
    }
}

impl Default for TokenGraph {
    fn default() -> Self {
        Self::new()
    }
}

/// Length of the longest common prefix; whole blocks first, for the speed of comparing memory.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    const BLOCK: usize = 64;
    let blocks = a
        .chunks_exact(BLOCK)
        .zip(b.chunks_exact(BLOCK))
        .take_while(|(a, b)| a == b)
        .count();
    let done = blocks * BLOCK;
    let after = |side| -> &[u32] { <[u32]>::get(side, done..).unwrap_or_default() };
    done + after(a).iter().zip(after(b)).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
