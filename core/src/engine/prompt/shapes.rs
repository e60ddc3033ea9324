//! Conversations of every shape by templates of every form: each part stands in the prompt. By hand, those of a folder:
//! `CHIMERE_TEMPLATES=FOLDER cargo test -p chimere-core --lib -- --ignored shapes_by_the_templates_of_a_folder --nocapture`.

use serde_json::{Value, json};

use super::super::tokenizer::tests::qwen;
use super::super::tool_prompt::ToolWays;
use super::super::vocab::Vocab;
use super::*;
use crate::turn::ToolCall;

/// What a prompt of our own tells of tools.
const OWN: &str = "You can call these functions";

/// `s:`, `u:`, `a:` and `t:` begin messages. Behind the text of an assistant's, each `+x` calls a tool with the argument
/// `x`, and a result `t:x=text` answers that call.
fn conversation(text: &str) -> Vec<Message> {
    let message = |part: &str| {
        let (role, content) = part.split_once(':').unwrap();
        match role {
            "s" => Message::new(Role::System, content),
            "u" => Message::new(Role::User, content),
            "a" => {
                let mut parts = content.split('+');
                let mut message = Message::new(Role::Assistant, parts.next().unwrap());
                let call = |argument: &str| {
                    let arguments = if argument.is_empty() { json!({}) } else { json!({"s": argument}) };
                    ToolCall { id: format!("call_{argument}"), name: "zqfind".into(), arguments }
                };
                message.tool_calls = parts.map(call).collect();
                message
            }
            _ => {
                let (id, result) = content.split_once('=').unwrap();
                Message { tool_call_id: Some(format!("call_{id}")), ..Message::new(Role::Tool, result) }
            }
        }
    };
    text.split(' ').map(message).collect()
}

fn tool(more: Value) -> Value {
    let mut function = json!({"name": "zqfind"});
    function.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"type": "function", "function": function})
}

fn usual() -> Value {
    let properties = json!({"s": {"type": "string", "description": "zqpar"}});
    tool(
        json!({"description": "zqdesc", "parameters": {"type": "object", "properties": properties, "required": ["s"]}}),
    )
}

/// With tools or without.
const SHAPES: &[(&str, bool)] = &[
    ("u:zqone", true),
    ("s:zqsys u:zqone", true),
    ("s:zqsys", false),
    ("a:zqone", false),
    ("s:zqsys u:zqone a:zqtwo u:zqthree", false),
    ("u:zqone a:zqtwo s:zqsys u:zqthree", false),
    ("u:zqone u:zqtwo", false),
    ("u:zqone a: u:zqtwo", false),
    ("s:zqsys u:zqone a:+zqarg t:zqarg=zqres", true),
    ("s:zqsys u:zqone a:+ t:=zqres", true),
    ("s:zqsys a:+zqarg t:zqarg=zqres", true),
    ("u:zqone a:+zqarg t:zqarg=zqres a:zqtwo u:zqthree", true),
    ("u:zqone a:+zqarg t:zqarg=zqres u:zqthree", true),
    ("u:zqone a:+zqarg t:zqarg=zqres u:zqthree", false),
    ("s:zqsys u:zqone a:zqsaid+zqarg t:zqarg=zqres", true),
    ("u:zqone a:zqsaid+zqarg t:zqarg=zqres a:zqtwo u:zqthree", true),
    ("u:zqone a:+zqarg+zqbrg t:zqarg=zqres t:zqbrg=zqout", true),
    ("s:zqsys u:zqone a:zqsaid+zqarg+zqbrg t:zqbrg=zqout t:zqarg=zqres u:zqthree", true),
    ("u:zqone a:+zqarg t:zqarg= a:+zqbrg t:zqbrg=zqout", true),
];

