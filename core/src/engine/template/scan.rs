//! Reads a template's source before the template engine does. It refuses what would exhaust the engine's stack,
//! and adds the checks that keep a rendering bounded. The engine's own limits stop loops. They stop neither a
//! long chain of operators (its parser and compiler recurse) nor a string that doubles (nothing counts bytes).
//! Therefore:
//!
//! - nesting of tags and brackets, and operators in one tag, are limited here;
//! - every value that gets a name (set, for, macro and call arguments, with) passes the filter `__bounded`,
//!   which sums its size;
//! - every loop iteration and macro call passes it too, with the bytes of plain text in its body. There time is
//!   checked and captured text is counted;
//! - `a * b` becomes `a|__times(b)`, which looks at the size before it makes the result, and `'…' % b` likewise.
//!
//! `{% generation %}` tags, which only mark text for training, become `{% if true %}`.

use super::{TemplateError, lists};

/// Largest source, bytes.
pub const SOURCE_BYTES_MAX: usize = 128 << 10;
/// Tags open at once; an `elif` counts, for it nests in the syntax tree.
const TAGS_OPEN_MAX: usize = 100;
/// Brackets open at once in one tag.
const BRACKETS_OPEN_MAX: usize = 32;
/// Operators in one tag.
const OPERATORS_MAX: usize = 400;

/// One piece of an expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    Text,
    Word(&'a str),
    Sign(&'a str),
}

/// A token with its place in the source and the brackets open around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub(super) token: Token<'a>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) depth: usize,
}

/// A tag: `{{ … }}` or `{% … %}`.
pub(super) struct Tag<'a> {
    statement: bool,
    pub(super) tokens: Vec<Placed<'a>>,
    /// Where the inside ends, and the mark that ends it (`-%}` …).
    inside_end: usize,
    close: &'a str,
}

/// A replacement: from, to, text.
pub(super) type Edit = (usize, usize, String);

/// A body that repeats or is captured, with the place of its check in the output.
struct Body {
    /// Index into the output's parts.
    check: usize,
    /// What is checked besides the text.
    values: String,
    close: String,
    text_bytes: usize,
}

fn refuse<T>(line: usize, why: impl std::fmt::Display) -> Result<T, TemplateError> {
    Err(TemplateError::Refused(format!("line {line}: {why}")))
}

/// The source to compile, or why it is refused.
pub(super) fn scan(source: &str) -> Result<String, TemplateError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(TemplateError::TooLarge { what: "source", bytes: source.len(), limit: SOURCE_BYTES_MAX });
    }
    let mut scanner = Scanner { source, parts: Vec::new(), open: Vec::new() };
    scanner.run()?;
    Ok(scanner.parts.concat())
}

struct Scanner<'a> {
    source: &'a str,
    parts: Vec<String>,
    /// Open tags by name; a body where text is counted has one.
    open: Vec<(&'a str, Option<Body>)>,
}

impl<'a> Scanner<'a> {
    fn run(&mut self) -> Result<(), TemplateError> {
        let mut at = 0;
        while let Some((start, mark)) = next_mark(self.source, at) {
            self.text(at, start);
            at = match mark {
                b'#' => match self.source[start + 2..].find("#}") {
                    Some(len) => start + 2 + len + 2,
                    None => return refuse(self.line(start), "a comment does not end"),
                },
                _ => self.tag(start, mark == b'%')?,
            };
            if mark == b'#' {
                self.parts.push(self.source[start..at].to_owned());
            }
        }
        self.text(at, self.source.len());
        match self.open.last() {
            Some((name, _)) => refuse(self.line(self.source.len()), format!("\"{name}\" does not end")),
            None => Ok(()),
        }
    }

    fn line(&self, at: usize) -> usize {
        self.source[..at].bytes().filter(|b| *b == b'\n').count() + 1
    }

    /// Plain text: counted for every body it is in, since each may repeat.
    fn text(&mut self, start: usize, end: usize) {
        self.parts.push(self.source[start..end].to_owned());
        for body in self.open.iter_mut().filter_map(|(_, body)| body.as_mut()) {
            body.text_bytes += end - start;
        }
    }

