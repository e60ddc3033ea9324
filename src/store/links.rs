//! What turns of one conversation share. A turn goes on with an earlier one of its principal where its conversation begins
//! with that one's and an answer of it. It is then kept without them (`fold`) and read with them (`unfold`).

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::record::Base;
use crate::scoring::correction::may_be_corrected;
use crate::turn::{Message, Role, Turn};

/// Keys of places in conversations begin with this.
const SAID_PREFIX: &str = "!said/";
/// Bytes of a place's SHA-256 in its key.
const PLACE_BYTES: usize = 16;

/// A message as far as clients send it back: they may leave its thought out.
#[derive(Serialize)]
struct Place<'a> {
    role: Role,
    content: &'a str,
    calls: Vec<(&'a str, &'a str, &'a serde_json::Value)>,
    of: (&'a Option<String>, &'a Option<String>),
}

/// The keys of the places behind each assistant's message of a conversation, the last first. A turn whose answer has come
/// to a place is found under its key.
pub(super) fn places(principal: &str, said: &[Message]) -> Vec<Vec<u8>> {
    let mut digest = Sha256::new_with_prefix(principal.as_bytes());
    let mut keys = Vec::new();
    for message in said {
        let place = Place {
            role: message.role,
            content: &message.content,
            calls: message.tool_calls.iter().map(|c| (c.id.as_str(), c.name.as_str(), &c.arguments)).collect(),
            of: (&message.tool_call_id, &message.name),
        };
        digest.update([0]);
        // A message has no map whose keys are no strings: it can be written.
        digest.update(serde_json::to_vec(&place).unwrap_or_default());
        if message.role == Role::Assistant {
            let digits: String = digest.clone().finalize()[..PLACE_BYTES].iter().map(|b| format!("{b:02x}")).collect();
            keys.push([SAID_PREFIX, &digits].concat().into_bytes());
        }
    }
    keys.reverse();
    keys
}

/// The places that a turn's answers have come to, and its corrections (`rights`).
pub(super) fn ends(turn: &Turn, rights: &[String]) -> Vec<Vec<u8>> {
    if !is_plain(turn) {
        return Vec::new();
    }
    let end = |(choice, right)| places(&turn.principal, &said_with(turn.clone(), choice, right)).into_iter().next();
    answers(turn, rights).filter_map(end).collect()
}

