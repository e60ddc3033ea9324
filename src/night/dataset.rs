//! What a night learns from: pairs of a prompt and its reply, each with its origin, as lines that `chimere train` reads.
//! The file of a run is private, written whole, and its SHA-256 goes into the manifest.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::inspect::hex;
use crate::service::{Forgetting, TurnFilter};
use crate::store::files::{create_private_dir, read_bounded, write_durable};
use crate::turn::{Message, Thinking, TurnId};

pub const FILE: &str = "pairs.jsonl";
/// Largest file, bytes.
pub const BYTES_MAX: u64 = 256 << 20;

/// What says, beside the judge, that a reply is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    /// The user's thumb is up.
    ThumbsUp,
    /// The user wrote it.
    Correction,
}

/// Where a pair comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    pub turn: TurnId,
    pub conversation: String,
    /// Who asked.
    pub principal: String,
    /// Who vouches for the reply: the one who voted or corrected.
    pub author: String,
    /// When it was asked, Unix milliseconds.
    pub time_ms: i64,
    pub route: String,
    pub signal: Signal,
    /// The judge's verdict on the reply that is learned, and which judge it was.
    pub verdict: u8,
    pub judge: String,
    /// The question as `likeness::key` says it.
    pub question: String,
    /// The run that admitted it.
    pub run: String,
    /// Learned in an earlier night, and shown again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

impl Origin {
    /// Whether a forgetting forgets the pair.
    pub fn is_reached(&self, Forgetting { filter, followers }: &Forgetting) -> bool {
        followers.contains(&self.turn) || self.passes(filter)
    }

    fn passes(&self, filter: &TurnFilter) -> bool {
        filter.turn.as_ref().is_none_or(|id| *id == self.turn)
            && filter.principal.as_ref().is_none_or(|p| *p == self.principal)
            && filter.conversation.as_ref().is_none_or(|c| *c == self.conversation)
            && filter.since_ms.is_none_or(|since| self.time_ms >= since)
            && filter.after.as_ref().is_none_or(|after| self.turn > *after)
    }
}

/// One pair. The names of the fields are those that `training::pairs` reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub id: String,
    pub messages: Vec<Message>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Value>,
    pub thinking: Thinking,
    pub reply: Message,
    /// The model's own reply to the same prompt, where somebody corrected it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Message>,
    pub origin: Origin,
}

