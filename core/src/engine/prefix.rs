//! Prompt prefixes that outlive their requests: what sequences held at exact lengths, in a tree of blocks of 64
//! tokens. A later request whose prompt begins with the same tokens starts from the longest of them.
//!
//! A node is one block: its tokens, its keys and values, and, where a snapshot was taken, the recurrent state after
//! it. A snapshot that ends within a block ends in a leaf of fewer tokens. Everything that goes on from keys and
//! values shares them. A state is as large as thousands of tokens, so states are removed when memory is short. The
//! one unused for longest goes first, and with it every block that leads to no other. A tree belongs to one
//! [`Scope`]; no tree is ever looked at for another.

mod disk;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::backend::{Kept, Saved, SavedSize};
use super::batch::CUT_TOKENS;

pub use disk::{Keeper, discard};

/// How much is kept, and at which lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixLimits {
    /// Bytes of all snapshots; 0 = none are taken.
    pub bytes_max: u64,
    /// Tokens that a snapshot must save over the one before it: fewer are read again sooner than copied.
    pub gain_tokens_min: usize,
    /// Snapshots of a long prompt lie so far apart.
    pub stride_tokens: usize,
}

impl Default for PrefixLimits {
    fn default() -> PrefixLimits {
        PrefixLimits { bytes_max: 0, gain_tokens_min: 256, stride_tokens: 2_048 }
    }
}

/// Whose prompts, under what: requests of one scope may begin from each other's prefixes, and no others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope {
    pub owner: String,
    /// SHA-256 of the adapter's file; absent: the base weights.
    pub adapter: Option<String>,
}

type NodeId = u64;
type Tokens = Arc<[u32]>;

/// Bytes that a node takes beside what it keeps: its tokens twice over, and its places in two maps.
const NODE_BYTES: usize = 1_024;

struct Node {
    /// Absent: the root of a scope, which has no tokens.
    parent: Option<NodeId>,
    /// 64, or fewer in a leaf.
    tokens: Tokens,
    children: HashMap<Tokens, NodeId>,
    block: Vec<u8>,
    state: Option<State>,
}

struct State {
    bytes: Vec<u8>,
    /// When it was taken or used last: its key in `Prefixes::ages`.
    used: u64,
}

/// What is known of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Tokens that a snapshot holds, and where it is.
    pub held: usize,
    pub node: Option<NodeId>,
    /// Tokens that some other prompt began with, by whole blocks.
    pub common: usize,
}

pub struct Prefixes {
    limits: PrefixLimits,
    roots: HashMap<Scope, NodeId>,
    nodes: HashMap<NodeId, Node>,
    /// Nodes with a state, the one unused for longest first.
    ages: BTreeMap<u64, NodeId>,
    bytes: u64,
    next: u64,
}

impl Prefixes {
    pub fn new(limits: PrefixLimits) -> Prefixes {
        let (roots, nodes, ages) = Default::default();
        Prefixes { limits, roots, nodes, ages, bytes: 0, next: 0 }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Snapshots kept.
    pub fn len(&self) -> usize {
        self.ages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ages.is_empty()
    }

    /// The longest snapshot that leaves at least one token of the prompt to be fed.
    pub fn find(&mut self, scope: &Scope, prompt: &[u32]) -> Found {
        let path = self.walk(scope, &prompt[..prompt.len() / CUT_TOKENS * CUT_TOKENS]);
        let common = path.len() * CUT_TOKENS;
        let usable = &prompt[..prompt.len().saturating_sub(1)];
        let longest = (0..=path.len()).rev().find_map(|blocks| {
            let rest = usable.get(blocks * CUT_TOKENS..)?;
            let at = if blocks == 0 { *self.roots.get(scope)? } else { path[blocks - 1] };
            let (tail, id) = self.tail(at, rest).or_else(|| Some((0, at)).filter(|_| self.has_state(at)))?;
            Some((blocks * CUT_TOKENS + tail, id))
        });
        longest.iter().for_each(|(_, id)| self.touch(*id));
        Found { held: longest.map_or(0, |(held, _)| held), node: longest.map(|(_, id)| id), common }
    }

    fn has_state(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|n| n.state.is_some())
    }

