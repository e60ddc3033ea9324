//! Calls as templates of many families write them into a history: each is read back as it was, however it is cut.

use serde_json::json;

use super::histories::{calls, expected, read_in_any_cut, tools};
use super::*;
use crate::engine::template::ChatTemplate;

/// Small templates in the forms of the families: a name, the family that is to be found, and the source behind a question.
const TEMPLATES: &[(&str, &str, &str)] = &[
    (
        "qwen-tags",
        "",
        "<think>hm</think>{% for c in calls %}<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments|items %}<parameter={{ k }}>\n{{ v if v is string else v|tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}",
    ),
    (
        "hermes",
        "",
        "{% for c in calls %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}\n</tool_call>\n{% endfor %}",
    ),
    (
        "deepseek-r1",
        "",
        "<｜tool▁calls▁begin｜>{% for c in calls %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n```json\n{{ c.function.arguments|tojson }}\n```<｜tool▁call▁end｜>\n{% endfor %}<｜tool▁calls▁end｜>",
    ),
    (
        "deepseek",
        "",
        "<｜tool▁calls▁begin｜>{% for c in calls %}<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments|tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
    ),
    (
        "deepseek-dsml",
        "",
        "{% set d = '｜DSML｜' %}</think>\n\n<{{ d }}function_calls>\n{% for c in calls %}<{{ d }}invoke name=\"{{ c.function.name }}\">\n{% for k, v in c.function.arguments|items %}<{{ d }}parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">{{ v if v is string else v|tojson }}</{{ d }}parameter>\n{% endfor %}</{{ d }}invoke>\n{% endfor %}</{{ d }}function_calls>",
    ),
    (
        "deepseek-dsml-4",
        "",
        "{% set d = '｜DSML｜' %}<{{ d }}tool_calls>\n{% for c in calls %}<{{ d }}invoke name=\"{{ c.function.name }}\">\n{% for k, v in c.function.arguments|items %}<{{ d }}parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">{{ v if v is string else v|tojson }}</{{ d }}parameter>\n{% endfor %}</{{ d }}invoke>\n{% endfor %}</{{ d }}tool_calls>",
    ),
    (
        "kimi",
        "",
        "<|tool_calls_section_begin|>{% for c in calls %}<|tool_call_begin|>functions.{{ c.function.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>{{ c.function.arguments|tojson }}<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>",
    ),
    (
        "minimax",
        "",
        "<minimax:tool_call>\n{% for c in calls %}<invoke name=\"{{ c.function.name }}\">\n{% for k, v in c.function.arguments|items %}<parameter name=\"{{ k }}\">{{ v if v is string else v|tojson }}</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>",
    ),
    (
        "seed",
        "",
        "{% for c in calls %}<seed:tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments|items %}<parameter={{ k }}>{{ v }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>\n{% endfor %}",
    ),
    (
        "glm",
        "",
        "{% for c in calls %}<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments|items %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v|tojson }}</arg_value>\n{% endfor %}</tool_call>\n{% endfor %}",
    ),
    (
        "glm",
        "",
        "{% for c in calls %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments|items %}<arg_key>{{ k }}</arg_key><arg_value>{{ v if v is string else v|tojson }}</arg_value>{% endfor %}</tool_call>{% endfor %}",
    ),
    (
        "command",
        "",
        "<|START_ACTION|>[\n{% for c in calls %}    {\"tool_call_id\": \"{{ loop.index0 }}\", \"tool_name\": \"{{ c.function.name }}\", \"parameters\": {{ c.function.arguments|tojson }}}{{ ',' if not loop.last }}\n{% endfor %}]<|END_ACTION|>",
    ),
    (
        "command-plus",
        "",
        "{# Write \\'Action:\\' followed by a json-formatted list #}\nAction:\n```json\n[\n{% for c in calls %}    {\n        \"tool_name\": \"{{ c.function.name }}\",\n        \"parameters\": {{ c.function.arguments|tojson(indent=4) }}\n    }{{ ',' if not loop.last }}\n{% endfor %}]```\n",
    ),
    (
        "harmony",
        "single",
        "<|start|>assistant to=functions.{{ calls[0].function.name }}<|channel|>commentary json<|message|>{{ calls[0].function.arguments|tojson }}<|call|>",
    ),
    (
        "harmony",
        "single",
        "{# <|start|>assistant #} to=functions.{{ calls[0].function.name }}<|channel|>commentary json<|message|>{{ calls[0].function.arguments|tojson }}<|call|>",
    ),
    (
        "harmony",
        "single",
        "{# <|start|>assistant #}<|channel|>commentary to=functions.{{ calls[0].function.name }} <|constrain|>json<|message|>{{ calls[0].function.arguments|tojson }}<|call|>",
    ),
    (
        "mistral",
        "",
        "{% for c in calls %}[TOOL_CALLS]{{ c.function.name }}[CALL_ID]abcdefghi[ARGS]{{ c.function.arguments|tojson }}{% endfor %}</s>",
    ),
    (
        "mistral-list",
        "",
        "[TOOL_CALLS][{% for c in calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}, \"id\": \"abcdefghi\"}{{ ', ' if not loop.last }}{% endfor %}]</s>",
    ),
    (
        "apertus",
        "",
        "<|tools_prefix|>[{% for c in calls %}{\"{{ c.function.name }}\": {{ c.function.arguments|tojson }}}{{ ', ' if not loop.last }}{% endfor %}]<|tools_suffix|>",
    ),
    (
        "gemma",
        "",
        "{% macro value(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is mapping %}{ {%- for k, x in v|items %}{{ k }}:{{ value(x) }}{{ ',' if not loop.last }}{% endfor -%} }{% else %}{{ v }}{% endif %}{% endmacro %}{% for c in calls %}<|tool_call>call:{{ c.function.name }}{{ value(c.function.arguments) }}<tool_call|>{% endfor %}",
    ),
    (
        "nemotron",
        "",
        "<TOOLCALL>[{% for c in calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}{{ ', ' if not loop.last }}{% endfor %}]</TOOLCALL>",
    ),
    (
        "apriel",
        "",
        "<tool_calls>[{% for c in calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}{{ ', ' if not loop.last }}{% endfor %}]</tool_calls>",
    ),
    (
        "gigachat",
        "single",
        "<|function_call|>{\"name\": \"{{ calls[0].function.name }}\", \"arguments\": {{ calls[0].function.arguments|tojson }}}<|message_sep|>\n\n",
    ),
    (
        "gigachat",
        "single",
        "{% set m = {'role': 'function call'} %}<|message_sep|>\n\n{{ m.role }}<|role_sep|>\n{\"name\": \"{{ calls[0].function.name }}\", \"arguments\": {{ calls[0].function.arguments|tojson }}}<|message_sep|>\n\n",
    ),
    (
        "functools",
        "",
        " functools[{% for c in calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}{{ ', ' if not loop.last }}{% endfor %}]",
    ),
    (
        "functionary",
        "",
        "{# >>>all #}{% for c in calls %}{{ '>>>' if not loop.first }}{{ c.function.name }}\n{{ c.function.arguments|tojson }}{% endfor %}",
    ),
    (
        "functionary-tags",
        "",
        "{% for c in calls %}<function={{ c.function.name }}>{{ c.function.arguments|tojson }}</function>{% endfor %}",
    ),
    (
        "mcp",
        "",
        "{% for c in calls %}<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>{{ c.function.name }}</tool_name>\n<arguments>\n{{ c.function.arguments|tojson }}\n</arguments>\n</use_mcp_tool>\n{% endfor %}",
    ),
    (
        "granite",
        "",
        "<|tool_call|>[{% for c in calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}{{ ', ' if not loop.last }}{% endfor %}]",
    ),
    (
        "lfm",
        "",
        "{# <|tool_list_start|> #}<|tool_call_start|>[{% for c in calls %}{{ c.function.name }}({% for k, v in c.function.arguments|items %}{{ k }}={{ v|tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}{% endfor %}]<|tool_call_end|>",
    ),
    (
        "smollm",
        "",
        "{# python_tools #}{% for c in calls %}<code>\n{{ c.function.name }}({% for k, v in c.function.arguments|items %}{{ k }}={{ v|string if v is mapping else v|tojson }}{{ ', ' if not loop.last }}{% endfor %})\n</code>\n{% endfor %}",
    ),
    (
        "llama",
        "single",
        "{\"name\": \"{{ calls[0].function.name }}\", \"parameters\": {{ calls[0].function.arguments|tojson }}}<|eot_id|>",
    ),
];

