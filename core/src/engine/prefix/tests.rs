//! The tree by itself, over snapshots that spell the tokens they were taken of.

use super::*;

pub(super) const SIZE: SavedSize = SavedSize { block: 100, state: 1_000, grid: CUT_TOKENS };
const ENDS: [u32; 1] = [7];

pub(super) fn limits(snapshots: u64) -> PrefixLimits {
    // Of three blocks each, none shared.
    let bytes_max = snapshots * (3 * (SIZE.block + NODE_BYTES) + SIZE.state) as u64;
    PrefixLimits { bytes_max, gain_tokens_min: 64, stride_tokens: 1_024 }
}

pub(super) fn scope(owner: &str) -> Scope {
    Scope { owner: owner.to_owned(), adapter: None }
}

/// `blocks` blocks: the first `shared` ones the same in every text, the others those of text `n`.
pub(super) fn text(n: u32, shared: usize, blocks: usize) -> Vec<u32> {
    (0..blocks * CUT_TOKENS).map(|i| if i < shared * CUT_TOKENS { 1 } else { 100 + n }).collect()
}

/// Takes a snapshot of `tokens` as the step loop does; false if there was no room.
pub(super) fn take(prefixes: &mut Prefixes, scope: &Scope, tokens: &[u32]) -> bool {
    let Some(first) = prefixes.room(scope, tokens, SIZE) else { return false };
    let block = |tokens: &[u32]| vec![tokens[0] as u8; SIZE.block];
    let blocks = tokens.chunks(CUT_TOKENS).skip(first).map(block).collect();
    prefixes.put(scope, tokens, Saved { blocks, state: vec![tokens.len() as u8; SIZE.state] });
    true
}

pub(super) fn held(prefixes: &mut Prefixes, scope: &Scope, tokens: &[u32]) -> usize {
    prefixes.find(scope, tokens).held
}

/// Bytes by counting everything that is there.
pub(super) fn counted(prefixes: &Prefixes) -> u64 {
    let of = |n: &Node| n.block.len() + NODE_BYTES + n.state.as_ref().map_or(0, |s| s.bytes.len());
    prefixes.nodes.values().filter(|n| n.parent.is_some()).map(|n| of(n) as u64).sum()
}

#[test]
fn a_prompt_begins_from_the_longest_snapshot_that_leaves_something_to_feed() {
    let (mut all, me) = (Prefixes::new(limits(10)), scope("me"));
    let long = text(1, 0, 6);
    assert!(take(&mut all, &me, &long[..128]) && take(&mut all, &me, &long[..320]));
    assert_eq!(held(&mut all, &me, &long), 320);
    assert_eq!(held(&mut all, &me, &long[..321]), 320);
    assert_eq!(held(&mut all, &me, &long[..320]), 128, "the last token gives the first row");
    assert_eq!(held(&mut all, &me, &long[..128]), 0);
    let found = all.find(&me, &long);
    let kept = all.kept(found.node.unwrap());
    assert_eq!(kept.blocks, [&[101_u8; 100]; 5]);
    assert_eq!(kept.state, [64_u8; 1_000], "320 as a byte");
    assert_eq!(all.bytes(), counted(&all));
    assert!(!take(&mut all, &me, &long[..320]), "it is there");
}

#[test]
fn a_snapshot_within_a_block_is_a_leaf_of_its_own() {
    let (mut all, me) = (Prefixes::new(limits(10)), scope("me"));
    let long = text(1, 0, 6);
    for tokens in [20, 128, 150, 170, 300] {
        assert!(take(&mut all, &me, &long[..tokens]));
        assert!(!take(&mut all, &me, &long[..tokens]), "it is there");
    }
    assert_eq!(all.bytes(), counted(&all));
    for (prompt, kept) in [(20, 0), (21, 20), (128, 20), (129, 128), (150, 128), (151, 150), (300, 170), (384, 300)] {
        assert_eq!(held(&mut all, &me, &long[..prompt]), kept, "{prompt} tokens");
    }
    let found = all.find(&me, &long[..200]);
    let kept = all.kept(found.node.unwrap());
    assert_eq!((found.common, kept.tokens, kept.blocks.len(), kept.state[0]), (192, 170, 3, 170));
    // Another text that parts from it behind 150 tokens, within the same block.
    let other = [&long[..155], &[5; 100]].concat();
    let found = all.find(&me, &other);
    assert_eq!((found.held, found.common), (150, 128));
    assert!(take(&mut all, &me, &other[..200]));
    assert_eq!((held(&mut all, &me, &other), held(&mut all, &me, &long)), (200, 300));
    assert_eq!((all.forget(Some("me")), all.bytes()), (6, 0));
}

#[test]
fn owners_and_adapters_see_their_own_alone() {
    let mut all = Prefixes::new(limits(10));
    let prompt = text(1, 0, 4);
    let adapted = Scope { adapter: Some("a".to_owned()), ..scope("me") };
    assert!(take(&mut all, &scope("me"), &prompt[..192]));
    for other in [scope("you"), scope(""), adapted.clone()] {
        assert_eq!(all.find(&other, &prompt), Found::default());
    }
    assert!(take(&mut all, &adapted, &prompt[..128]));
    assert_eq!((held(&mut all, &adapted, &prompt), held(&mut all, &scope("me"), &prompt)), (128, 192));
}