    /// Copies the tag at `start`, changed where needed; returns where it ends.
    fn tag(&mut self, start: usize, statement: bool) -> Result<usize, TemplateError> {
        if statement && let Some(end) = raw_end(self.source, start) {
            self.text(start, end);
            return Ok(end);
        }
        let tag = self.read(start, statement)?;
        let end = tag.inside_end + tag.close.len();
        let line = self.line(start);
        let operators = tag.tokens.iter().filter(|t| is_operator(t.token)).count();
        if operators > OPERATORS_MAX {
            return refuse(line, format!("{operators} operators in one tag, over the limit of {OPERATORS_MAX}"));
        }
        let mut edits = times(&tag).or_else(|why| refuse(line, why))?;
        let name = match tag.tokens.first() {
            Some(Placed { token: Token::Word(name), .. }) if tag.statement => *name,
            _ => "",
        };
        let (mut body, changes) = (None, lists::changes(self.source, &tag));
        match name {
            "include" | "import" | "from" | "extends" | "block" | "autoescape" => {
                return refuse(line, format!("\"{name}\" is not for chat templates"));
            }
            "generation" | "endgeneration" => {
                let word = tag.tokens[0];
                edits.push((word.start, word.end, if name == "generation" { "if true" } else { "endif" }.to_owned()));
            }
            "set" | "do" if changes.is_some() => edits.extend(changes.into_iter().flatten()),
            "set" => bind(&tag, |t| t == Token::Sign("="), |_| false, &mut edits),
            "for" => {
                let stops = |t| matches!(t, Token::Word("if" | "recursive"));
                bind(&tag, |t| t == Token::Word("in"), stops, &mut edits);
                body = Some("0".to_owned());
            }
            "macro" | "call" => body = Some(format!("[{}]", arguments(&tag, 1).join(","))),
            "with" => body = Some(format!("[{}]", arguments(&tag, 0).join(","))),
            _ => {}
        }
        self.nest(&tag, name, line)?;
        self.copy(start, end, edits);
        if let (Some(values), Some(top)) = (body, self.open.last_mut()) {
            top.1 = Some(Body { check: self.parts.len(), values, close: tag.close.to_owned(), text_bytes: 0 });
            self.parts.push(String::new());
        }
        Ok(end)
    }

    /// Keeps the stack of open tags.
    fn nest(&mut self, tag: &Tag<'a>, name: &'a str, line: usize) -> Result<(), TemplateError> {
        let block_set = name == "set" && !tag.tokens.iter().any(|t| t.depth == 0 && t.token == Token::Sign("="));
        match name {
            "if" | "for" | "macro" | "call" | "filter" | "with" | "generation" | "elif" => self.open.push((name, None)),
            "set" if block_set => self.open.push((name, None)),
            _ if name.starts_with("end") => loop {
                match self.open.pop() {
                    Some(("elif", _)) if name == "endif" => {}
                    Some((open, body)) if name[3..] == *open => {
                        self.check(body);
                        break;
                    }
                    _ => return refuse(line, format!("\"{name}\" ends nothing")),
                }
            },
            _ => {}
        }
        match self.open.len() > TAGS_OPEN_MAX {
            true => refuse(line, format!("tags are nested deeper than {TAGS_OPEN_MAX}")),
            false => Ok(()),
        }
    }

    /// Writes the check of a body, now that its text is counted.
    fn check(&mut self, body: Option<Body>) {
        if let Some(Body { check, values, close, text_bytes }) = body {
            self.parts[check] = format!("{{% set __checked = {values}|__bounded({text_bytes}) {close}");
        }
    }

    /// Copies source with replacements applied.
    fn copy(&mut self, start: usize, end: usize, mut edits: Vec<Edit>) {
        edits.sort_by_key(|(from, to, _)| (*from, *to));
        let mut at = start;
        for (from, to, text) in edits {
            self.parts.push(self.source[at..from].to_owned());
            self.parts.push(text);
            at = to;
        }
        self.parts.push(self.source[at..end].to_owned());
    }

