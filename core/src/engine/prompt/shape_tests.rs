//! Each part of conversations of every shape stands in the prompt, by small templates that show less by themselves.

use super::super::tokenizer::tests::qwen;
use super::super::tool_prompt::ToolWays;
use super::*;
use crate::turn::ToolCall;

#[path = "shapes.rs"]
mod shapes;

use shapes::{faults, text_of};

/// Small templates in the forms of families that show less than they are given.
const FORMS: &[(&str, &str)] = &[
    (
        "one call a message without a text, tools beside the first user, whoever speaks first",
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}\
         {% if tools is defined %}<user>{{ tools|tojson }}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}\
         {% for m in messages %}{% if 'tool_calls' in m %}{% if m.tool_calls|length != 1 %}\
         {{ raise_exception('only single tool-calls') }}{% endif %}{{ m.tool_calls[0].function|tojson }}\
         {% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}",
    ),
    (
        "turns around rounds of calls, the system's text and the tools beside the last user, ids of nine characters",
        "{% set system = namespace(text='') %}{% if messages[0].role == 'system' %}{% set system.text = messages[0].content %}\
         {% set messages = messages[1:] %}{% endif %}{% set users = messages|selectattr('role', 'equalto', 'user')|list %}\
         {% set ns = namespace(at=0) %}{% for m in messages %}{% if m.role != 'tool' and m.tool_calls is not defined %}\
         {% if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
         {% set ns.at = ns.at + 1 %}{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'user' %}\
         {% if tools is defined and m == users[-1] %}{{ tools|tojson }}{% endif %}\
         [INST]{{ system.text if loop.last }}{{ m.content }}[/INST]{% elif m.tool_calls is defined %}\
         {% for c in m.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('ids of 9') }}{% endif %}\
         {{ c.function|tojson }}{{ c.id }}{% endfor %}{% elif m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}\
         {{ raise_exception('ids of 9') }}{% endif %}{{ m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ),
    (
        "tools in Python's words",
        "{% macro kind(spec) %}{% if spec.type in ['string', 'number', 'integer', 'boolean'] %}{{ spec.type }}\
         {% elif spec.type == 'array' %}list[{{ kind(spec['items']) }}]{% elif spec.type == 'object' %}dict[{{ kind(spec.additionalProperties) }}]\
         {% else %}Union[{% for t in spec.type %}{{ kind({'type': t}) }},{% endfor %}]{% endif %}{% endmacro %}\
         {% for t in tools %}{{ t.function.name + '(' }}{% for name, spec in t.function.parameters.properties.items() %}\
         {{ name + ': ' + kind(spec) }},{% endfor %}{{ ') - ' + t.function.description }}{% endfor %}\
         {% for m in messages %}<{{ m.role }}>{% if m.tool_calls is defined %}{% for c in m.tool_calls %}\
         {{ c.function|tojson }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ),
    (
        "the first call of several",
        "{% for t in tools %}{{ '// ' + t.function.description + t.function.name }}{% endfor %}{% for m in messages %}\
         <{{ m.role }}>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function|tojson }}{% endif %}{% endfor %}",
    ),
    (
        "a text or a call, and never neither",
        "{{ tools|tojson if tools }}{% for m in messages %}<{{ m.role }}>{% if m.content %}{{ m.content }}\
         {% elif m.role == 'assistant' %}{% if not m.tool_calls %}{{ raise_exception('neither') }}{% endif %}\
         {% for c in m.tool_calls %}{{ c.function|tojson }}{% endfor %}{% endif %}{% endfor %}",
    ),
    (
        "turns without a system, no tools, no calls",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}\
         {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
         <{{ m.role }}>{{ m.content|trim }}{% endfor %}",
    ),
    (
        "no word of a system, results of the user alone",
        "{{ tools|tojson if tools }}{% for m in messages if m.role in ['user', 'assistant'] %}<{{ m.role }}>{{ m.content }}\
         {% for c in m.tool_calls %}{{ c.function|tojson }}{% endfor %}{% endfor %}",
    ),
];

#[test]
fn every_part_stands_in_the_prompt_whatever_the_template_shows_by_itself() {
    let vocab = qwen();
    for (name, source) in FORMS {
        let faults = faults(&vocab, source);
        assert!(faults.is_empty(), "{name}: {faults:#?}");
    }
}

#[test]
fn what_no_form_shows_is_named() {
    let only = "{% for m in messages if m.role == 'user' %}{{ m.content[:1] }}{% endfor %}";
    let error = text_of(&qwen(), only, "u:one").unwrap_err();
    assert!(matches!(&error, PromptError::Lost(what) if what == "a user message's text"), "{error}");
}

#[test]
fn calls_keep_the_templates_own_form_where_it_can_show_them_one_by_one() {
    let text = text_of(&qwen(), FORMS[0].1, "u:q a:said+x+y t:y=2 t:x=1 u:r").unwrap();
    let call = |argument: &str| format!("{{\"name\": \"zqfind\", \"arguments\": {{\"s\": \"{argument}\"}}}}");
    let expected = format!("<user>q<assistant>said{}<tool>1{}<tool>2<user>r", call("x"), call("y"));
    assert_eq!(text, expected);
}

#[test]
fn a_past_thought_is_cut_off_at_the_models_own_marks() {
    let own = |open_text, close_text| ThoughtMarks { open: 0, close: 1, open_text, close_text };
    let (mistral, gemma) = (own("[THINK]", "[/THINK]"), own("<|channel>", "<channel|>"));
    for (marks, text, expected) in [
        (Some(mistral), "[THINK]hm[/THINK]yes", (Some("hm"), "yes")),
        (Some(gemma), "<|channel>thought\nhm\n<channel|>yes", (Some("hm"), "yes")),
        (Some(mistral), "<think>\nhm\n</think>\n\nyes", (Some("hm"), "yes")),
        (None, "[THINK]hm[/THINK]yes", (None, "[THINK]hm[/THINK]yes")),
    ] {
        assert_eq!(thought_and_content(&Message::new(Role::Assistant, text), marks), expected, "{text}");
    }
}