fn definitions() -> Vec<Value> {
    let typed = json!({"type": "object", "properties": {"s": {"type": "string"}}});
    let untyped = json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "b": {"$ref": "#/$defs/x"}, "c": {"type": ["string", "null"]}, "d": {}, "e": {"enum": [1, "a"]},
        "f": {"type": "array", "items": {}}, "g": {"type": "null"}, "h": true}, "$defs": {"x": {"type": "object"}}});
    vec![
        usual(),
        tool(json!({})),
        tool(json!({"parameters": typed})),
        tool(json!({"description": null, "parameters": typed})),
        tool(json!({"description": "zqdesc"})),
        tool(json!({"description": "zqdesc", "parameters": null})),
        tool(json!({"description": "zqdesc", "parameters": {}})),
        tool(json!({"description": "zqdesc", "parameters": {"type": "object"}})),
        tool(json!({"description": "zqdesc", "parameters": untyped})),
    ]
}

fn shown(
    vocab: &dyn Vocab,
    template: &ChatTemplate,
    ways: &ToolWays,
    shape: &str,
    tools: Vec<Value>,
) -> Result<String, String> {
    let messages = conversation(shape);
    let chat =
        ChatInput { messages, tools, add_generation_prompt: true, date: "2026-01-31".into(), ..ChatInput::default() };
    let own = ways.prepare(&chat);
    let prompt = render(vocab, template, own.as_ref().unwrap_or(&chat)).map_err(|error| error.to_string())?;
    let words = shape.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.starts_with("zq"));
    let named = if chat.tools.is_empty() && !shape.contains('+') { None } else { Some("zqfind") };
    let lost: Vec<&str> = words.chain(named).filter(|word| !prompt.text.contains(word)).collect();
    if lost.is_empty() { Ok(prompt.text) } else { Err(format!("{lost:?} is missing in {}", prompt.text)) }
}

fn text_of(vocab: &dyn Vocab, source: &str, shape: &str) -> Result<String, PromptError> {
    let chat = ChatInput { messages: conversation(shape), ..ChatInput::default() };
    render(vocab, &ChatTemplate::load(source).unwrap(), &chat).map(|prompt| prompt.text)
}

/// What goes wrong by one template.
fn faults(vocab: &dyn Vocab, source: &str, told: bool) -> Vec<String> {
    let template = ChatTemplate::load(source).unwrap();
    let ways = ToolWays::of(vocab, Some(&template));
    let mut faults = Vec::new();
    for (shape, with_tools) in SHAPES {
        let tools = if *with_tools { vec![usual()] } else { Vec::new() };
        match shown(vocab, &template, &ways, shape, tools) {
            Err(why) => faults.push(format!("{shape}: {why}")),
            Ok(text) if told && ways.shows_calls && text.contains("<tool_response>\nzqres\n</tool_response>") => {
                println!("    as text: {shape}");
            }
            Ok(_) => {}
        }
    }
    for tool in definitions() {
        match shown(vocab, &template, &ways, "u:zqone", vec![tool.clone()]) {
            Err(why) => faults.push(format!("{tool}: {why}")),
            Ok(text) if ways.shows_tools && text.contains(OWN) => faults.push(format!("{tool} is not shown natively")),
            Ok(_) => {}
        }
    }
    faults
}

#[test]
#[ignore = "needs a folder of templates"]
fn shapes_by_the_templates_of_a_folder() {
    let folder = std::env::var("CHIMERE_TEMPLATES").expect("CHIMERE_TEMPLATES names a folder of templates");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    assert!(!files.is_empty(), "there is no template in that folder");
    let (vocab, mut wrong) = (qwen(), 0);
    for path in &files {
        let source = std::fs::read_to_string(path).unwrap();
        println!("{}", path.file_stem().unwrap().to_string_lossy());
        if let Err(error) = text_of(&vocab, &source, "u:one a:two u:three") {
            println!("    takes no past reply: {error}");
            continue;
        }
        for fault in faults(&vocab, &source, true) {
            println!("    WRONG: {fault}");
            wrong += 1;
        }
    }
    assert_eq!(wrong, 0);
}

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
         {% elif spec.type == 'array' %}list[{{ kind(spec['items']) }}]{% elif spec.type == 'object' %}dict\
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
        let faults = faults(&vocab, source, false);
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