    /// Splits a tag into tokens, as the template engine will.
    fn read(&self, start: usize, statement: bool) -> Result<Tag<'a>, TemplateError> {
        let source = self.source;
        let bytes = source.as_bytes();
        let mark = if statement { "%}" } else { "}}" };
        let mut at = start + 2 + usize::from(matches!(bytes.get(start + 2), Some(b'-' | b'+')));
        let (mut tokens, mut depth) = (Vec::new(), 0usize);
        while let Some(&byte) = bytes.get(at) {
            if byte.is_ascii_whitespace() {
                at += 1;
                continue;
            }
            if depth == 0 {
                let signed = usize::from(matches!(byte, b'-' | b'+'));
                if bytes[at + signed..].starts_with(mark.as_bytes()) {
                    let close = &source[at..at + signed + 2];
                    return Ok(Tag { statement, tokens, inside_end: at, close });
                }
            }
            let (token, end) = match byte {
                b'"' | b'\'' => match text_end(bytes, at) {
                    Some(end) => (Token::Text, end),
                    None => return refuse(self.line(at), "a text in quotes does not end"),
                },
                _ if is_word(byte) => {
                    let end = at + bytes[at..].iter().take_while(|b| is_word(**b)).count();
                    (Token::Word(&source[at..end]), end)
                }
                _ => {
                    let double = ["==", "!=", "<=", ">=", "//", "**"].iter().any(|s| source[at..].starts_with(s));
                    let end = at + 1 + usize::from(double);
                    (Token::Sign(&source[at..end]), end)
                }
            };
            if matches!(token, Token::Sign(")" | "]" | "}")) {
                depth = depth.saturating_sub(1);
            }
            tokens.push(Placed { token, start: at, end, depth });
            if matches!(token, Token::Sign("(" | "[" | "{")) {
                depth += 1;
            }
            if depth > BRACKETS_OPEN_MAX {
                let line = self.line(at);
                return refuse(line, format!("brackets are nested deeper than {BRACKETS_OPEN_MAX}"));
            }
            at = end;
        }
        refuse(self.line(start), "a tag does not end")
    }
}

/// The next `{{`, `{%` or `{#` from `at` on, and its second character.
fn next_mark(source: &str, at: usize) -> Option<(usize, u8)> {
    let bytes = source.as_bytes();
    let is_mark = |i: &usize| bytes[*i] == b'{' && matches!(bytes.get(i + 1), Some(b'{' | b'%' | b'#'));
    (at..bytes.len()).find(is_mark).map(|i| (i, bytes[i + 1]))
}

/// Whether a byte is part of a name or number; letters beyond ASCII are, as far as this scan goes.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The end of the quoted text at `at`.
fn text_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut i = at + 1;
    while let Some(&byte) = bytes.get(i) {
        match byte {
            b'\\' => i += 1,
            _ if byte == bytes[at] => return Some(i + 1),
            _ => {}
        }
        i += 1;
    }
    None
}

/// If a raw block starts at `start`: where its end tag ends.
fn raw_end(source: &str, start: usize) -> Option<usize> {
    let inside = basic_tag(&source[start + 2..], "raw")? + start + 2;
    let mut at = inside;
    loop {
        at += source.get(at..)?.find("{%")? + 2;
        if let Some(len) = basic_tag(&source[at..], "endraw") {
            return Some(at + len);
        }
    }
}

/// The length of a tag that holds `name` alone, from behind its opening mark.
fn basic_tag(rest: &str, name: &str) -> Option<usize> {
    let inside = rest.strip_prefix(['-', '+']).unwrap_or(rest).trim_start();
    let tail = inside.strip_prefix(name)?.trim_start();
    let tail = tail.strip_prefix(['-', '+']).unwrap_or(tail).strip_prefix("%}")?;
    Some(rest.len() - tail.len())
}

/// Whether a token adds a level to the syntax tree.
fn is_operator(token: Token<'_>) -> bool {
    match token {
        Token::Text => false,
        Token::Word(word) => matches!(word, "and" | "or" | "not" | "is" | "in" | "if" | "else"),
        Token::Sign(sign) => !matches!(sign, "," | ":" | ")" | "]" | "}" | "="),
    }
}