    /// The longest snapshot that ends within the block after a node, of tokens that `rest` begins with.
    fn tail(&self, id: NodeId, rest: &[u32]) -> Option<(usize, NodeId)> {
        let begins = |tokens: &Tokens| tokens.len() < CUT_TOKENS && rest.starts_with(tokens);
        let tails = self.nodes.get(&id)?.children.iter().filter(|(tokens, _)| begins(tokens));
        tails.map(|(tokens, id)| (tokens.len(), *id)).max()
    }

    /// What is kept at a node that was found.
    pub fn kept(&self, node: NodeId) -> Kept<'_> {
        let state = self.nodes.get(&node).and_then(|n| n.state.as_ref()).map_or(&[][..], |s| s.bytes.as_slice());
        let (mut blocks, mut tokens) = (Vec::new(), 0);
        let mut at = self.nodes.get(&node);
        while let Some(node) = at {
            let parent = node.parent.and_then(|id| self.nodes.get(&id));
            if parent.is_some() {
                tokens += node.tokens.len();
                blocks.push(node.block.as_slice());
            }
            at = parent;
        }
        blocks.reverse();
        Kept { tokens, blocks, state }
    }

    /// Lengths of a prompt at which a snapshot is worth taking, ascending: where the next turn of the conversation will
    /// part from this one, where another prompt parted from it, behind the first message, and every so often. `ends` are
    /// the tokens that end a message; `grid` is [`SavedSize::grid`].
    pub fn marks(&self, prompt: &[u32], ends: &[u32], found: &Found, grid: usize) -> Vec<usize> {
        if self.limits.bytes_max == 0 {
            return Vec::new();
        }
        let boundary = |(at, token): (usize, &u32)| ends.contains(token).then_some(at + 1);
        let last = prompt.iter().enumerate().rev().find_map(boundary).unwrap_or(prompt.len());
        let first = prompt.iter().enumerate().find_map(boundary).unwrap_or(0);
        let strides = (1..).map(|n| n * self.limits.stride_tokens).take_while(|at| *at < prompt.len());
        let gain = self.limits.gain_tokens_min;
        let mut marks = BTreeSet::new();
        // In order of worth: each is taken that lies far enough from those before it.
        for at in [last, found.common, first].into_iter().chain(strides) {
            let at = at.min(prompt.len().saturating_sub(1)) / grid * grid;
            if at >= found.held + gain && marks.iter().all(|mark: &usize| mark.abs_diff(at) >= gain) {
                marks.insert(at);
            }
        }
        marks.into_iter().collect()
    }

    /// Makes room for a snapshot of `tokens`: how many of their blocks are there already. `None`: it is there, or it is
    /// larger than everything together may be.
    pub fn room(&mut self, scope: &Scope, tokens: &[u32], size: SavedSize) -> Option<usize> {
        let (path, blocks) = (self.walk(scope, tokens), tokens.len().div_ceil(CUT_TOKENS));
        let keep = path.last().copied();
        let there = path.len() == blocks && keep.is_some_and(|id| self.has_state(id));
        let needed = |blocks: usize| (blocks * (size.block + NODE_BYTES) + size.state) as u64;
        if there || needed(blocks) > self.limits.bytes_max {
            return None;
        }
        self.evict(needed(blocks - path.len()), keep).then_some(path.len())
    }

    /// Lets go of what was not used for longest until so many bytes fit in beside the rest; false: nothing more can go.
    fn evict(&mut self, needed: u64, keep: Option<NodeId>) -> bool {
        while self.bytes + needed > self.limits.bytes_max {
            let Some((_, oldest)) = self.ages.pop_first() else { return false };
            if let Some(state) = self.nodes.get_mut(&oldest).and_then(|n| n.state.take()) {
                self.bytes -= state.bytes.len() as u64;
            }
            self.prune(oldest, keep);
        }
        true
    }

    /// Keeps a snapshot of `tokens`, for which room was made: what was saved behind the blocks that were there.
    pub fn put(&mut self, scope: &Scope, tokens: &[u32], saved: Saved) {
        let path = self.walk(scope, tokens);
        let mut at = match (path.last(), self.roots.get(scope)) {
            (Some(id), _) | (None, Some(id)) => *id,
            (None, None) => {
                let root = self.insert(None, &[], Vec::new());
                self.roots.insert(scope.clone(), root);
                root
            }
        };
        for (tokens, block) in tokens.chunks(CUT_TOKENS).skip(path.len()).zip(saved.blocks) {
            at = self.insert(Some(at), tokens, block);
        }
        self.next += 1;
        if let Some(node) = self.nodes.get_mut(&at) {
            self.bytes += saved.state.len() as u64;
            node.state = Some(State { bytes: saved.state, used: self.next });
            self.ages.insert(self.next, at);
        }
    }

    /// Room was made for a snapshot that could not be taken.
    pub fn give_up(&mut self, scope: &Scope, tokens: &[u32]) {
        if let Some(last) = self.walk(scope, tokens).last() {
            self.prune(*last, None);
        }
    }

    /// Lets go of a snapshot that cannot be used.
    pub fn lose(&mut self, id: NodeId) {
        if let Some(state) = self.nodes.get_mut(&id).and_then(|node| node.state.take()) {
            self.bytes -= state.bytes.len() as u64;
            self.ages.remove(&state.used);
        }
        self.prune(id, None);
    }

    /// Lets go of all that is kept of an owner's prompts, or of everybody's; how many snapshots that were.
    pub fn forget(&mut self, owner: Option<&str>) -> usize {
        let before = self.len();
        let theirs = self.roots.extract_if(|scope, _| owner.is_none_or(|owner| scope.owner == owner));
        let mut gone: Vec<NodeId> = theirs.map(|(_, root)| root).collect();
        while let Some(node) = gone.pop().and_then(|id| self.nodes.remove(&id)) {
            if node.parent.is_some() {
                self.bytes -= (node.block.len() + NODE_BYTES) as u64;
            }
            if let Some(state) = node.state {
                self.bytes -= state.bytes.len() as u64;
                self.ages.remove(&state.used);
            }
            gone.extend(node.children.into_values());
        }
        before - self.len()
    }

    /// The nodes that these tokens lead through, a block each.
    fn walk(&self, scope: &Scope, tokens: &[u32]) -> Vec<NodeId> {
        let mut path = Vec::new();
        let mut at = self.roots.get(scope).and_then(|id| self.nodes.get(id));
        for block in tokens.chunks(CUT_TOKENS) {
            let Some(id) = at.and_then(|node| node.children.get(block)) else { break };
            path.push(*id);
            at = self.nodes.get(id);
        }
        path
    }

    fn insert(&mut self, parent: Option<NodeId>, tokens: &[u32], block: Vec<u8>) -> NodeId {
        self.next += 1;
        let (id, tokens) = (self.next, Tokens::from(tokens));
        if let Some(parent) = parent.and_then(|id| self.nodes.get_mut(&id)) {
            parent.children.insert(tokens.clone(), id);
            self.bytes += (block.len() + NODE_BYTES) as u64;
        }
        self.nodes.insert(id, Node { parent, tokens, children: HashMap::new(), block, state: None });
        id
    }

    fn touch(&mut self, id: NodeId) {
        self.next += 1;
        if let Some(state) = self.nodes.get_mut(&id).and_then(|n| n.state.as_mut()) {
            self.ages.remove(&state.used);
            state.used = self.next;
            self.ages.insert(self.next, id);
        }
    }

    /// Lets go of a node and those above it, as far as they lead to no state; not of `keep`, which is about to.
    fn prune(&mut self, mut id: NodeId, keep: Option<NodeId>) {
        while Some(id) != keep
            && let Some(node) = self.nodes.get(&id)
            && node.state.is_none()
            && node.children.is_empty()
        {
            let Some(node) = self.nodes.remove(&id) else { return };
            let Some(parent) = node.parent else {
                return self.roots.retain(|_, root| *root != id);
            };
            self.bytes -= (node.block.len() + NODE_BYTES) as u64;
            if let Some(above) = self.nodes.get_mut(&parent) {
                above.children.remove(&node.tokens);
            }
            id = parent;
        }
    }
}

#[cfg(test)]
mod tests;