#[test]
fn calls_in_the_history_of_every_family_are_read_back() {
    let mut families = std::collections::BTreeSet::new();
    for (name, kind, source) in TEMPLATES {
        let format = Format::of(source, &|_| false).unwrap_or_else(|| panic!("{name}: no family for {source}"));
        // A sign that stands in the rendered text of a bare form would not stand in its template's alone.
        assert_eq!(format.name, *name, "{source}");
        families.insert(format.name);
        let template = ChatTemplate::load(source).unwrap();
        for many in 1..=if *kind == "single" { 1 } else { 2 } {
            let text = template.render(json!({"calls": calls(many, false)}), "").unwrap();
            assert_eq!(read_in_any_cut(format, &text), expected(many), "{name}: {text}");
        }
    }
    let all: std::collections::BTreeSet<&str> = Format::all().map(|format| format.name).collect();
    assert_eq!(families, all, "every family has its template here");
}

/// Where the name is the key itself, a function may be called as others call the whole of a call.
#[test]
fn a_function_may_be_called_function() {
    let tools = [json!({"type": "function", "function": {"name": "function", "parameters": {"type": "object"}}})];
    let arguments = json!({"function": {"name": "19:00:05"}, "name": "function"});
    let text = format!("<|tools_prefix|>[{{\"function\": {arguments}}}]<|tools_suffix|>");
    let mut parser = ToolCallParser::new(&tools, Format::named("apertus").unwrap());
    let (rest, calls) = crate::toolcall::collect(&parser.push(Channel::Answer, &text));
    assert_eq!((rest.as_str(), calls.len()), ("", 1));
    assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("function", &arguments));
}

