//! Both forms, every cut in two and in single characters, and text that only looks like a call.

use serde_json::json;

use super::*;

pub(super) fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
        "o": {"type": "object"}, "a": {"type": "array"}, "u": {"type": ["string", "null"]},
        "e": {"enum": ["x", 3]}, "any": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}}}),
        json!({"type": "function", "function": {"name": "g"}}),
        json!({"type": "function", "function": {"name": "h"}}),
    ]
}

/// The pieces with contents joined and ids left out, by channel.
pub(super) fn shape(pieces: Vec<Piece>) -> Vec<Piece> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Content(channel, text) => content(&mut out, channel, text),
            Piece::Begin { index, name, .. } => out.push(Piece::Begin { index, id: String::new(), name }),
            other => out.push(other),
        }
    }
    out
}

fn run(parts: &[&str]) -> Vec<Piece> {
    let mut parser = ToolCallParser::new(&tools(), &QWEN_TAGS);
    let mut pieces: Vec<Piece> = parts.iter().flat_map(|p| parser.push(Channel::Answer, p)).collect();
    pieces.extend(parser.finish());
    shape(pieces)
}

/// Calls and text of an answer, checked in every cut in two and in single characters.
fn read(text: &str) -> (String, Vec<(String, Value)>) {
    let whole = run(&[text]);
    let cuts: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
    for &cut in &cuts {
        assert_eq!(run(&[&text[..cut], &text[cut..]]), whole, "{text:?} cut at {cut}");
    }
    let single: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
    assert_eq!(run(&single), whole, "{text:?} in single characters");
    let mut all = String::new();
    whole.iter().for_each(|p| {
        if let Piece::Content(_, text) = p {
            all += text;
        }
    });
    let (_, calls) = collect(&whole);
    (all, calls.into_iter().map(|c| (c.name, c.arguments)).collect())
}

fn tagged(parameters: &[(&str, &str)]) -> String {
    let inner: String = parameters.iter().map(|(k, v)| format!("<parameter={k}>\n{v}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>")
}

#[test]
fn tags_are_typed_by_the_schema() {
    let text = tagged(&[
        ("s", "17"),
        ("i", "17"),
        ("n", "1.50"),
        ("b", "True"),
        ("o", "{\"k\": [1, null]}"),
        ("a", "[]"),
        ("u", "null"),
        ("e", "3"),
        ("any", "x1"),
        ("unknown", "5"),
    ]);
    let (rest, calls) = read(&text);
    let expected = json!({"s": "17", "i": 17, "n": 1.5, "b": true, "o": {"k": [1, null]}, "a": [], "u": null,
        "e": 3, "any": "x1", "unknown": "5"});
    assert_eq!((rest.as_str(), calls), ("", vec![("f".to_owned(), expected)]));
}

#[test]
fn what_does_not_fit_its_type_stays_a_string() {
    let (_, calls) = read(&tagged(&[("i", "many"), ("n", "nan"), ("b", "yes"), ("o", "{"), ("a", "{}")]));
    assert_eq!(calls[0].1, json!({"i": "many", "n": "nan", "b": "yes", "o": "{", "a": "{}"}));
    let (_, calls) = read(&tagged(&[("i", "3.0"), ("n", "-2")]));
    assert_eq!(calls[0].1, json!({"i": 3, "n": -2}));
    let (_, calls) = read(&tagged(&[("i", "9223372036854775808"), ("any", "-7")]));
    assert_eq!(calls[0].1, json!({"i": 9223372036854775808u64, "any": -7}));
    let (_, calls) = read(&tagged(&[("i", "-100000000000000000000000")]));
    assert_eq!(whole::written(&calls[0].1), r#"{"i":-100000000000000000000000}"#);
}

#[test]
fn whole_numbers_of_any_length_keep_their_digits() {
    let arguments = r#"{"i":18446744073709551616,"o":{"k":[-9223372036854775809]},"n":123456789012345678901234567890}"#;
    let nested = serde_json::Value::from(arguments);
    for text in [
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {arguments}}}\n</tool_call>"),
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {nested}}}\n</tool_call>"),
        format!("<tool_call>\n{{'name': 'f', 'arguments': {arguments}}}\n</tool_call>"),
        tagged(&[
            ("i", "18446744073709551616"),
            ("o", "{\"k\":[-9223372036854775809]}"),
            ("n", "123456789012345678901234567890"),
        ]),
    ] {
        let pieces = run(&[&text]);
        let told = pieces.iter().find_map(|piece| match piece {
            Piece::Arguments { delta, .. } => Some(delta.as_str()),
            _ => None,
        });
        assert_eq!(told, Some(arguments), "{text}");
        assert_eq!(whole::written(&read(&text).1[0].1), arguments, "{text}");
    }
}

