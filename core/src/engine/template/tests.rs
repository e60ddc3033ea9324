//! Rendering against Hugging Face's own environment, and hostile templates.

use serde::Deserialize;
use serde_json::json;

use super::*;

const QWEN: &str = include_str!("../../../../tests/golden/data/template/Qwen3.5-4B.jinja");

/// A conversation with the text, or the message of the exception, that jinja2 gave.
#[derive(Deserialize)]
struct Case {
    name: String,
    context: Json,
    text: Option<String>,
    error: Option<String>,
}

fn cases(text: &str) -> Vec<Case> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn qwen_is_rendered_byte_for_byte() {
    let template = ChatTemplate::load(QWEN).unwrap();
    let cases = cases(include_str!("../../../../tests/golden/data/template/Qwen3.5-4B.json"));
    assert_eq!(cases.len(), 16);
    for case in cases {
        match (template.render(case.context, "2026-01-31"), case.text, case.error) {
            (Ok(found), Some(expected), _) => assert_eq!(found, expected, "{}", case.name),
            (Err(TemplateError::Raised(found)), None, Some(expected)) => assert_eq!(found, expected, "{}", case.name),
            (found, expected, error) => panic!("{}: {found:?}, not {expected:?} {error:?}", case.name),
        }
    }
}

/// The plain text of a loop's body is charged in each turn, whether it is written or not: long conversations of short
/// texts have room for it, and a template that writes it all is still held.
#[test]
fn a_conversation_of_as_many_messages_as_a_request_may_have_is_rendered() {
    let talk = |count: usize| {
        let turn = |n: usize| json!({"role": (["user", "assistant"][n % 2]), "content": format!("{n}")});
        json!({"messages": (0..count).map(turn).collect::<Vec<_>>(), "add_generation_prompt": true})
    };
    let qwen = ChatTemplate::load(QWEN).unwrap();
    for count in [175, 4_095] {
        let text = qwen.render(talk(count), "").unwrap();
        assert_eq!(text.matches("<|im_start|>").count(), count + 1);
    }
    // Some make a list of their own of them, message by message.
    let own = "{% set ns = namespace(own=[]) %}{% for m in messages %}{% if m.role != 'system' %}\
        {% set ns.own = ns.own + [m] %}{% endif %}{% endfor %}{% for m in ns.own %}{{ m.content }},{% endfor %}";
    assert_eq!(ChatTemplate::load(own).unwrap().render(talk(1_500), "").unwrap().matches(',').count(), 1_500);
    let wide =
        "{% for m in messages %}{% if m.content == 'x' %}".to_owned() + &"y".repeat(9_000) + "{% endif %}{% endfor %}";
    assert_eq!(ChatTemplate::load(&wide).unwrap().render(talk(4_095), "").unwrap(), "");
    let written = wide.replace("== 'x'", "!= 'x'");
    let refused = ChatTemplate::load(&written).unwrap().render(talk(4_095), "");
    assert!(matches!(refused, Err(TemplateError::TooLarge { .. })), "{refused:?}");
}

#[test]
fn lists_of_a_namespace_change_as_in_python() {
    let fill = "{% set n = namespace(x=[]) %}{% macro m(v) %}{% set _ = n.x.append(v) %}{% endmacro %}\
        {% for i in range(3) %}{{ m('a' * i) }}{% endfor %}{% do n.x.extend([7, n.x|length]) %}";
    for (end, expected) in [
        ("{{ n.x }}", "['', 'a', 'aa', 7, 3]"),
        ("{% set a = n.x.pop(0) %}{% set b = n.x.pop() %}{{ a }}-{{ b }} {{ n.x|tojson }}", "-3 [\"a\", \"aa\", 7]"),
        ("{% for i in range(5) %}{% do n.x.pop(-1) %}{% endfor %}{{ 'some' if n.x else 'none' }}", "none"),
        ("{% for i in range(3) %}{% do n.x.append(i) if i else 0 %}{% endfor %}", ""),
    ] {
        let template = ChatTemplate::load(&format!("{fill}{end}"));
        match template.and_then(|template| template.render(json!({}), "")) {
            Ok(text) => assert_eq!(text, expected, "{end}"),
            // What is more than a change of a list is none.
            Err(error) => assert!(expected.is_empty(), "{end}: {error}"),
        }
    }
}

