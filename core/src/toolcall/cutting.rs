//! Random replies of both channels in the way of every family, cut at random.

use proptest::prelude::*;
use serde_json::json;

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
    let mut parser = ToolCallParser::new(&tools(), format);
    let mut pieces: Vec<Piece> = thought.iter().flat_map(|part| parser.push(Channel::Thinking, part)).collect();
    pieces.extend(answer.iter().flat_map(|part| parser.push(Channel::Answer, part)));
    pieces.extend(parser.finish());
    shape(pieces)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
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
                let told: String = whole.iter().filter_map(|piece| match piece {
                    Piece::Content(channel, text) if *channel == own => Some(text.as_str()),
                    _ => None,
                }).collect();
                prop_assert_eq!(&told, said, "{}", format.name);
            }
        }
    }
}