/// Words of a call's head that may be called as a function is: the one in the name's place alone says whose the call is.
#[test]
fn a_call_of_nobody_is_not_given_to_a_function_called_as_another_word_of_its_head() {
    let names = ["json", "commentary", "function", "tools", "abcdefghi", "python"];
    let tools = names.map(|name| json!({"type": "function", "function": {"name": name}}));
    for (family, text, called) in [
        ("harmony", "<|channel|>commentary to=functions.foo <|constrain|>json<|message|>{}<|call|>", None),
        ("harmony", "<|channel|>commentary to=functions.json <|constrain|>json<|message|>{}<|call|>", Some("json")),
        ("harmony", "<|channel|>commentary to=browser json<|message|>{}<|call|>", None),
        ("harmony", "<|channel|>commentary to=browser.json json<|message|>{}<|call|>", None),
        ("harmony", "<|start|>assistant to=browser<|channel|>commentary json<|message|>{}<|call|>", None),
        ("harmony", "<|start|>assistant to=json<|channel|>commentary code<|message|>{}<|call|>", Some("json")),
        ("harmony", "<|start|>assistant<|channel|>commentary json<|message|>{}<|end|>", None),
        ("harmony", "<|channel|>commentary json<|message|>{}<|end|>", None),
        ("harmony", "<|channel|>commentary<|message|>I ask to=functions.json {}", None),
        ("harmony", "It is written to=functions.json {}", None),
        ("harmony", "to=functions.json<|channel|>commentary json<|message|>{}<|call|>", Some("json")),
        ("harmony", "to=functions.foo<|channel|>commentary json<|message|>{}<|call|>", None),
        ("deepseek-r1", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>foo\n```json\n{}\n```<｜tool▁call▁end｜>", None),
        (
            "deepseek-r1",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>json\n```\n{}\n```<｜tool▁call▁end｜>",
            Some("json"),
        ),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>foo\n```json\n{}\n```<｜tool▁call▁end｜>", None),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}<｜tool▁call▁end｜>", Some("function")),
        ("mistral", "[TOOL_CALLS]foo[CALL_ID]abcdefghi[ARGS]{}", None),
        ("mistral", "[TOOL_CALLS]json[CALL_ID]abcdefghi[ARGS]{}", Some("json")),
        (
            "mcp",
            "<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>foo</tool_name>\n<arguments>\n{}\n\
             </arguments>\n</use_mcp_tool>",
            None,
        ),
        (
            "mcp",
            "<use_mcp_tool>\n<server_name>foo</server_name>\n<tool_name>tools</tool_name>\n<arguments>\n{}\n\
             </arguments>\n</use_mcp_tool>",
            Some("tools"),
        ),
        ("kimi", "<|tool_call_begin|>functions.foo:0<|tool_call_argument_begin|>{}<|tool_call_end|>", None),
        ("kimi", "<|tool_call_begin|>functions.json:3<|tool_call_argument_begin|>{}<|tool_call_end|>", Some("json")),
        ("functionary", "json\n{}", Some("json")),
    ] {
        let mut parser = ToolCallParser::new(&tools, Format::named(family).unwrap());
        let mut pieces = parser.push(Channel::Answer, text);
        pieces.extend(parser.finish());
        let (_, calls) = collect(&pieces);
        assert_eq!(calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), Vec::from_iter(called), "{text}");
    }
}