/// Templates that would exhaust stack, memory or time, by the way they do it.
fn attacks() -> Vec<(&'static str, String)> {
    let chain = |unit: &str, n: usize| format!("{{{{ {}1 }}}}", unit.repeat(n));
    let nested = |open: &str, close: &str, n: usize| format!("{{{{ {}1{} }}}}", open.repeat(n), close.repeat(n));
    let doubling = |step: &str| {
        format!(
            "{{% set n = namespace(x='aaaaaaaaaaaaaaaa') %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ n.x }}}}"
        )
    };
    let mut all = vec![
        ("5,500 nested ifs", "{% if 1 %}".repeat(5500) + &"{% endif %}".repeat(5500)),
        ("5,500 elifs", format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(5500))),
        ("nested loops", "{% for a in [1,2,3,4,5,6,7,8,9] %}".repeat(60) + &"{% endfor %}".repeat(60)),
        ("nested brackets", nested("(", ")", 30_000)),
        ("nested lists", nested("[", "]", 30_000)),
        ("nested maps", nested("{1:", "}", 30_000)),
        ("nested calls", nested("range(", ")", 10_000)),
        ("chain of not", chain("not ", 3_300)),
        ("chain of plus", chain("1+", 6_500)),
        ("chain of tildes", chain("'a'~", 6_500)),
        ("chain of minus", chain("-", 13_000)),
        ("chain of attributes", format!("{{{{ a{} }}}}", ".a".repeat(6_500))),
        ("chain of filters", format!("{{{{ a{} }}}}", "|e".repeat(6_500))),
        ("chain of tests", format!("{{{{ a{} }}}}", " is defined".repeat(6_500))),
        ("chain of else", format!("{{{{ 1{} }}}}", " if a else 1".repeat(6_500))),
        ("large range", "{% for i in range(1000000000) %}x{% endfor %}".into()),
        ("long loops", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".into()),
        ("lists of work", "{% for i in range(9999) %}{% if range(99999)|list|length %}{% endif %}{% endfor %}".into()),
        ("endless macro", "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}".into()),
        ("two endless macros", "{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}".into()),
        ("doubling macro", "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('aaaaaaaa') }}".into()),
        ("doubling by replace", "{% set x = 'a' * 60000 %}{{ x|replace('a', x)|replace('a', x) }}".into()),
        ("doubling by join", "{% set x = 'a' * 60000 %}{{ (x|list)|join(x) }}".into()),
        ("doubling by JSON", format!("{{{{ '\"'{} }}}}", "|tojson".repeat(300))),
        ("repetition", "{{ 'a' * 90000000 }}".into()),
        ("repetition of a list", "{% set x = (1, 2) * 90000000 %}".into()),
        ("indent", "{{ 'a\nb'|indent(900000000) }}".into()),
        ("width", "{{ '%0900000000d'|format(1) }}".into()),
        ("method width", "{{ 'a'.center(900000000) }}".into()),
        ("nested value", "{% set n = namespace(x=[]) %}{% for i in range(90000) %}{% set n.x = [n.x] %}{% endfor %}".into()),
        ("growing list", "{% set n = namespace(x=[], s='a' * 60000) %}{% for i in range(90000) %}{% set n.x = n.x + [n.s ~ i] %}{% endfor %}".into()),
        ("appending", "{% set n = namespace(x=[], s='a' * 60000) %}{% for i in range(90000) %}{% set _ = n.x.append(n.s ~ i) %}{% endfor %}".into()),
        ("a list within itself", doubling("{% do n.x.append(n.x) %}").replace("x='aaaaaaaaaaaaaaaa'", "x=[1]")),
        ("a namespace within its list", doubling("{% do n.x.append(n) %}").replace("x='aaaaaaaaaaaaaaaa'", "x=[1]").replace("n.x }}", "n.x|tojson }}")),
        ("a namespace within itself", "{% set n = namespace() %}{% set n.x = n %}{{ n|tojson }}".into()),
        ("captured text", format!("{{% set x %}}{{% for i in range(90000) %}}{}{{% endfor %}}{{% endset %}}", "long ".repeat(9_000))),
        ("text of a macro", format!("{{% macro m() %}}{}{{% endmacro %}}{{% set x %}}{{% for i in range(90000) %}}{{{{ m() }}}}{{% endfor %}}{{% endset %}}", "long ".repeat(9_000))),
        ("nested doubling", format!("{}{}", "{% for a in [a ~ a ~ 'aaaaaaaaaaa'] %}".repeat(60), "{% endfor %}".repeat(60))),
        ("doubling in with", format!("{}{}", "{% with a = a ~ a ~ 'aaaaaaaaaaa' %}".repeat(60), "{% endwith %}".repeat(60))),
        ("width of an operator", "{{ '%900000000d' % 1 }}".into()),
        ("precision of an operator", "{{ '%.900000000f' % 1 }}".into()),
        ("doubling by an operator", doubling("{% set n.x = '%s%s' % (n.x, n.x) %}")),
        ("slices", "{{ [1]|slice(900000000)|list }}".into()),
        ("batches", "{{ [1]|batch(900000000, 'x')|list }}".into()),
        ("filled up", "{{ 'a'|center(900000000) }}{{ 'a'.zfill(900000000) }}".into()),
        ("a product of brackets", "{{ 'a' * (90000 * 90000) }}".into()),
        ("another template", "{% include '/etc/passwd' %}".into()),
        ("import", "{% import '/etc/passwd' as x %}".into()),
        ("large source", "x".repeat(SOURCE_BYTES_MAX + 1)),
    ];
    for step in [
        "{% set n.x = n.x ~ n.x %}",
        "{% set n.x = n.x + n.x %}",
        "{% set n.x = [n.x, n.x]|join %}",
        "{% set n.x = n.x|replace('a', 'aa') %}",
        "{% set n.x = '{}{}'.format(n.x, n.x) %}",
        "{% set n.x = n.x * 2 %}",
        "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}",
        "{% set n.x = [n.x] + [n.x] %}",
    ] {
        all.push(("doubling", doubling(step)));
    }
    all
}

