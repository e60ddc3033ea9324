//! The marks of a shape: what opens and closes a call, and what stands between.

use super::code::Code;
use super::formats::Shape;
use super::json::Json;
use super::literal;
use super::tags::Tags;

impl Shape {
    /// The marks that open it.
    pub(crate) fn openings(&self) -> [&'static str; 2] {
        match self {
            Shape::Tags(tags) => [tags.open, tags.function],
            Shape::Json(json) => [json.open, ""],
            Shape::Named(named) => [named.open, named.begin],
            Shape::Code(code) => [code.open, ""],
        }
    }

    /// It has no mark: an answer that begins with it is a call.
    pub(super) fn is_bare(&self) -> bool {
        matches!(self, Shape::Json(Json { open: "", .. }) | Shape::Code(Code { open: "", .. }))
    }
}

impl Shape {
    /// Whether a text that begins with a mark may be of this shape.
    pub(super) fn opens(&self, text: &str) -> bool {
        self.is_bare() || self.openings().iter().any(|mark| !mark.is_empty() && text.starts_with(mark))
    }

    /// Whether a call may end in this text: looked at for every piece of it.
    pub(super) fn may_end(&self, text: &str) -> bool {
        let has = |marks: &[&str]| marks.iter().any(|mark| !mark.is_empty() && text.contains(mark));
        match self {
            Shape::Tags(tags) => has(&[tags.close, tags.function_end]),
            Shape::Json(json) => text.contains(['}', ']']) || has(&[json.close]),
            Shape::Named(named) => text.contains('}') || has(&[named.end]),
            Shape::Code(code) => text.contains([']', ')']) || has(&[code.close]),
        }
    }
}

impl Shape {
    pub(super) fn literals(&self) -> Vec<&'static str> {
        match self {
            Shape::Tags(tags) => {
                let mut all = tags.all();
                all.extend([tags.parameter_head_end, tags.value]);
                all
            }
            Shape::Json(json) => vec![json.open, json.close],
            Shape::Named(named) => {
                let mut all = vec![named.open, named.close, named.begin, named.before, named.after, named.end];
                all.extend(named.parts);
                all
            }
            Shape::Code(code) => vec![code.open, code.close, literal::QUOTE],
        }
    }

    /// The marks around one call.
    pub(crate) fn pair(&self) -> (&'static str, &'static str) {
        match self {
            Shape::Tags(tags) if tags.open.is_empty() => (tags.function, tags.function_end),
            Shape::Tags(tags) => (tags.open, tags.close),
            Shape::Json(json) => (json.open, json.close),
            Shape::Named(named) => (named.begin, named.end),
            Shape::Code(code) => (code.open, code.close),
        }
    }

    /// The mark that a call begins with.
    pub fn mark(&self) -> &'static str {
        match self {
            Shape::Named(named) if !named.open.is_empty() => named.open,
            shape => shape.pair().0,
        }
    }
}

impl Tags {
    /// Every tag, as far as it is the same in all calls.
    pub(crate) fn all(&self) -> Vec<&'static str> {
        let all = [self.open, self.close, self.function, self.function_end, self.parameter, self.parameter_end];
        all.into_iter().filter(|tag| !tag.is_empty()).collect()
    }

    fn name(tag: &str, name: &str) -> String {
        if tag.ends_with('=') && tag.contains(' ') { format!("{tag}\"{name}\"") } else { format!("{tag}{name}") }
    }

    /// From the mark around a call to its first parameter.
    pub(crate) fn function_head(&self, name: &str) -> String {
        match self.function_head_end {
            "" => format!("{name}\n"),
            end => format!("\n{}{end}\n", Tags::name(self.function, name)),
        }
    }

    /// Behind the last parameter, up to the mark around a call.
    pub(crate) fn function_tail(&self) -> String {
        if self.function_head_end.is_empty() { String::new() } else { format!("{}\n", self.function_end) }
    }

    /// Before a value, which is bare text or JSON.
    pub(crate) fn parameter_head(&self, key: &str, is_text: bool) -> String {
        let kind = if self.parameter.starts_with("<｜") { format!(" string=\"{is_text}\"") } else { String::new() };
        let between = if self.value.is_empty() { "" } else { "\n" };
        let line = if self.lines { "\n" } else { "" };
        format!("{}{kind}{}{between}{}{line}", Tags::name(self.parameter, key), self.parameter_head_end, self.value)
    }
}
