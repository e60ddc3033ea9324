//! A list of Python can be changed, one of the template engine cannot. Where a template changes a list of a namespace, a
//! new list takes its place: `{% set _ = ns.a.append(b) %}` becomes `{% set ns.a = ns.a + [b] %}`. Like every value that
//! gets a name, it passes the check of its size.

use super::scan::{Edit, Placed, Tag, Token};

/// The edits for a tag that changes a list; none where it does not.
pub(super) fn changes(source: &str, tag: &Tag<'_>) -> Option<Vec<Edit>> {
    let tokens = &tag.tokens;
    let sign = |at: usize, own: &str| tokens.get(at).is_some_and(|t| t.depth == 0 && t.token == Token::Sign(own));
    let (first, last) = (tokens.first()?, tokens.last()?);
    let from = match first.token {
        Token::Word("set") if sign(2, "=") => 3,
        Token::Word("do") => 1,
        _ => return None,
    };
    // A name and its attributes, a method, one pair of brackets.
    let open = (from..tokens.len()).find(|at| sign(*at, "("))?;
    let alternates = |(at, t): (usize, &Placed<'_>)| match t.token {
        Token::Word(_) => at % 2 == 0,
        Token::Sign(".") => at % 2 == 1,
        _ => false,
    };
    let whole = open >= from + 5 && tokens[from..open].iter().enumerate().all(alternates);
    let closed = sign(tokens.len() - 1, ")") && tokens[open + 1..tokens.len() - 1].iter().all(|t| t.depth > 0);
    let Token::Word(method) = tokens[open - 1].token else { return None };
    if !whole || !closed {
        return None;
    }
    let (dot, path) = (tokens[open - 2].start, &source[tokens[from].start..tokens[open - 3].end]);
    let given = source[tokens[open].end..last.start].trim();
    let begun = |text: String| match from {
        1 => (first.start, tokens[from].start, format!("set {text}")),
        _ => (tokens[1].start, tokens[from].start, text),
    };
    match (method, given) {
        ("append" | "extend", "") => None,
        ("append", _) => Some(vec![
            begun(format!("{path} = ((")),
            (dot, tokens[open].end, " + [".to_owned()),
            (last.start, last.end, "])|list)|__bounded ".to_owned()),
        ]),
        ("extend", _) => Some(vec![
            begun(format!("{path} = ((")),
            (dot, tokens[open].end, " + (".to_owned()),
            (last.start, last.end, "))|list)|__bounded ".to_owned()),
        ]),
        ("pop", "" | "-1" | "0") => {
            let (taken, left) = if given == "0" { ("0", "1:") } else { ("-1", ":-1") };
            let rest = format!("{path} = ({path}[{left}]|list)|__bounded ");
            let Token::Word(name) = tokens[1].token else { return None };
            Some(vec![match from {
                1 => (first.start, last.end, format!("set {rest}")),
                _ => (tokens[1].start, last.end, format!("{name} = ({path}[{taken}])|__bounded %}}{{% set {rest}")),
            }])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;

    #[test]
    fn a_change_of_a_list_is_a_new_list() {
        for (source, expected) in [
            ("{%- set _ = n.a.append(b * 2) -%}", "{%- set n.a = ((n.a + [b |__times( 2)])|list)|__bounded  -%}"),
            ("{% do n.a.b.extend([b]) %}", "{% set n.a.b = ((n.a.b + ([b]))|list)|__bounded  %}"),
            (
                "{%- set x = n.a.pop(0) -%}",
                "{%- set x = (n.a[0])|__bounded %}{% set n.a = (n.a[1:]|list)|__bounded  -%}",
            ),
            ("{% do n.a.pop() %}", "{% set n.a = (n.a[:-1]|list)|__bounded  %}"),
            ("{% set x = n.a.get('k') %}", "{% set x = ( n.a.get('k') )|__bounded %}"),
            ("{% set x = a.append(b) %}", "{% set x = ( a.append(b) )|__bounded %}"),
            ("{% set x = n.a.append(b) or c %}", "{% set x = ( n.a.append(b) or c )|__bounded %}"),
            (
                "{% set x %}{% endset %}{% do f() %}{{ n.a.pop() }}",
                "{% set x %}{% endset %}{% do f() %}{{ n.a.pop() }}",
            ),
        ] {
            assert_eq!(scan(source).unwrap(), expected);
        }
    }
}