#[test]
fn hostile_templates_are_refused_at_load() {
    for (name, source) in attacks() {
        // One that fails at every conversation, within all bounds, harms nobody: its model is hosted, and no chat.
        let error = match vet(&source) {
            Ok(()) => takes_none(&ChatTemplate::load(&source).unwrap()).expect(name),
            Err(error) => error.to_string(),
        };
        println!("{name}: {error}");
        // Counted bounds stop it, on a machine of any speed.
        assert!(!error.contains(&format!("{}time", python::OVER)), "only the clock stopped {name}");
    }
    // Nothing of all this was ever held in memory.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().filter(|l| l.starts_with("VmHWM")).collect::<String>());
}

/// A template that turns hostile only for some conversations is stopped while rendering.
#[test]
fn a_hidden_attack_is_stopped_when_it_starts() {
    let source = "{% set n = namespace(x='a') %}{% if messages[0].content == 'now' %}{% for i in range(40) %}\
                  {% set n.x = n.x ~ n.x %}{% endfor %}{% endif %}{{ n.x }}";
    vet(source).unwrap();
    let template = ChatTemplate::load(source).unwrap();
    let context = |text: &str| json!({"messages": [{"role": "user", "content": text}]});
    assert_eq!(template.render(context("not now"), "").unwrap(), "a");
    assert!(matches!(template.render(context("now"), ""), Err(TemplateError::Limit(_))));
}