/// The text of a reply that was cut at its limit, pushed whole and in single characters.
fn cut(format: &'static Format, text: &str) -> String {
    let single: Vec<&str> = text.split_inclusive(|_: char| true).collect();
    let [whole, single] = [vec![text], single].map(|parts| {
        let mut parser = ToolCallParser::new(&tools(), format);
        let mut pieces: Vec<Piece> = parts.iter().flat_map(|p| parser.push(Channel::Answer, p)).collect();
        pieces.extend(parser.cut());
        collect(&pieces).0
    });
    assert_eq!(whole, single, "{text}");
    whole
}

#[test]
fn a_mark_that_a_limit_cut_is_no_text() {
    for format in Format::all().filter(|format| format.begun.is_empty()) {
        let marks = format.shapes.iter().flat_map(Shape::openings);
        for mark in marks.filter(|mark| mark.starts_with(|first: char| !first.is_alphanumeric())) {
            for end in (1..=mark.len()).filter(|end| mark.is_char_boundary(*end)) {
                let text = format!("I look. {}", &mark[..end]);
                assert_eq!(cut(format, &text).trim_end(), "I look.", "{}: {text}", format.name);
            }
        }
    }
    // The beginning of a word is one.
    assert_eq!(cut(Format::named("functools").unwrap(), "I look up func"), "I look up func");
    let call = tagged(&[("i", "1")]);
    assert_eq!(cut(&QWEN_TAGS, &format!("{call}\n<tool_")), "");
    // What is more than a mark, or ended by the model itself, is what it wrote.
    assert_eq!(cut(&QWEN_TAGS, "<tool_call>\n<function=f>"), "<tool_call>\n<function=f>");
    assert_eq!(cut(&QWEN_TAGS, "a < b"), "a < b");
    assert_eq!(read("a <tool_").0, "a <tool_");
}

#[test]
fn values_keep_their_lines_and_tags() {
    let value = "\n  two\n\nlines </parameter> é🦀 </tool_call> <function=g>\n";
    let (_, calls) = read(&tagged(&[("s", value)]));
    assert_eq!(calls[0].1, json!({ "s": value }));
    let (_, calls) = read("<tool_call><function=f><parameter=s>x</parameter></function></tool_call>");
    assert_eq!(calls[0].1, json!({"s": "x"}));
    let (_, calls) = read("<tool_call>\n<function=f>\n</function>\n</tool_call>");
    assert_eq!(calls[0].1, json!({}));
}

#[test]
fn json_calls_are_read() {
    let (rest, calls) = read("I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n</tool_call>\nso");
    assert_eq!(rest, "I look.\n\nso");
    assert_eq!(calls, [("f".to_owned(), json!({"i": 1}))]);
    let odd = "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"i\\\":2}\"}</tool_call>\
               <tool_call>{\"name\":\"g\"}</tool_call><tool_call>{\"name\":\"h\",\"parameters\":{\"z\":0}}</tool_call>";
    let (rest, calls) = read(odd);
    let names: Vec<_> = calls.iter().map(|c| c.0.as_str()).collect();
    assert_eq!((rest.as_str(), names), ("", vec!["f", "g", "h"]));
    assert_eq!((&calls[0].1, &calls[1].1, &calls[2].1), (&json!({"i": 2}), &json!({}), &json!({"z": 0})));
    let (_, calls) = read("<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}</tool_call>");
    assert_eq!(calls[0].1, json!({"s": "</tool_call>"}));
}

#[test]
fn the_order_of_arguments_is_kept() {
    let pieces = run(&["<tool_call>{\"name\":\"f\",\"arguments\":{\"z\":1,\"a\":2}}</tool_call>"]);
    assert_eq!(pieces[1], Piece::Arguments { index: 0, delta: "{\"z\":1,\"a\":2}".into() });
}

#[test]
fn malformed_calls_stay_text() {
    for text in [
        "no call at all <tool_",
        "a <tool_call>",
        "<tool_call>hello</tool_call>",
        "<tool_call>{\"name\": 3}</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call> tail",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1}} x</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"i\"",
        "<tool_call>\n<function=f>\n<parameter=s>\nx",
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n",
        "<tool_call>\n<function=f>\nstray\n</function>\n</tool_call>",
        "<tool_call><function=></function></tool_call>",
        "<tool_call><function=f><parameter=s>1</parameter><parameter=s>2</parameter></function></tool_call>",
        "</tool_call> é <tool_call><tool_call></tool_call>",
        "<<tool_call <tool_call>>",
    ] {
        assert_eq!(read(text), (text.to_owned(), vec![]));
    }
}

