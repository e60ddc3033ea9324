//! Patterns of texts. A pattern is enforced as JavaScript, Python and Rust all read it. Where they differ, the
//! narrowest meaning is taken or the pattern refused.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{AssertionKind, Ast, ClassPerl, ClassPerlKind, ClassSetItem, GroupKind, Span, Visitor, visit};

/// What a dot means everywhere.
const DOT: &str = r"[^\n\r\x{2028}\x{2029}]";
/// Blanks everywhere; what is a blank somewhere; what is none anywhere.
const BLANKS: &str = r"\t\n\x0b\x0c\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}";
const BLANKS_SOMEWHERE: &str = r"\x1c-\x1f\x{85}\x{180e}\x{feff}";
const NO_BLANKS: &str = r"\x00-\x08\x0e-\x1b!-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{180d}\x{180f}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}";

/// Whether nobody reads the pattern: it is wrong, and not only beyond a grammar.
pub(super) fn is_wrong(pattern: &str) -> bool {
    use regex_syntax::ast::ErrorKind::{
        ClassUnclosed, EscapeUnexpectedEof, GroupUnclosed, GroupUnopened, RepetitionMissing,
    };
    let error = Parser::new().parse(pattern).err();
    error.is_some_and(|error| match error.kind() {
        GroupUnclosed | GroupUnopened | EscapeUnexpectedEof => true,
        // What means itself to some.
        RepetitionMissing => !pattern.contains('{'),
        ClassUnclosed => !pattern.contains(']'),
        _ => false,
    })
}

/// The pattern as it is enforced, or why it cannot be.
pub(super) fn read(pattern: &str) -> Result<String, String> {
    let ast = Parser::new().parse(pattern).map_err(|e| e.kind().to_string())?;
    anchors(&ast, true, true)?;
    let narrow = visit(&ast, Narrow { replaced: Vec::new(), excluding: false })?;
    Ok(rewritten(pattern, narrow))
}

/// Looks whether `^` and `$` stand at the ends alone, where the library knows them.
fn anchors(ast: &Ast, first: bool, last: bool) -> Result<(), String> {
    match ast {
        Ast::Assertion(assertion) => match assertion.kind {
            AssertionKind::StartLine | AssertionKind::StartText if first => Ok(()),
            AssertionKind::EndLine | AssertionKind::EndText if last => Ok(()),
            AssertionKind::WordBoundary | AssertionKind::NotWordBoundary => {
                Err("word boundaries are not supported".to_owned())
            }
            _ => Err("`^` and `$` are known at its ends alone".to_owned()),
        },
        Ast::Group(group) => anchors(&group.ast, first, last),
        Ast::Repetition(repetition) => anchors(&repetition.ast, false, false),
        Ast::Alternation(alternation) => alternation.asts.iter().try_for_each(|ast| anchors(ast, first, last)),
        Ast::Concat(concat) => {
            let end = concat.asts.len().saturating_sub(1);
            let mut each = concat.asts.iter().enumerate();
            each.try_for_each(|(n, ast)| anchors(ast, first && n == 0, last && n == end))
        }
        _ => Ok(()),
    }
}

/// Collects what means more in one language than in another.
struct Narrow {
    replaced: Vec<(Span, String)>,
    /// The brackets that are open name what must not stand there.
    excluding: bool,
}

impl Narrow {
    /// `\s` and `\S`, in brackets or alone.
    fn perl(&mut self, class: &ClassPerl, in_brackets: bool) {
        if class.kind != ClassPerlKind::Space {
            return;
        }
        let text = match (class.negated, in_brackets && self.excluding) {
            (false, false) => BLANKS.to_owned(),
            (false, true) => format!("{BLANKS}{BLANKS_SOMEWHERE}"),
            (true, false) => NO_BLANKS.to_owned(),
            (true, true) => format!("{NO_BLANKS}{BLANKS_SOMEWHERE}"),
        };
        self.replaced.push((class.span, if in_brackets { text } else { format!("[{text}]") }));
    }
}

impl Visitor for Narrow {
    type Output = Vec<(Span, String)>;
    type Err = String;

    fn finish(self) -> Result<Self::Output, String> {
        Ok(self.replaced)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), String> {
        match ast {
            Ast::Dot(span) => self.replaced.push((**span, DOT.to_owned())),
            Ast::ClassPerl(class) => self.perl(class, false),
            Ast::ClassBracketed(class) => self.excluding = class.negated,
            Ast::Flags(_) => return Err("flags within it are not supported".to_owned()),
            Ast::Group(group) => match &group.kind {
                GroupKind::CaptureName { name, .. } if name.name == "stop" => {
                    return Err("no group may be called `stop`".to_owned());
                }
                GroupKind::NonCapturing(flags) if !flags.items.is_empty() => {
                    return Err("flags within it are not supported".to_owned());
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), String> {
        match item {
            ClassSetItem::Perl(class) => self.perl(class, true),
            ClassSetItem::Bracketed(_) | ClassSetItem::Ascii(_) => {
                let reason = "write `[` as `\\[` within brackets, where it means one \
                              thing here and another there";
                return Err(reason.to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &regex_syntax::ast::ClassSetBinaryOp) -> Result<(), String> {
        Err("`&&`, `--` and `~~` within brackets are not supported".to_owned())
    }
}

fn rewritten(pattern: &str, mut replaced: Vec<(Span, String)>) -> String {
    replaced.sort_by_key(|(span, _)| span.start.offset);
    let (mut out, mut from) = (String::with_capacity(pattern.len()), 0);
    for (span, text) in replaced {
        out += pattern.get(from..span.start.offset).unwrap_or_default();
        out += &text;
        from = span.end.offset;
    }
    out + pattern.get(from..).unwrap_or_default()
}