/// Wraps the value of a binding, from behind the first token that `starts` to the first that `stops`.
fn bind<'a>(
    tag: &Tag<'a>,
    starts: impl Fn(Token<'a>) -> bool,
    stops: impl Fn(Token<'a>) -> bool,
    edits: &mut Vec<Edit>,
) {
    let mut outer = tag.tokens.iter().filter(|t| t.depth == 0);
    let Some(start) = outer.find(|t| starts(t.token)).map(|t| t.end) else { return };
    let end = outer.find(|t| stops(t.token)).map_or(tag.inside_end, |t| t.start);
    edits.push((start, start, " (".to_owned()));
    edits.push((end, end, ")|__bounded ".to_owned()));
}

/// Names bound in a macro's or call's brackets (`depth` 1) or by `with` (0).
fn arguments<'a>(tag: &Tag<'a>, depth: usize) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut expects = depth == 0;
    for placed in tag.tokens.iter().skip(1) {
        match placed.token {
            Token::Word(name) if expects && placed.depth == depth => {
                names.push(name);
                expects = false;
            }
            // The bracket that closes the arguments is at the depth outside it.
            Token::Sign(")") if depth == 1 && placed.depth == 0 => break,
            Token::Sign("(") if depth == 1 && placed.depth == 0 => expects = true,
            Token::Sign(",") if placed.depth == depth => expects = true,
            _ => {}
        }
    }
    names
}