/// Every answer of a turn that a later one may go on with: its choices, then what should have been said in the first's place.
pub(super) fn answers<'a>(
    turn: &Turn,
    rights: &'a [String],
) -> impl Iterator<Item = (usize, Option<&'a str>)> + use<'a> {
    let corrected = if turn.generations.is_empty() { &[] } else { rights };
    (0..turn.generations.len())
        .map(|choice| (choice, None))
        .chain(corrected.iter().map(|right| (0, Some(right.as_str()))))
}

/// What was said up to the end of a turn with one of its answers, or with what should have been said in its place.
fn said_with(turn: Turn, choice: usize, right: Option<&str>) -> Vec<Message> {
    let mut said = turn.said(choice);
    if let (Some(right), Some(last)) = (right, said.last_mut().filter(|last| may_be_corrected(last))) {
        *last = Message::new(Role::Assistant, right);
    }
    said
}

/// The places that a turn may go on from, the last first.
pub(super) fn begins(turn: &Turn) -> Vec<Vec<u8>> {
    if is_plain(turn) { places(&turn.principal, &turn.messages[turn.head()..]) } else { Vec::new() }
}

/// Only those that have the system's text in front are linked.
fn is_plain(turn: &Turn) -> bool {
    turn.messages[turn.head()..].iter().all(|m| m.role != Role::System)
}

/// How many messages a turn shares with `of` and an answer of it, and how many of them, from the first on, are without
/// their thoughts: clients leave thoughts of earlier questions out.
fn shared(turn: &Turn, of: &Turn, choice: usize, right: Option<&str>) -> Option<(usize, usize)> {
    let said = said_with(of.clone(), choice, right);
    let theirs = turn.messages[turn.head()..].get(..said.len()).filter(|_| choice < of.generations.len())?;
    let pairs = || said.iter().zip(theirs);
    let bare = pairs().rposition(|(ours, theirs)| ours != theirs).map_or(0, |last| last + 1);
    let same = |(ours, theirs): (&Message, &Message)| *theirs == without_thought(ours.clone());
    (turn.principal == of.principal && pairs().take(bare).all(same)).then_some((said.len(), bare))
}

fn without_thought(message: Message) -> Message {
    Message { reasoning_content: None, ..message }
}

/// The turn without what it shares with an answer of `of`; `None`: it does not go on with it.
pub(super) fn fold(turn: &Turn, of: &Turn, (choice, right): (usize, Option<&str>)) -> Option<(Turn, Base)> {
    let (messages, bare) = shared(turn, of, choice, right)?;
    let (head, said) = turn.messages.split_at(turn.head());
    let same_head = *head == of.messages[..of.head()] && turn.examples == of.examples;
    let prompt_tokens = turn.prompt_ids.iter().zip(&of.prompt_ids).take_while(|(a, b)| a == b).count();
    let right = right.map(str::to_owned);
    let base = Base { turn: of.id.clone(), choice, right, bare, head: same_head, prompt_tokens };
    let own_head = if same_head { &[] } else { head };
    let folded = Turn {
        messages: [own_head, &said[messages..]].concat(),
        prompt_ids: turn.prompt_ids[prompt_tokens..].to_vec(),
        ..turn.clone()
    };
    Some((folded, base))
}

/// How many of a folded turn's own messages stand in front of its conversation.
pub(super) fn own_head(folded: &Turn, base: Option<&Base>) -> usize {
    if base.is_some_and(|base| base.head) { 0 } else { folded.head() }
}

/// The turn with what it shares with `of`. Where that turn is lost, the rest of it stays.
pub(super) fn unfold(mut turn: Turn, base: Option<Base>, of: Option<Turn>) -> Turn {
    let Some(base) = base else { return turn };
    let Some(mut of) = of else {
        let examples = if base.head { 0 } else { turn.examples };
        return Turn { prompt_ids: Vec::new(), redacted: true, examples, ..turn };
    };
    let said = turn.messages.split_off(own_head(&turn, Some(&base)));
    let conversation = of.messages.split_off(of.head());
    let head = std::mem::replace(&mut of.messages, conversation);
    if base.head {
        (turn.messages, turn.examples) = (head, of.examples);
    }
    match of.prompt_ids.get(..base.prompt_tokens) {
        Some(ids) if !turn.redacted => drop(turn.prompt_ids.splice(..0, ids.iter().copied())),
        _ => turn.prompt_ids.clear(),
    }
    of.examples = 0;
    turn.messages.extend(said_before(of, &base));
    turn.messages.extend(said);
    turn
}

/// What was said before a turn that goes on with `of`.
pub(super) fn said_before(of: Turn, base: &Base) -> Vec<Message> {
    let mut said = said_with(of, base.choice, base.right.as_deref());
    for message in said.iter_mut().take(base.bare) {
        message.reasoning_content = None;
    }
    said
}

/// Takes out of a turn what it cannot have any more, since turns before it were forgotten: what of its own hangs on their
/// calls, the prompt that was read, and hidden texts.
pub(super) fn redact(turn: &mut Turn, mut said: Vec<Message>, before: Vec<Message>, orphan: bool) {
    if orphan {
        said.drain(..said.iter().take_while(|message| message.role == Role::Tool).count());
    }
    // What the reply went on with is another's answer now.
    turn.continued &= !said.is_empty();
    turn.messages.truncate(turn.head());
    turn.messages.extend(before);
    let answered = said.first().is_some_and(|message| message.role == Role::Tool);
    if !answered && let Some(last) = turn.messages.last_mut() {
        last.tool_calls.clear();
    }
    turn.messages.extend(said);
    (turn.prompt_ids, turn.redacted) = (Vec::new(), true);
    turn.steps.iter_mut().for_each(|step| step.text.clear());
    for quality in turn.generations.iter_mut().filter_map(|generation| generation.quality.as_mut()) {
        quality.others.clear();
    }
}