#[test]
fn a_closing_mark_inside_a_string_closes_nothing_and_text_between_marks_is_told_at_once() {
    let gemma = Format::named("gemma").unwrap();
    let call = "<|tool_call>call:g{s:<|\"|>a <tool_call|> b<|\"|>}<tool_call|>";
    assert_eq!(read_in_any_cut(gemma, call), [("g".to_owned(), json!({"s": "a <tool_call|> b"}))]);
    let mut parser = ToolCallParser::new(&tools(), gemma);
    let text = "<|tool_call>call:g{no such thing}<tool_call|> and so on";
    let told: String = parser
        .push(Channel::Answer, text)
        .iter()
        .map(|piece| match piece {
            Piece::Content(_, text) => text.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, text);
}

#[test]
fn what_the_prompt_began_is_no_text_of_the_reply() {
    let tools = [json!({"type": "function", "function": {"name": "f"}})];
    for format in Format::all().filter(|format| !format.begun.is_empty()) {
        for text in ["{\"a\": 1}", "Hello", "f", " f {", ">"] {
            for bytes in [1, 2, 100] {
                let mut parser = ToolCallParser::new(&tools, format);
                let cut = text.as_bytes().chunks(bytes).map(|piece| std::str::from_utf8(piece).unwrap());
                let mut pieces: Vec<Piece> = cut.flat_map(|piece| parser.push(Channel::Answer, piece)).collect();
                pieces.extend(parser.finish());
                assert_eq!(collect(&pieces), (text.to_owned(), Vec::new()), "{}", format.name);
            }
        }
    }
}

/// Kimi's ids count the calls of a conversation: those of the next reply go on behind the history's.
#[test]
fn counted_ids_go_on_within_a_conversation() {
    let kimi = Format::named("kimi").unwrap();
    let arguments = serde_json::Map::new();
    let text = kimi.write(&[("find_it", &arguments), ("g", &arguments)]);
    let mut history = Vec::<ToolCall>::new();
    let reply = |history: &[ToolCall]| {
        let mut parser = ToolCallParser::new(&tools(), kimi).from_number(next_number(history.iter()));
        let mut pieces = parser.push(Channel::Answer, &text);
        pieces.extend(parser.finish());
        collect(&pieces).1
    };
    history.extend(reply(&history));
    history.extend(reply(&history));
    let ids = |calls: &[ToolCall]| calls.iter().map(|call| call.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&history), ["functions.find_it:0", "functions.g:1", "functions.find_it:2", "functions.g:3"]);
    // Where a client left the first calls out, and where it has names of its own for them.
    assert_eq!(ids(&reply(&history[3..])), ["functions.find_it:4", "functions.g:5"]);
    history.iter_mut().for_each(|call| call.id = "x".to_owned());
    assert_eq!(ids(&reply(&history)), ["functions.find_it:4", "functions.g:5"]);
    for id in ["functions.f:x", "functions.f", "other:7", "functions.f:4294967296", "functions.f:4294967295"] {
        history[0].id = id.to_owned();
        assert_eq!(next_number(history[..1].iter()), 1, "{id}");
    }
}