/// Replaces multiplications, and `%` behind a text in quotes, by filters, which bind as tightly: `a * b` becomes
/// `a|__times(b)`. What stands to the right is taken whole, with its attributes, brackets and filters.
fn times(tag: &Tag<'_>) -> Result<Vec<Edit>, &'static str> {
    let mut edits = Vec::new();
    for (i, sign) in tag.tokens.iter().enumerate() {
        let before = i.checked_sub(1).map(|b| tag.tokens[b].token);
        let filter = match sign.token {
            Token::Sign("*") if matches!(before, None | Some(Token::Sign("(" | "," | "["))) => {
                return Err("a list cannot be spread into arguments here");
            }
            Token::Sign("*") => "|__times(",
            Token::Sign("%") if before == Some(Token::Text) => "|__percent(",
            _ => continue,
        };
        if filter == "|__times(" && follows_another(tag, i) {
            return Err("a multiplication behind a division or a power: put it in brackets of its own");
        }
        let Some(end) = operand(tag, i + 1) else {
            return Err("the right side of a multiplication must be a name, a number, a text or in brackets");
        };
        if tag.tokens.get(end).is_some_and(|t| t.token == Token::Sign("**")) {
            return Err("a multiplication of a power: put it in brackets of its own");
        }
        let at = tag.tokens[end - 1].end;
        edits.push((sign.start, sign.end, filter.to_owned()));
        edits.push((at, at, ")".to_owned()));
    }
    Ok(edits)
}

/// Whether the operator before the left side of the one at `i` binds as tightly, so that it would have to come first.
fn follows_another(tag: &Tag<'_>, i: usize) -> bool {
    let depth = tag.tokens[i].depth;
    let beside = tag.tokens[..i].iter().rev().take_while(|t| t.depth >= depth).filter(|t| t.depth == depth);
    for placed in beside {
        match placed.token {
            Token::Sign("/" | "//" | "%" | "**") => return true,
            Token::Sign("." | "|" | ")" | "]" | "}" | "(" | "[" | "{" | "*") | Token::Text => {}
            Token::Word(word) if !matches!(word, "and" | "or" | "not" | "is" | "in" | "if" | "else") => {}
            _ => return false,
        }
    }
    false
}

/// Where the operand that begins at token `at` ends: behind its last token.
fn operand(tag: &Tag<'_>, at: usize) -> Option<usize> {
    let sign = |i: usize| match tag.tokens.get(i).map(|t| t.token) {
        Some(Token::Sign(sign)) => Some(sign),
        _ => None,
    };
    let word = |i: usize| matches!(tag.tokens.get(i).map(|t| t.token), Some(Token::Word(_)));
    // Behind the bracket that closes the one at `i`.
    let group = |i: usize| {
        let depth = tag.tokens[i].depth;
        let inside = tag.tokens[i + 1..].iter().take_while(|t| t.depth > depth).count();
        (i + 1 + inside < tag.tokens.len()).then_some(i + inside + 2)
    };
    let mut end = at + usize::from(matches!(sign(at), Some("-" | "+")));
    end = match sign(end) {
        Some("(" | "[" | "{") => group(end)?,
        Some(_) => return None,
        None => tag.tokens.get(end).map(|_| end + 1)?,
    };
    loop {
        end = match sign(end) {
            Some("." | "|") if word(end + 1) => end + 2,
            Some("(" | "[") => group(end)?,
            _ => return Some(end),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> String {
        scan(source).unwrap_err().to_string()
    }

    #[test]
    fn bindings_are_checked() {
        let cases = [
            ("{%- set a = b if c else d -%}", "{%- set a = ( b if c else d )|__bounded -%}"),
            ("{% set ns.a = '}}' %}", "{% set ns.a = ( '}}' )|__bounded %}"),
            ("{{ {'a': {}} }}", "{{ {'a': {}} }}"),
            ("{# {{ #}{% generation %}x{%- endgeneration %}", "{# {{ #}{% if true %}x{%- endif %}"),
            ("{% raw %}{{ {% endraw -%} x", "{% raw %}{{ {% endraw -%} x"),
            ("{% set a = '-' * n.x %}", "{% set a = ( '-' |__times( n.x) )|__bounded %}"),
            ("{{ ' ' * (n + 1)|f }}", "{{ ' ' |__times( (n + 1)|f) }}"),
            (
                "{{ 2 * x|length + a[1] * -b.c(d * e) }}",
                "{{ 2 |__times( x|length) + a[1] |__times( -b.c(d |__times( e))) }}",
            ),
            ("{{ '%s: %d' % (a, b) ~ c % d }}", "{{ '%s: %d' |__percent( (a, b)) ~ c % d }}"),
            (
                "{% for a, b in c|items if a == 'in' -%}12{% endfor %}",
                "{% for a, b in ( c|items )|__bounded if a == 'in' -%}{% set __checked = 0|__bounded(2) -%}12{% endfor %}",
            ),
            (
                "{% macro m(a, b=f(1, 2), c='x,y') %}1{% endmacro %}",
                "{% macro m(a, b=f(1, 2), c='x,y') %}{% set __checked = [a,b,c]|__bounded(1) %}1{% endmacro %}",
            ),
            (
                "{% with a = 1, b = [a, a] %}{% endwith %}",
                "{% with a = 1, b = [a, a] %}{% set __checked = [a,b]|__bounded(0) %}{% endwith %}",
            ),
            ("{% set a %}x{% endset %}", "{% set a %}x{% endset %}"),
        ];
        for (source, expected) in cases {
            assert_eq!(scan(source).unwrap(), expected);
        }
    }

    #[test]
    fn deep_and_long_sources_are_refused() {
        let deep = |a: &str, b: &str, n: usize| format!("{{{{ {}1{} }}}}", a.repeat(n), b.repeat(n));
        assert!(refused(&deep("(", ")", 40)).contains("brackets"));
        assert!(refused(&deep("[", "]", 40)).contains("brackets"));
        assert!(refused(&deep("not ", "", 4000)).contains("operators"));
        assert!(refused(&deep("1+", "", 6500)).contains("operators"));
        assert!(refused(&deep("", ".a", 6500)).contains("operators"));
        assert!(refused(&deep("", "|e", 6500)).contains("operators"));
        let ifs = |n: usize, word: &str| format!("{{% {word} a %}}").repeat(n);
        assert!(refused(&ifs(5500, "if")).contains("nested"));
        assert!(refused(&(ifs(1, "if") + &ifs(5500, "elif"))).contains("nested"));
        assert!(refused(&ifs(101, "for x in")).contains("nested"));
        assert!(refused(&"x".repeat(SOURCE_BYTES_MAX + 1)).contains("131073 bytes"));
    }

    #[test]
    fn broken_sources_are_refused_with_their_line() {
        for source in ["\n{{ a", "\n{% if a %}", "\n{# a", "\n{{ 'a }}", "\n{% endfor %}", "\n{% include 'x' %}"] {
            let message = refused(source);
            assert!(message.contains("line 2"), "{source}: {message}");
        }
        assert!(refused("{{ f(*a) }}").contains("spread"));
        for source in ["{{ 'a' * }}", "{{ a / b * c }}", "{{ a * b ** c }}", "{{ a * (b }}"] {
            assert!(refused(source).contains("multiplication") || refused(source).contains("does not end"), "{source}");
        }
    }
}