#[test]
fn a_call_after_a_malformed_one_is_found() {
    let good = "<tool_call>{\"name\":\"f\"}</tool_call>";
    for bad in
        ["<tool_call>", "<tool_call>oops</tool_call>", "<tool_call><function=f>", "<tool_call>{\"a\" 1}</tool_call>"]
    {
        let (rest, calls) = read(&format!("{bad}{good}"));
        assert_eq!((rest.as_str(), calls.len()), (bad, 1), "{bad}");
    }
}

#[test]
fn a_closing_tag_that_is_cut_off_behind_a_call_is_no_text() {
    let json = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n</tool_call>";
    for call in [tagged(&[("i", "1")]).as_str(), json] {
        let (whole, _) = call.rsplit_once("</tool_call>").unwrap();
        for tail in ["", "</tool_call", "</tool_call>\n</tool_call", "</tool_call>\n</", "</tool_call>"] {
            let (rest, calls) = read(&format!("{whole}{tail}"));
            assert_eq!((rest.as_str(), calls.len(), &calls[0].1["i"]), ("", 1, &json!(1)), "{whole}{tail}");
        }
        let (rest, _) = read(&format!("{whole}</tool_call>\n</tool_cart>"));
        assert_eq!(rest, "</tool_cart>", "{whole}");
    }
}

#[test]
fn a_whole_call_without_its_closing_tag_is_taken_at_the_end() {
    let (rest, calls) = read("x<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n");
    assert_eq!((rest.as_str(), &calls[0].1), ("x", &json!({"i": 1})));
    assert_eq!(read("<tool_call>{\"name\":\"f\"}").1.len(), 1);
}

/// Text and calls by channel, of pushes in their order.
fn told(pushes: &[(Channel, &str)]) -> Vec<Piece> {
    let mut parser = ToolCallParser::new(&tools(), &QWEN_TAGS);
    let mut pieces: Vec<Piece> = pushes.iter().flat_map(|(channel, text)| parser.push(*channel, text)).collect();
    pieces.extend(parser.finish());
    shape(pieces)
}

#[test]
fn a_call_in_a_thought_is_one_only_where_the_reply_ends_with_it() {
    use Channel::{Answer, Thinking};
    let (a, b) = ("<tool_call>{\"name\":\"f\"}</tool_call>", "<tool_call>{\"name\":\"g\"}</tool_call>");
    let names = |pushes: &[(Channel, &str)]| {
        let pieces = told(pushes);
        let name = |p: &Piece| match p {
            Piece::Begin { name, .. } => Some(name.clone()),
            _ => None,
        };
        let said = |of: Channel| {
            let text = pieces.iter().filter_map(|p| match p {
                Piece::Content(channel, text) if *channel == of => Some(text.as_str()),
                _ => None,
            });
            text.collect::<String>()
        };
        (pieces.iter().filter_map(name).collect::<Vec<_>>().join(" "), said(Thinking), said(Answer))
    };
    let owned = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    let thought = format!("hm\n{a}");
    assert_eq!(names(&[(Thinking, &thought), (Answer, b)]), owned("g", &thought, ""));
    assert_eq!(names(&[(Thinking, &thought), (Answer, "yes")]), owned("", &thought, "yes"));
    assert_eq!(names(&[(Thinking, &thought)]), owned("f", "hm", ""));
    assert_eq!(names(&[(Thinking, &thought), (Thinking, "\nand so")]), owned("", &format!("{thought}\nand so"), ""));
    assert_eq!(names(&[(Thinking, &format!("{a}\n{b}"))]).0, "f g");
    assert_eq!(names(&[(Thinking, a), (Answer, "\n\n")]).0, "f");
    assert_eq!(
        names(&[(Thinking, "hm <tool_call>{\"name\":"), (Answer, "x")]),
        owned("", "hm <tool_call>{\"name\":", "x")
    );
    // A thought that a limit cut might have gone on.
    let mut parser = ToolCallParser::new(&tools(), &QWEN_TAGS);
    let mut pieces = parser.push(Thinking, &thought);
    pieces.extend(parser.cut());
    assert_eq!(shape(pieces), [Piece::Content(Thinking, thought.clone())]);
    // What the thought still holds is told before the answer, not at its end.
    for held in ["hm ", "hm <", "hm <tool_call>{\"name\":"] {
        let pieces = told(&[(Thinking, held), (Answer, "x"), (Answer, "y")]);
        assert_eq!(pieces, [Piece::Content(Thinking, held.into()), Piece::Content(Answer, "xy".into())]);
    }
    assert_eq!(names(&[(Thinking, &a.repeat(CALLS_MAX as usize + 2))]).0.split(' ').count(), CALLS_MAX as usize);
}