#[test]
fn long_conversations_are_within_the_limits() {
    let turn = |i: usize| json!({"role": if i.is_multiple_of(2) { "user" } else { "assistant" }, "content": "word ".repeat(200)});
    let messages: Vec<Json> = (0..2001).map(turn).collect();
    let text = ChatTemplate::load(QWEN).unwrap().render(json!({"messages": messages}), "").unwrap();
    assert!(text.len() > 2_000_000);
}

#[test]
fn the_date_is_the_request_s() {
    let template = ChatTemplate::load("{{ strftime_now('%d %b %Y') if strftime_now is defined else 'none' }}").unwrap();
    assert_eq!(template.render(json!({}), "2026-11-20").unwrap(), "20 Nov 2026");
    assert_eq!(template.render(json!({}), "").unwrap(), "none");
    assert_eq!(template.render(json!({}), "yesterday").unwrap(), "none");
}

#[test]
fn python_is_imitated() {
    let cases = [
        (
            "{{ {'a': 1.0, 'b': [none, true], 'c': 'é\\n<\\u0007'}|tojson }}",
            "{\"a\": 1.0, \"b\": [null, true], \"c\": \"é\\n<\\u0007\"}",
        ),
        ("{{ [1, {'a': []}]|tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": []\n  }\n]"),
        (
            "{{ {'b': 1, 'a': 'é'}|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
            "{\"a\":\"\\u00e9\",\"b\":1}",
        ),
        ("{{ none is iterable }}{{ [] is iterable }}{{ '' is iterable }}", "FalseTrueTrue"),
        ("{{ '-' * 3 }}{{ 2 * 3 }}{{ 1.5 * 2 }}", "---63.0"),
        ("{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(1, true) }}", "a\n  b\n\n  c| a\n b"),
        ("{{ ' x '.strip() }}{{ 'a-b'.split('-')[1] }}{{ 'aXa'.replace('a', 'b', 1) }}", "xbbXa"),
        ("{{ missing|length }}", "0"),
        // Numbers, lists and mappings as `str` writes them.
        ("{{ 1e-05 }} {{ 1e16|string }} {{ [0.5, 1e22]|join(' ') }} {{ 100.0 }}", "1e-05 1e+16 0.5 1e+22 100.0"),
        (
            "{{ {'a': [1, true, none], \"it's\": 'x\\ny', 'q': 'é\\u0007'} }}",
            "{'a': [1, True, None], \"it's\": 'x\\ny', 'q': 'é\\x07'}",
        ),
        // Operators and filters that templates use.
        ("{{ '%s has %d of %5.1f%% %r' % ('a', 3, 2.25, 'x') }}", "a has 3 of   2.2% 'x'"),
        ("{{ '%s' % 'x' ~ 7 % 4 }}{{ '%03d|%-4s|%+d|%x' % (7, 'a', 5, 255) }}", "x3007|a   |+5|ff"),
        ("{{ '%(a)s-%(b)s' % {'a': 1, 'b': 2} }}{{ '%s-%s'|format(1, 'b') }}", "1-21-b"),
        (
            "{{ ' ' * (1 + 1) }}|{{ 2 * 'abc'|length }}|{{ -2 * 3 + 1 }}|{{ 2 * 3 * 4 }}|{{ 1 + 2 * -3 }}",
            "  |6|-5|24|-5",
        ),
        ("{{ [1, 2.5]|sum }}{{ [{'a': 1}, {'a': 2}]|sum('a') }}", "3.53"),
        ("{{ [1, 2, 3]|batch(2, 'x')|list }}{{ [1, 2, 3]|slice(2)|list }}", "[[1, 2], [3, 'x']][[1, 2], [3]]"),
        (
            "{% for g in [{'k': 'b', 'v': 1}, {'k': 'a', 'v': 2}]|groupby('k') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}",
            "a1b1",
        ),
        (
            "{{ 'foo bar baz qux'|truncate(9, leeway=0) }}{{ 'foo bar baz qux'|truncate(9, true, leeway=0) }}",
            "foo...foo ba...",
        ),
        (
            "{{ 'ab'|center(5) }}|{{ 'ab'.center(6, '-') }}|{{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3) }}",
            "  ab |--ab--|a..  a",
        ),
        ("{{ 'a-b-c'.rsplit('-', 1) }}{{ ' a b  c '.rsplit(none, 1) }}", "['a-b', 'c'][' a b', 'c']"),
        (
            "{{ 'a=b=c'.partition('=')[2] }}{{ 'a=b=c'.rpartition('=')[0] }}{{ 'x'.partition('=')|join('|') }}",
            "b=ca=bx||",
        ),
        (
            "{{ 'pre-x'.removeprefix('pre-') }}{{ 'x.md'.removesuffix('.md') }}{{ '-7'.zfill(4) }}{{ '7'.zfill(2) }}",
            "xx-00707",
        ),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}", "321"),
    ];
    for (source, expected) in cases {
        assert_eq!(ChatTemplate::load(source).unwrap().render(json!({}), "").unwrap(), expected, "{source}");
    }
}