#[test]
fn forgetting_takes_an_owners_whole_and_nothing_of_others() {
    let mut all = Prefixes::new(limits(10));
    let adapted = Scope { adapter: Some("a".to_owned()), ..scope("me") };
    let long = text(1, 0, 6);
    for (scope, blocks) in [(&scope("me"), 2), (&scope("me"), 5), (&adapted, 3), (&scope("you"), 3)] {
        assert!(take(&mut all, scope, &long[..blocks * CUT_TOKENS]));
    }
    assert_eq!(all.forget(Some("nobody")), 0);
    assert_eq!((all.forget(Some("me")), all.len(), all.bytes()), (3, 1, counted(&all)));
    for mine in [scope("me"), adapted] {
        assert_eq!(all.find(&mine, &long), Found::default());
    }
    assert_eq!(held(&mut all, &scope("you"), &long), 192);
    assert!(take(&mut all, &scope("me"), &long[..128]), "what is said after it is kept again");
    assert_eq!((all.forget(None), all.bytes()), (2, 0));
    assert!(all.nodes.is_empty() && all.roots.is_empty() && all.ages.is_empty());
}

#[test]
fn what_prompts_share_is_kept_once_and_tells_where_they_part() {
    let (mut all, me) = (Prefixes::new(limits(10)), scope("me"));
    assert!(take(&mut all, &me, &text(1, 2, 3)));
    let one = all.bytes();
    let found = all.find(&me, &text(2, 2, 4));
    assert_eq!((found.held, found.common), (0, 128));
    assert!(all.marks(&text(2, 2, 4), &ENDS, &found, 64).contains(&128));
    assert!(take(&mut all, &me, &text(2, 2, 3)));
    assert_eq!(all.bytes() - one, (SIZE.block + NODE_BYTES + SIZE.state) as u64);
    assert_eq!(all.bytes(), counted(&all));
}

#[test]
fn the_state_unused_for_longest_goes_first_and_its_blocks_with_it() {
    let (mut all, me) = (Prefixes::new(limits(3)), scope("me"));
    for n in 1..=3 {
        assert!(take(&mut all, &me, &text(n, 0, 3)));
    }
    assert_eq!(held(&mut all, &me, &text(1, 0, 4)), 192, "used again");
    assert!(take(&mut all, &scope("you"), &text(4, 0, 3)));
    assert_eq!(all.len(), 3);
    assert_eq!(all.find(&me, &text(2, 0, 4)), Found::default(), "gone, blocks and all");
    assert_eq!(held(&mut all, &me, &text(3, 0, 4)), 192);
    assert_eq!(all.bytes(), counted(&all));
    for n in 5..50 {
        assert!(take(&mut all, &scope("you"), &text(n, 1, 3)));
        assert!(all.bytes() <= limits(3).bytes_max && all.bytes() == counted(&all));
        // Within a block as well: the leaf goes with its state.
        assert!(take(&mut all, &scope("you"), &text(n, 1, 3)[..150]));
        assert!(all.bytes() <= limits(3).bytes_max && all.bytes() == counted(&all));
    }
    assert!(all.roots.len() == 1 && all.find(&me, &text(1, 0, 4)) == Found::default());
}

#[test]
fn a_conversation_that_grows_keeps_its_blocks_and_sheds_old_states() {
    let (mut all, me) = (Prefixes::new(limits(3)), scope("me"));
    let long = text(1, 0, 8);
    for blocks in 1..8 {
        assert!(take(&mut all, &me, &long[..blocks * CUT_TOKENS]));
        assert_eq!(held(&mut all, &me, &long), blocks * CUT_TOKENS);
        assert!(all.bytes() <= limits(3).bytes_max && all.bytes() == counted(&all));
    }
    assert!(all.len() < 7);
    // Larger than everything may be together: nothing is thrown out for it.
    let before = all.len();
    assert!(!take(&mut all, &me, &text(2, 0, 20)));
    assert_eq!(all.len(), before);
}

#[test]
fn room_that_was_not_used_leaves_nothing_behind() {
    let (mut all, me) = (Prefixes::new(limits(1)), scope("me"));
    let long = text(1, 0, 3);
    assert!(take(&mut all, &me, &long[..64]));
    // The only state goes for the longer one, its block stays for it.
    assert_eq!(all.room(&me, &long, SIZE), Some(1));
    assert_eq!((all.len(), all.nodes.len()), (0, 2));
    all.give_up(&me, &long);
    assert_eq!((all.bytes(), all.nodes.len(), all.roots.len()), (0, 0, 0));
}

#[test]
fn snapshots_lie_behind_messages_and_every_so_often_and_are_worth_their_copy() {
    let limits = PrefixLimits { bytes_max: 1 << 30, ..PrefixLimits::default() };
    let all = Prefixes::new(limits);
    let mut prompt = vec![1_u32; 6_000];
    assert_eq!(all.marks(&prompt, &ENDS, &Found::default(), 64), [2_048, 4_096, 5_952], "plain text");
    (prompt[700], prompt[3_000], prompt[5_990]) = (7, 7, 7);
    assert_eq!(all.marks(&prompt, &ENDS, &Found::default(), 64), [640, 2_048, 4_096, 5_952]);
    let found = Found { held: 4_096, node: Some(1), common: 5_100 };
    assert_eq!(all.marks(&prompt, &ENDS, &found, 64), [5_056, 5_952]);
    let anywhere = all.marks(&prompt, &ENDS, &Found::default(), 1);
    assert_eq!(anywhere, [701, 2_048, 4_096, 5_991], "where messages end");
    assert_eq!(all.marks(&prompt[..310], &ENDS, &Found::default(), 64), [256]);
    assert_eq!(all.marks(&prompt[..310], &ENDS, &Found::default(), 1), [309], "one token must be left");
    assert_eq!(all.marks(&prompt[..256], &ENDS, &Found::default(), 64), [0; 0], "one token must be left");
    assert_eq!(all.marks(&[], &ENDS, &Found::default(), 64), [0; 0]);
    assert_eq!(Prefixes::new(PrefixLimits::default()).marks(&prompt, &ENDS, &Found::default(), 64), [0; 0]);
}
