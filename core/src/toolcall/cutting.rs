//! Random replies of both channels in the way of every family, cut at random.

use proptest::prelude::*;
use serde_json::json;

use super::stream::Marks;
use super::tests::{shape, tools};
use super::*;

/// What a reply in a family's way is made of: its marks, a call and its halves, and what stands in calls.
fn fragments(format: &Format) -> Vec<String> {
    let arguments = json!({"s": "é🦀", "i": 12});
    let call = format.write(&[("f", arguments.as_object().unwrap())]);
    let (first, second) = call.split_at(call.ceil_char_boundary(call.len() / 2));
    let plain = [
        "<function=f>",
        "<parameter=s>",
        "<parameter=i>",
        "\n",
        " ",
        "12",
        "é🦀",
        "\"}}",
        "<tool_",
        "</",
        "{\"name\":\"f\",\"arguments\":{}}",
        "{\"name\":\"f\",\"arguments\":{\"s\":\"",
    ];
    let mut all: Vec<&str> = format.shapes.iter().flat_map(Shape::literals).collect();
    all.extend(format.closers.iter().chain(format.noise));
    all.extend([call.as_str(), first, second]);
    all.extend(plain);
    all.into_iter().filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

/// The pieces of a text, cut behind these lengths again and again.
fn cut_by<'a>(mut text: &'a str, lengths: &[usize]) -> Vec<&'a str> {
    let mut parts = Vec::new();
    for length in lengths.iter().cycle() {
        if text.is_empty() {
            break;
        }
        let (part, rest) = text.split_at(text.ceil_char_boundary((*length).min(text.len())));
        parts.push(part);
        text = rest;
    }
    parts
}

fn run_reply(format: &'static Format, thought: &[&str], answer: &[&str]) -> Vec<Piece> {
    ended(format, thought, answer, |parser| (parser.finish(), None)).0
}

/// The same with another end.
fn ended(
    format: &'static Format,
    thought: &[&str],
    answer: &[&str],
    end: impl Fn(&mut ToolCallParser) -> (Vec<Piece>, Option<Half>),
) -> (Vec<Piece>, Option<Half>) {
    let mut parser = ToolCallParser::new(&tools(), format);
    let mut pieces: Vec<Piece> = thought.iter().flat_map(|part| parser.push(Channel::Thinking, part)).collect();
    pieces.extend(answer.iter().flat_map(|part| parser.push(Channel::Answer, part)));
    let (last, half) = end(&mut parser);
    pieces.extend(last);
    (shape(pieces), half)
}

/// The functions that are called.
fn called(pieces: &[Piece]) -> Vec<&str> {
    let mut names = Vec::new();
    for piece in pieces {
        if let Piece::Begin { name, .. } = piece {
            names.push(name.as_str());
        }
    }
    names
}

/// What is told of a channel as text.
fn told(pieces: &[Piece], channel: Channel) -> String {
    let text = |piece: &Piece| match piece {
        Piece::Content(own, text) if *own == channel => Some(text.clone()),
        _ => None,
    };
    pieces.iter().filter_map(text).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    /// A reply that a limit cuts anywhere, in any family's way: in any pieces it gives the same, no call that the whole did
    /// not have, none of a thought, and every byte but those of a mark at its end.
    #[test]
    fn a_reply_that_is_cut_off_anywhere_is_read_the_same(
        family in any::<prop::sample::Index>(),
        thought in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        answer in prop::collection::vec(any::<prop::sample::Index>(), 0..16),
        at in any::<prop::sample::Index>(),
        cuts in prop::collection::vec(1usize..9, 1..40),
    ) {
        let format = Format::all().nth(family.index(Format::all().count())).unwrap();
        let fragments = fragments(format);
        let [mut thought, mut answer] =
            [thought, answer].map(|all| all.iter().map(|one| one.get(&fragments).as_str()).collect::<String>());
        let at = at.index(thought.len() + answer.len() + 1);
        match at.checked_sub(thought.len()) {
            Some(at) => answer.truncate(answer.floor_char_boundary(at)),
            None => {
                thought.truncate(thought.floor_char_boundary(at));
                answer.clear();
            }
        }
        let (thoughts, answers) = (cut_by(&thought, &cuts), cut_by(&answer, &cuts));
        let cut = |parser: &mut ToolCallParser| (parser.cut(), None);
        let (whole, _) = ended(format, &[&thought], &[&answer], cut);
        prop_assert_eq!(&ended(format, &thoughts, &answers, cut).0, &whole, "{}", format.name);
        let finished = run_reply(format, &[&thought], &[&answer]);
        let (names, all) = (called(&whole), called(&finished));
        prop_assert!(all.starts_with(&names), "{}: {:?} of {:?}", format.name, names, all);
        if answer.trim().is_empty() {
            prop_assert!(names.is_empty(), "{}: {:?} in a thought", format.name, names);
        }
        let withheld = |parser: &mut ToolCallParser| parser.cut_without(&["f".to_owned()]);
        let (without, half) = ended(format, &[&thought], &[&answer], withheld);
        prop_assert_eq!(&ended(format, &thoughts, &answers, withheld), &(without.clone(), half.clone()), "{}", format.name);
        if half.is_none() {
            prop_assert_eq!(&without, &whole, "{}", format.name);
        }
        let plain = format.noise.is_empty() && format.begun.is_empty();
        if plain && names.is_empty() {
            let marks = Marks::of(format);
            for (channel, said) in [(Channel::Thinking, &thought), (Channel::Answer, &answer)] {
                let told = told(&whole, channel);
                let missing = said.strip_prefix(&told);
                let is_mark = |missing: &str| missing.is_empty() || marks.begun(missing) == missing.len();
                prop_assert!(missing.is_some_and(|missing| is_mark(missing.trim_end())),
                    "{}: {:?} of {:?}", format.name, told, said);
            }
        }
    }

    /// Any mixture on both channels, in the way of any family, gives cut anywhere what it gives whole, and no byte is
    /// lost.
    #[test]
    fn cutting_changes_nothing(
        family in any::<prop::sample::Index>(),
        thought in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        answer in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        cuts in prop::collection::vec(1usize..9, 1..40),
    ) {
        let format = Format::all().nth(family.index(Format::all().count())).unwrap();
        let fragments = fragments(format);
        let [thought, answer] =
            [thought, answer].map(|all| all.iter().map(|one| one.get(&fragments).as_str()).collect::<String>());
        let whole = run_reply(format, &[&thought], &[&answer]);
        let parts = run_reply(format, &cut_by(&thought, &cuts), &cut_by(&answer, &cuts));
        prop_assert_eq!(&parts, &whole, "{}", format.name);
        // Some families have marks that mean nothing.
        let plain = format.noise.is_empty() && format.begun.is_empty();
        if plain && !whole.iter().any(|piece| matches!(piece, Piece::Begin { .. })) {
            for (own, said) in [(Channel::Thinking, &thought), (Channel::Answer, &answer)] {
                prop_assert_eq!(&told(&whole, own), said, "{}", format.name);
            }
        }
    }
}