/// What a model writes, the text that remains, and the calls.
#[test]
fn what_is_certain_is_read_and_nothing_else() {
    let f = |arguments: Value| vec![("f".to_owned(), arguments)];
    let one = "<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n</function>\n</tool_call>";
    let g = "<function=g>\n</function>\n";
    let two = |i: Value| vec![("f".to_owned(), json!({ "i": i })), ("g".to_owned(), json!({}))];
    // What is written, the content and the calls that are read.
    type Case<'a> = (String, &'a str, Vec<(String, Value)>);
    let cases: Vec<Case> = vec![
        // A parameter that is not closed before the next one.
        ("<tool_call>\n<function=f>\n<parameter=s>\none\n<parameter=i>\n2\n</parameter>\n</function>\n</tool_call>".into(), "", f(json!({"s": "one", "i": 2}))),
        ("<tool_call>\n<function=f>\n<parameter=s>\none\n<parameter=i>\n2\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>".into(), "", f(json!({"s": "one", "i": 2, "n": 3}))),
        // The last parameter, the function or both are not closed.
        ("<tool_call>\n<function=f>\n<parameter=i>\n1\n</function>\n</tool_call>".into(), "", f(json!({"i": 1}))),
        ("<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n</tool_call>".into(), "", f(json!({"i": 1}))),
        ("<tool_call>\n<function=f>\n<parameter=i>\n1\n</tool_call>".into(), "", f(json!({"i": 1}))),
        // Without the mark around it, and with a lone mark behind.
        ("<function=f>\n<parameter=i>\n1\n</parameter>\n</function>".into(), "", f(json!({"i": 1}))),
        (format!("So: {g}</tool_call>\n"), "So:", vec![("g".into(), json!({}))]),
        (format!("{one}\n</tool_call>\n"), "", f(json!({"i": 1}))),
        // Closed twice, and by something else.
        (one.replace("</function>\n", "</function>\n</function>\n"), "", f(json!({"i": 1}))),
        (one.replace("</function>\n", "</function>\n</tools>\n"), "", f(json!({"i": 1}))),
        (one.replace("</parameter>\n", "</parameter>\n</parameter>\n"), "", f(json!({"i": 1}))),
        // The same again, and several functions in one call.
        (one.replace("<parameter=i>", "<parameter=i>\n1\n</parameter>\n<parameter=i>"), "", f(json!({"i": 1}))),
        (one.replace("</tool_call>", &format!("{g}</tool_call>")), "", two(json!(1))),
        (one.replace("</function>\n", g), "", two(json!(1))),
        // Newlines between and behind calls are no text.
        (format!("\n{one}\n\n{one}\n"), "", [f(json!({"i": 1})), f(json!({"i": 1}))].concat()),
        (format!("a\n{one}\nb\n{one}\nc"), "a\n\nb\n\nc", [f(json!({"i": 1})), f(json!({"i": 1}))].concat()),
        (one.replace("\n</tool_call>", " more </tool_call>"), "more </tool_call>", f(json!({"i": 1}))),
        // Markup inside a value.
        (tagged(&[("s", one)]), "", f(json!({ "s": one }))),
        (tagged(&[("s", "see <parameter=x> there")]), "", f(json!({"s": "see <parameter=x> there"}))),
        (tagged(&[("s", "<function=f>\n<parameter=i>\n1\n</parameter>\n</function>")]), "", f(json!({"s": "<function=f>\n<parameter=i>\n1\n</parameter>\n</function>"}))),
        (tagged(&[("s", "see <parameter=x> there"), ("i", "7")]), "", f(json!({"s": "see <parameter=x> there", "i": 7}))),
        (tagged(&[("s", "a <parameter=x>\n\n<parameter=y> b"), ("i", "7"), ("n", "1")]), "", f(json!({"s": "a <parameter=x>\n\n<parameter=y> b", "i": 7, "n": 1}))),
        // JSON: a bracket too few or too many, a fence, a list, several values, other quotes.
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1}</tool_call>".into(), "", f(json!({"i": 1}))),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1}}}</tool_call>".into(), "", f(json!({"i": 1}))),
        ("<tool_call>\n```json\n{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n```\n</tool_call>".into(), "", f(json!({"i": 1}))),
        ("<tool_call>[{\"name\": \"f\", \"arguments\": {\"i\": 1}}, {\"name\": \"g\"}]</tool_call>".into(), "", two(json!(1))),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n{\"name\": \"g\"}</tool_call>".into(), "", two(json!(1))),
        ("<tool_call>{'name': 'f', 'arguments': {'i': 1, 'b': True}}</tool_call>".into(), "", f(json!({"i": 1, "b": true}))),
        ("<tool_call>{\"name\": \"f\", \"arguments\": {\"i\": 1}}\n<tool_call>{\"name\": \"g\"}</tool_call>".into(), "", two(json!(1))),
        ("<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"i\": 1}}}</tool_call>".into(), "", f(json!({"i": 1}))),
    ];
    for (text, rest, calls) in cases {
        let (left, found) = read(&text);
        assert_eq!((left.trim(), &found), (rest.trim(), &calls), "{text}");
        assert!(!rest.is_empty() || left.is_empty(), "{text}: {left:?}");
    }
    // Nothing that the request does not offer is called, and nothing that was cut off.
    for text in [
        "```\n<tool_call>\n<function=get_weather>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>\n```",
        "<function=rm>\n</function>",
        "<tool_call>{\"name\": \"rm_rf\", \"arguments\": {}}</tool_call>",
        "{\"name\": \"f\", \"arguments\": {}}",
        "<tool_call>\n<function=f>\n<parameter=s>\ncut",
        "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>",
        "<tool_call>\n<function=f>\n<parameter=i>\n1\n</parameter>\n<param",
    ] {
        assert_eq!(read(text), (text.to_owned(), vec![]));
    }
}