/// The lines of these rows.
pub fn lines<T: Serialize>(rows: &[T]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for row in rows {
        serde_json::to_writer(&mut bytes, row)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// Writes the pairs of a run into its folder; returns the SHA-256 of the file.
pub fn write(run_dir: &Path, rows: &[Row]) -> io::Result<String> {
    let bytes = lines(rows)?;
    create_private_dir(run_dir)?;
    write_durable(&run_dir.join(FILE), &bytes)?;
    Ok(hex(&Sha256::digest(&bytes)))
}

/// The pairs of a run and the SHA-256 of their file; none where there is no file.
pub fn read(run_dir: &Path) -> io::Result<Option<(Vec<Row>, String)>> {
    let Some(text) = read_bounded(&run_dir.join(FILE), BYTES_MAX)? else { return Ok(None) };
    let damaged = |n: usize, error: serde_json::Error| io::Error::other(format!("{FILE}:{}: {error}", n + 1));
    let rows = text.lines().enumerate().map(|(n, line)| serde_json::from_str(line).map_err(|e| damaged(n, e)));
    Ok(Some((rows.collect::<io::Result<_>>()?, hex(&Sha256::digest(text.as_bytes())))))
}

/// Drops what the filter forgets from the pairs of a run; returns the ids of those that went.
pub fn forget(run_dir: &Path, wanted: &Forgetting) -> io::Result<BTreeSet<String>> {
    let Some((rows, _)) = read(run_dir)? else { return Ok(BTreeSet::new()) };
    let (gone, kept): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.origin.is_reached(wanted));
    if !gone.is_empty() {
        write_durable(&run_dir.join(FILE), &lines(&kept)?)?;
    }
    Ok(gone.into_iter().map(|row| row.id.clone()).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::turn::Role;

    pub fn row(n: usize, principal: &str) -> Row {
        Row {
            id: format!("turn-{n:04}"),
            messages: vec![Message::new(Role::User, format!("Question number {n}?"))],
            tools: Vec::new(),
            thinking: Thinking::Off,
            reply: Message::new(Role::Assistant, format!("Answer {n}.")),
            rejected: None,
            origin: Origin {
                turn: TurnId(format!("turn-{n:04}")),
                conversation: format!("c{}", n / 2),
                principal: principal.to_owned(),
                author: principal.to_owned(),
                time_ms: n as i64,
                route: if n % 3 == 0 { "code" } else { "default" }.to_owned(),
                signal: if n % 2 == 0 { Signal::ThumbsUp } else { Signal::Correction },
                verdict: 3,
                judge: "j".to_owned(),
                question: format!("key{n}"),
                run: "2026-01-01".to_owned(),
                replayed: false,
            },
        }
    }

    #[test]
    fn a_dataset_comes_back_and_forgets() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_none());
        let rows: Vec<Row> = (0..6).map(|n| row(n, if n < 4 { "anna" } else { "ben" })).collect();
        let hash = write(dir.path(), &rows).unwrap();
        assert_eq!(read(dir.path()).unwrap().unwrap(), (rows.clone(), hash.clone()));
        assert_eq!(write(dir.path(), &rows).unwrap(), hash, "the same pairs give the same bytes");
        let of = |change: fn(&mut TurnFilter)| {
            let mut filter = TurnFilter::default();
            change(&mut filter);
            forget(dir.path(), &Forgetting { filter, ..Forgetting::default() }).unwrap().len()
        };
        assert_eq!(of(|f| f.turn = Some(TurnId("turn-0005".into()))), 1);
        assert_eq!(of(|f| f.conversation = Some("c0".into())), 2);
        assert_eq!(of(|f| f.principal = Some("ben".into())), 1);
        assert_eq!(of(|f| f.since_ms = Some(9)), 0);
        assert_eq!(read(dir.path()).unwrap().unwrap().0, rows[2..4]);
        assert_eq!(of(|_| ()), 2, "everything");
        assert_eq!(read(dir.path()).unwrap().unwrap().0, []);
    }

    /// What this writes, the trainer reads.
    #[test]
    fn the_trainer_reads_every_line() {
        use crate::engine::template::ChatTemplate;
        use crate::engine::tokenizer::Bpe;
        use crate::engine::vocab::Vocab;
        use crate::gguf::Gguf;
        use crate::training::Objective;
        let dir = tempfile::tempdir().unwrap();
        let mut thought = row(1, "anna");
        thought.thinking = Thinking::On { budget_tokens: 9 };
        thought.reply.reasoning_content = Some("one and one".to_owned());
        let mut closed = row(2, "anna");
        closed.reply.reasoning_content = Some(String::new());
        let mut corrected = row(3, "ben");
        corrected.rejected = Some(Message::new(Role::Assistant, "Wrong 3."));
        write(dir.path(), &[thought, closed, corrected]).unwrap();
        let template = ChatTemplate::load(include_str!("../../tests/golden/data/template/Qwen3.5-4B.jinja")).unwrap();
        let nano = concat!(env!("CARGO_MANIFEST_DIR"), "/nano/nano.gguf");
        let vocab = Bpe::from_gguf(&Gguf::open(nano.as_ref()).unwrap()).unwrap();
        let read = crate::training::pairs::read(&dir.path().join(FILE), &vocab, Some(&template), Objective::Preference);
        let read = read.unwrap();
        assert_eq!((read.list.len(), read.refused.len()), (3, 0), "{:?}", read.refused);
        let text = |n: usize| -> (String, String) {
            let pair = &read.list[n];
            let token = |id: &u32| match vocab.bytes(*id) {
                bytes if bytes.is_empty() => vocab.name(*id),
                bytes => String::from_utf8(bytes).unwrap(),
            };
            let said = |ids: &[u32]| -> String { ids.iter().map(token).collect() };
            (said(&pair.ids[..pair.scored_from]), said(&pair.ids[pair.scored_from..]))
        };
        assert!(text(0).0.ends_with("<think>\n"), "{}", text(0).0);
        assert_eq!(text(0).1, "one and one\n</think>\n\nAnswer 1.<|im_end|>");
        assert!(text(1).0.ends_with("<think>\n\n</think>\n\n"), "{}", text(1).0);
        assert_eq!(text(1).1, "Answer 2.<|im_end|>");
        let rejected: Vec<_> = read.list.iter().map(|pair| pair.rejected.clone()).collect();
        let said: String =
            rejected[2].iter().flatten().map(|id| String::from_utf8(vocab.bytes(*id)).unwrap()).collect();
        assert!(said.ends_with("Wrong 3.") && rejected[..2] == [None, None], "{said}");
    }
}
