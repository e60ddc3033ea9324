//! The library's vocabulary: round trips, special tokens only where asked for, long runs.

use chimere::engine::vocab::{TokenKind, Vocab};

use crate::models::{VOCAB, alone, load, make};

#[test]
fn special_tokens_are_recognised_only_when_asked_for() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let (_, vocab) = load(&make(dir.path(), "qwen2"));
    let (start, end) = (VOCAB as u32 - 2, VOCAB as u32 - 1);
    assert_eq!(vocab.len(), VOCAB);
    assert_eq!((vocab.special("<|im_start|>"), vocab.special("t1")), (Some(start), None));
    assert_eq!(vocab.specials().len(), 3);
    assert!(vocab.ends().contains(&end) && !vocab.ends().contains(&start));
    assert_eq!(vocab.kind(start), TokenKind::Control);
    assert_eq!(vocab.kind(65), TokenKind::Normal);
    assert_eq!((vocab.name(end).as_str(), vocab.bytes(end)), ("<|im_end|>", vec![]));
    assert_eq!(vocab.bytes(u32::MAX), b"");
    assert!(vocab.template().unwrap().contains("messages"));
    assert_eq!(vocab.bos(), None, "the file asks for none");
    let encode = |text: &str, specials| {
        let mut ids = Vec::new();
        vocab.encode(text, specials, &mut ids).unwrap();
        ids
    };
    assert_eq!(encode("<|im_start|>a", true).len(), 2);
    let plain = encode("<|im_start|>a", false);
    assert!(plain.len() == 13 && plain.iter().all(|id| vocab.kind(*id) == TokenKind::Normal));
    for text in ["", "hello  world\n\n", "t0 naïve 漢字 🚀\u{0}\t", "<|im_end|>"] {
        let bytes: Vec<u8> = encode(text, false).into_iter().flat_map(|id| vocab.bytes(id)).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}

#[test]
fn a_million_characters_of_any_kind_are_tokenised_whole() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    for architecture in ["qwen2", "mamba2"] {
        let (_, vocab) = load(&make(dir.path(), architecture));
        let kinds = ["a", "7", " ", "\n", "!", "漢", "é", "\u{300}", "👩\u{200d}🚀", "<|im_end|>", "a ", "\u{0}"];
        for kind in kinds {
            let text = kind.repeat(1_000_000 / kind.chars().count());
            let mut ids = Vec::new();
            vocab.encode(&text, false, &mut ids).unwrap();
            let bytes: usize = ids.iter().map(|id| vocab.bytes(*id).len()).sum();
            assert_eq!(bytes, text.len(), "{architecture} {kind:?}");
        }
    }
}