#[test]
fn arguments_take_the_types_that_references_and_alternatives_give() {
    let tools = vec![json!({"type": "function", "function": {"name": "plan", "parameters": {"type": "object",
        "$defs": {"period": {"properties": {"kind": {"type": "string"}}}},
        "properties": {"r": {"$ref": "#/$defs/period"}, "a": {"allOf": [{"$ref": "#/$defs/period"}]},
            "n": {"anyOf": [{"anyOf": [{"type": "null"}, {"$ref": "#/$defs/period"}]}, {"type": "integer"}]},
            "c": {"const": {"kind": "week"}}, "p": {"properties": {"kind": {}}}, "s": {"type": "string"}}}}})];
    for key in ["r", "a", "n", "c", "p"] {
        let text = format!(
            "<tool_call>\n<function=plan>\n<parameter={key}>\n{{\"kind\": \"week\"}}\n</parameter>\n</function>\n</tool_call>"
        );
        assert_eq!(parse(&text, &tools).1[0].arguments, json!({key: {"kind": "week"}}));
    }
    // Wherever the grammar finds a schema, the reader does.
    for (more, key) in [
        (json!({"properties": {"x": {"$ref": "#/$defs/A%20b"}}}), "x"),
        (json!({"properties": {"x": {"$ref": "#item"}}}), "x"),
        (json!({"properties": {"x": {"$ref": "#old"}}}), "x"),
        (json!({"patternProperties": {"^x-": {"type": "object"}}}), "x-1"),
        (json!({"patternProperties": {"^x-": {"type": "object"}}, "additionalProperties": {"type": "string"}}), "x-1"),
        (json!({"allOf": [{"patternProperties": {"(?!": {}, "^x-": {"$ref": "#item"}}}]}), "x-1"),
        (json!({"allOf": [{"additionalProperties": {"type": "object"}}]}), "x"),
        (json!({"unevaluatedProperties": {"type": "object"}}), "x"),
        (json!({"$ref": "#open"}), "x"),
    ] {
        let mut parameters = json!({"$defs": {"A b": {"type": "object"}, "i": {"$anchor": "item", "type": "object"},
            "o": {"id": "#old", "type": "object"},
            "open": {"$anchor": "open", "allOf": [{"additionalProperties": {"$ref": "#item"}}]}}});
        more.as_object().unwrap().iter().for_each(|(key, value)| parameters[key] = value.clone());
        let tools = [json!({"type": "function", "function": {"name": "plan", "parameters": parameters}})];
        let text = format!(
            "<tool_call>\n<function=plan>\n<parameter={key}>\n{{\"kind\": 1}}\n</parameter>\n</function>\n</tool_call>"
        );
        assert_eq!(parse(&text, &tools).1[0].arguments, json!({key: {"kind": 1}}), "{more}");
    }
    let text =
        "<tool_call>\n<function=plan>\n<parameter=s>\n{\"kind\": \"week\"}\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(parse(text, &tools).1[0].arguments, json!({"s": "{\"kind\": \"week\"}"}));
}

