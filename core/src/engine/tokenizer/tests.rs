//! The tokenizer against the library's own vectors, its cutting against the published patterns, and its work on
//! hostile input.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde::Deserialize;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

use super::pieces::PIECE_BYTES_MAX;
use super::*;
use crate::gguf::{Layout, Strings};

/// A cut-down vocabulary, with texts and the tokens they must become.
#[derive(Deserialize)]
pub(crate) struct Vectors {
    pre: String,
    tokens: Vec<String>,
    /// Text and GGUF type.
    specials: Vec<(String, i32)>,
    merges: Vec<String>,
    cases: Vec<(String, Vec<String>)>,
}

const FAMILIES: [&str; 3] = [
    include_str!("../../../../tests/golden/data/tokenizer/qwen35.json"),
    include_str!("../../../../tests/golden/data/tokenizer/qwen2.json"),
    include_str!("../../../../tests/golden/data/tokenizer/gpt-2.json"),
];

/// The special tokens of the Qwen family that the cut-down vocabularies lack.
const MARKS: [(&str, i32); 6] = [
    ("<think>", 4),
    ("</think>", 4),
    ("<tool_call>", 4),
    ("</tool_call>", 4),
    ("<tool_response>", 4),
    ("</tool_response>", 4),
];

impl Vectors {
    pub(crate) fn read(text: &str) -> Vectors {
        serde_json::from_str(text).unwrap()
    }

    fn layout(&self) -> Layout {
        let marks = MARKS.map(|(text, kind)| (text.to_owned(), kind));
        let specials: Vec<_> = self.specials.iter().chain(&marks).collect();
        let tokens: Vec<String> = self.tokens.iter().chain(specials.iter().map(|s| &s.0)).cloned().collect();
        let types: Vec<i32> = self.tokens.iter().map(|_| 1).chain(specials.iter().map(|s| s.1)).collect();
        let mut layout = Layout::new();
        layout.set("tokenizer.ggml.model", "gpt2").unwrap();
        layout.set("tokenizer.ggml.pre", self.pre.as_str()).unwrap();
        layout.set("tokenizer.ggml.tokens", tokens.iter().collect::<Strings>()).unwrap();
        layout.set("tokenizer.ggml.token_type", types).unwrap();
        layout.set("tokenizer.ggml.merges", self.merges.iter().collect::<Strings>()).unwrap();
        layout
    }
}

fn load(layout: &Layout) -> Result<Bpe, VocabError> {
    let header = layout.header();
    Bpe::from_gguf(&Gguf::read(header.as_slice(), header.len() as u64).unwrap())
}

/// The vocabulary of Qwen3.5, cut down, with its control tokens.
pub(crate) fn qwen() -> Bpe {
    load(&Vectors::read(FAMILIES[0]).layout()).unwrap()
}

fn encode(bpe: &Bpe, text: &str, specials: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    bpe.encode(text, specials, &mut ids).unwrap();
    ids
}

fn decode(bpe: &Bpe, ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|&id| bpe.bytes(id)).collect()
}

#[test]
fn texts_become_the_tokens_that_the_library_gives() {
    let mut cases = 0;
    for family in FAMILIES {
        let vectors = Vectors::read(family);
        let bpe = load(&vectors.layout()).unwrap();
        let alphabet = Alphabet::new();
        for (text, expected) in &vectors.cases {
            let ids = encode(&bpe, text, false);
            let found: Vec<Vec<u8>> = ids.iter().map(|&id| bpe.bytes(id)).collect();
            let expected: Vec<Vec<u8>> = expected.iter().map(|t| alphabet.read(t).unwrap()).collect();
            assert_eq!(found, expected, "{} {text:?}", vectors.pre);
            assert_eq!(decode(&bpe, &ids), text.as_bytes());
            cases += 1;
        }
    }
    assert_eq!(cases, 142);
}