/// The parent's side of vetting apart, with programs that stand for the child.
#[test]
fn vetting_apart_judges_by_exit_status_and_time() {
    let shell = |script: &str, source: &str| vet_apart("/bin/sh".as_ref(), &["-c", script], source);
    shell("test $(wc -c) = 3", "abc").unwrap();
    let said = shell("cat; exit 3", "bad news").unwrap_err().to_string();
    assert!(said.ends_with("bad news"), "{said}");
    assert!(shell("kill -9 $$", "x").unwrap_err().to_string().contains("signal"));
    assert!(shell("sleep 30", &"x".repeat(SOURCE_BYTES_MAX)).unwrap_err().to_string().contains("5000 ms"));
    assert!(matches!(shell("true", &"x".repeat(SOURCE_BYTES_MAX + 1)), Err(TemplateError::TooLarge { .. })));
    assert!(matches!(vet_apart("/nowhere/at/all".as_ref(), &[], "x"), Err(TemplateError::Failed(_))));
}

/// What a broken download or a careless edit makes of a template.
#[test]
fn three_hundred_damaged_templates_are_judged() {
    let mut state = 7u64;
    let mut next = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let noise =
        ["{%", "%}", "{{", "}}", "{#", "'", "\"", "(", ")", "[", "{% if x %}", "{% endfor %}", "|", "\\", "\0", "é"];
    let (mut refused, mut taken) = (0, 0);
    for i in 0..300 {
        let mut source = QWEN.to_owned();
        let at = QWEN.floor_char_boundary(next(QWEN.len()));
        match i % 3 {
            0 => source.truncate(at),
            1 => source.insert_str(at, noise[next(noise.len())]),
            _ => {
                let end = QWEN.floor_char_boundary((at + 1 + next(40)).min(QWEN.len()));
                source.replace_range(at..end, "");
            }
        }
        match vet(&source) {
            Ok(()) => taken += 1,
            Err(error) => {
                let message = error.to_string();
                assert!(message.len() > 20 && !message.contains("panicked"), "{message}");
                refused += 1;
            }
        }
    }
    println!("{refused} refused, {taken} still usable");
    assert!(refused >= 100 && taken >= 20, "{refused} refused, {taken} taken");
}

/// Each field of a format may say the same text, which may be a long one: the size is looked at while it is made.
#[test]
fn a_format_makes_no_more_than_any_other_operator() {
    let source = format!("{{{{ '{}' % {{'a': text}} }}}}", "%(a)s".repeat(900));
    let template = ChatTemplate::load(&source).unwrap();
    let found = template.render(json!({"text": "x".repeat(32 << 20)}), "");
    assert!(matches!(found, Err(TemplateError::Limit(_))), "{:?}", found.map(|text| text.len()));
}