#[test]
fn a_mark_in_an_answer_of_a_form_opens_nothing() {
    let answer = "{\"s\": \"so <function=g></function> it is\"}";
    let read = |text: &str| {
        let mut parser = ToolCallParser::new(&tools(), &QWEN_TAGS).calls_first();
        let mut pieces: Vec<Piece> =
            text.split_inclusive(' ').flat_map(|piece| parser.push(Channel::Answer, piece)).collect();
        pieces.extend(parser.finish());
        let (text, calls) = collect(&pieces);
        (text, calls.len())
    };
    assert_eq!(read(answer), (answer.to_owned(), 0));
    assert_eq!(read("\n<function=g>\n</function>\n<tool_call>{\"name\": \"f\"}</tool_call>"), (String::new(), 2));
    assert_eq!(parse(answer, &tools()).1.len(), 1, "where any text may stand before a call");
}

#[test]
fn ids_are_unlike() {
    let ids = |text: &str| parse(text, &tools()).1.into_iter().map(|c| c.id).collect::<Vec<_>>();
    let two = ids(&"<tool_call>{\"name\":\"f\"}</tool_call>".repeat(2));
    assert_ne!(two[0], two[1]);
    assert_ne!(two, ids(&"<tool_call>{\"name\":\"f\"}</tool_call>".repeat(2)));
}

#[test]
fn limits_leave_text() {
    let many = "<tool_call>{\"name\":\"f\"}</tool_call>".repeat(CALLS_MAX as usize + 3);
    let (text, calls) = parse(&many, &tools());
    assert_eq!(calls.len(), CALLS_MAX as usize);
    assert_eq!(text, "<tool_call>{\"name\":\"f\"}</tool_call>".repeat(3));
    let large =
        format!("<tool_call>{{\"name\":\"f\",\"arguments\":{{\"s\":\"{}\"}}}}</tool_call>", "x".repeat(CALL_BYTES_MAX));
    assert_eq!(parse(&large, &tools()), (large, vec![]));
    let nested = |levels: usize| {
        let array = format!("{}{}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        parse(&format!("<tool_call>{{\"name\":\"f\",\"arguments\":{{\"a\":{array}}}}}</tool_call>"), &tools()).1.len()
    };
    assert_eq!((nested(DEPTH_MAX), nested(DEPTH_MAX + 1)), (1, 0));
}

/// Texts made to be read again and again: what is read as a call, again included, stays within the bound of a reply,
/// and within a small multiple of the text where nothing closes.
#[test]
fn hostile_text_is_not_read_again_and_again() {
    let n = 60_000;
    for text in [
        "<tool_call>".repeat(n),
        "<tool_call>{".repeat(n),
        "<tool_call><function=".repeat(n),
        "<tool_call><function=f><parameter=s>".repeat(n),
        format!("<tool_call>{{\"a\":\"{}", "</tool_call>".repeat(n)),
        format!("<tool_call><function=f><parameter=s>{}", "</parameter>".repeat(n)),
        "<tool_cal".repeat(n),
        "{\"name\":\"f\"}</tool_call>".repeat(n),
    ] {
        let mut parser = ToolCallParser::new(&tools(), &QWEN_TAGS);
        let mut out = String::new();
        let mut take = |pieces: Vec<Piece>| {
            pieces.into_iter().for_each(|p| match p {
                Piece::Content(_, text) => out += &text,
                other => panic!("{other:?}"),
            });
        };
        // As tokens come: four bytes at a time.
        text.as_bytes().chunks(4).for_each(|c| take(parser.push(Channel::Answer, std::str::from_utf8(c).unwrap())));
        take(parser.finish());
        assert_eq!(out, text);
        println!("{:?} …: {} bytes, {} read as calls", &text[..30], text.len(), parser.read_bytes);
        assert!(parser.read_bytes <= READ_BYTES_MAX + 2 * CALL_BYTES_MAX, "{:?}", &text[..40]);
    }
}