#[test]
fn specials_are_found_on_request_only() {
    let bpe = qwen();
    let (start, end) = (bpe.special("<|im_start|>").unwrap(), bpe.special("<|im_end|>").unwrap());
    let text = "<|im_start|>a<|im_end|><think";
    let ids = encode(&bpe, text, true);
    assert_eq!((ids[0], ids[2]), (start, end));
    assert_eq!(bpe.kind(start), TokenKind::Control);
    assert!(bpe.bytes(start).is_empty());
    assert_eq!(bpe.name(start), "<|im_start|>");
    let plain = encode(&bpe, text, false);
    assert!(plain.iter().all(|&id| bpe.kind(id) == TokenKind::Normal));
    assert_eq!(decode(&bpe, &plain), text.as_bytes());
    assert_eq!(bpe.bytes(bpe.special("<think>").unwrap()), b"<think>");
    assert_eq!(bpe.ends(), [bpe.special("<|endoftext|>").unwrap(), end]);
}

#[test]
fn of_two_specials_the_longer_wins() {
    let mut vectors = Vectors::read(FAMILIES[0]);
    vectors.specials.extend([("<|im".to_owned(), 3), ("<|im_start|>user".to_owned(), 3)]);
    let bpe = load(&vectors.layout()).unwrap();
    let longer = bpe.special("<|im_start|>user").unwrap();
    assert_eq!(encode(&bpe, "<|im_start|>user", true), [longer]);
    assert_eq!(encode(&bpe, "<|im", true), [bpe.special("<|im").unwrap()]);
}

#[test]
fn unknown_ids_stand_for_nothing() {
    let bpe = qwen();
    assert!(bpe.bytes(u32::MAX).is_empty() && bpe.bytes(bpe.len() as u32).is_empty());
    assert_eq!(bpe.kind(u32::MAX), TokenKind::Unused);
}

#[test]
fn broken_vocabularies_are_refused() {
    let refused = |change: &dyn Fn(&mut Vectors)| {
        let mut vectors = Vectors::read(FAMILIES[0]);
        change(&mut vectors);
        load(&vectors.layout()).map(|_| ()).unwrap_err().to_string()
    };
    assert!(refused(&|v| v.pre = "deepseek-llm".into()).contains("library backend"));
    assert!(refused(&|v| v.pre = String::new()).contains("library backend"));
    assert!(refused(&|v| drop(v.tokens.remove(3))).contains("has no token"));
    assert!(refused(&|v| v.merges.push("zzzz q".into())).contains("names"));
    // The crate would write beyond its buffer's end: the result is longer than any token.
    assert!(
        refused(&|v| v.merges.push(format!("{0} {0}", v.tokens.iter().max_by_key(|t| t.len()).unwrap())))
            .contains("which is no token")
    );
    let mut layout = Layout::new();
    layout.set("tokenizer.ggml.model", "llama").unwrap();
    assert!(load(&layout).map(|_| ()).unwrap_err().to_string().contains("byte-level BPE"));
}

#[test]
fn the_files_own_ends_of_a_text_are_told_to_templates_whether_put_there_or_not() {
    for (asked, put) in [(Some(false), None), (Some(true), Some(3)), (None, None)] {
        let mut layout = Vectors::read(FAMILIES[0]).layout();
        layout.set("tokenizer.ggml.bos_token_id", 3u32).unwrap();
        layout.set("tokenizer.ggml.eos_token_id", 5u32).unwrap();
        if let Some(asked) = asked {
            layout.set("tokenizer.ggml.add_bos_token", asked).unwrap();
        }
        let bpe = load(&layout).unwrap();
        assert_eq!((bpe.bos(), bpe.begin(), bpe.end()), (put, Some(3), Some(5)), "{asked:?}");
    }
}

#[test]
fn too_long_a_text_is_refused() {
    let text = "a".repeat(TEXT_BYTES_MAX + 1);
    assert!(matches!(qwen().encode(&text, true, &mut Vec::new()), Err(VocabError::TooLong { .. })));
}

/// The whole published patterns, look-ahead included, in the crate's backtracking engine.
fn published(name: &str) -> Split {
    let pattern = match name {
        "qwen35" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "qwen2" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        "llama-bpe" => {
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        }
        _ => r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    };
    Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false).unwrap()
}

fn published_pieces(split: &Split, text: &str) -> Vec<String> {
    let mut pre = PreTokenizedString::from(text);
    split.pre_tokenize(&mut pre).unwrap();
    let splits = pre.get_splits(OffsetReferential::Original, OffsetType::Byte);
    splits.into_iter().map(|(piece, ..)| piece.to_owned()).collect()
}

fn own_pieces(pieces: &Pieces, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    pieces
        .split(text, |piece| {
            out.push(piece.to_owned());
            Ok::<(), ()>(())
        })
        .unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// Characters that the patterns tell apart, in every mixture.
    #[test]
    fn pieces_are_those_of_the_published_patterns(
        text in "[ \t\r\n\u{a0}\u{3000}\u{85}\u{2028}'sStTrRevVmMlLdDaéſ中ก\u{301}\u{20dd}0٣½Ⅷ.,!<|>_~🦀\u{200d}\u{fe0f}\u{0}\u{fdd0}-]{0,60}"
    ) {
        static BOTH: LazyLock<Vec<(Pieces, Split)>> = LazyLock::new(|| {
            let names = ["qwen35", "qwen2", "llama-bpe", "gpt-2"];
            names.iter().map(|name| (Pieces::named(name).unwrap(), published(name))).collect()
        });
        for (own, published) in BOTH.iter() {
            prop_assert_eq!(own_pieces(own, &text), published_pieces(published, &text), "{:?}", own);
        }
    }

    #[test]
    fn any_text_round_trips(text in "\\PC{0,80}|(?s).{0,80}") {
        static QWEN: LazyLock<Bpe> = LazyLock::new(qwen);
        let bpe = &*QWEN;
        prop_assert_eq!(decode(bpe, &encode(bpe, &text, false)), text.as_bytes());
        prop_assert_eq!(decode(bpe, &encode(bpe, &text, true)), text.as_bytes());
    }
}

/// Twelve kinds of hostile text of 1 M characters. Merging is what could take more than linear time, and it sees short
/// pieces only; the patterns run in linear time (see `pieces`).
#[test]
fn a_million_characters_of_anything_are_merged_in_short_pieces() {
    const CHARS: usize = 1_000_000;
    let repeated = |unit: &str| unit.chars().cycle().take(CHARS).collect::<String>();
    let random: String = (0u64..CHARS as u64)
        .map(|i| char::from(b'a' + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59) as u8 % 26))
        .collect();
    let invalid: Vec<u8> = (0..CHARS as u32).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8 | 0x80).collect();
    let texts = [
        ("one letter", repeated("a")),
        ("random letters", random),
        ("digits", repeated("1234567890")),
        ("spaces", repeated(" ") + "x"),
        ("newlines", repeated("\n") + "x"),
        ("spaces and newlines", repeated("\n   \t\r")),
        ("emoji with joiners", repeated("👩\u{200d}🦰")),
        ("combining marks", repeated("e\u{301}\u{323}")),
        ("ideographs", repeated("我想在苹果工作")),
        ("invalid UTF-8, replaced", String::from_utf8_lossy(&invalid).into_owned()),
        ("special tokens", repeated("<|im_start|><think>")),
        ("beginnings of special tokens", repeated("<|im_star<|im_start'")),
    ];
    let bpe = qwen();
    for (name, text) in texts {
        let (mut pieces, mut bytes) = (0, 0);
        let walked = bpe.pieces.split(&text, |piece| {
            assert!((1..=PIECE_BYTES_MAX).contains(&piece.len()), "{name}: a piece of {} bytes", piece.len());
            pieces += 1;
            bytes += piece.len();
            Ok::<(), ()>(())
        });
        assert!(walked.is_ok() && bytes == text.len(), "{name}");
        for specials in [false, true] {
            let ids = encode(&bpe, &text, specials);
            println!("{name}: {pieces} pieces, {} tokens", ids.len());
            assert!(ids.len() <= text.len());
            if !specials {
                assert_eq!(decode(&bpe, &ids), text.as_bytes(), "{name}");
            }
        }
    }
}
