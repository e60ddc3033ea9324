//! The ways in which families of models write calls: one table, from which calls are read and enforced. A model's own
//! follows from its chat template and its vocabulary.

use super::json::Json;
use super::named::Named;
use super::tags::Tags;
use super::written::Written;

/// A family's way.
#[derive(Debug, PartialEq)]
pub struct Format {
    pub name: &'static str,
    /// The shapes that it reads; the first is how the family writes.
    pub shapes: &'static [Shape],
    /// Marks that may follow a call and mean nothing more.
    pub closers: &'static [&'static str],
    /// How an answer begins that the prompt began: read as if it were the model's.
    pub begun: &'static str,
    /// Marks that mean nothing, wherever they stand.
    pub noise: &'static [&'static str],
    pub ids: Ids,
}

/// What the ids of calls look like, where a template is strict about those it is given back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ids {
    Usual,
    /// Nine letters and digits.
    Nine,
    /// `functions.NAME:NUMBER`.
    Numbered,
}

#[derive(Debug, PartialEq)]
pub enum Shape {
    Tags(Tags),
    Json(Json),
    Named(Named),
    Written(Written),
}

impl Shape {
    /// The marks that open it.
    pub(super) fn openings(&self) -> [&'static str; 2] {
        match self {
            Shape::Tags(tags) => [tags.open, tags.function],
            Shape::Json(json) => [json.open, ""],
            Shape::Named(named) => [named.open, named.begin],
            Shape::Written(written) => [written.open, ""],
        }
    }

    /// It has no mark: an answer that begins with it is a call.
    pub(super) fn is_bare(&self) -> bool {
        matches!(self, Shape::Json(Json { open: "", .. }) | Shape::Written(Written { open: "", .. }))
    }
}

const JSON: Json = Json { open: "", close: "", pad: "", list: false, name: "name", arguments: "arguments" };

const QWEN: Tags = Tags {
    open: "<tool_call>",
    close: "</tool_call>",
    function: "<function=",
    function_head_end: ">",
    function_end: "</function>",
    parameter: "<parameter=",
    parameter_head_end: ">",
    value: "",
    parameter_end: "</parameter>",
    lines: true,
};

const HERMES: Json = Json { open: "<tool_call>", close: "</tool_call>", pad: "\n", ..JSON };

const PLAIN: Format = Format { name: "", shapes: &[], closers: &[], begun: "", noise: &[], ids: Ids::Usual };

const QWEN_CLOSERS: &[&str] = &["</tool_call>", "</function>", "</parameter>"];

/// Qwen's and its like: tags, JSON where a model was trained on it.
pub static QWEN_TAGS: Format =
    Format { name: "qwen-tags", shapes: &[Shape::Tags(QWEN), Shape::Json(HERMES)], closers: QWEN_CLOSERS, ..PLAIN };

pub static HERMES_JSON: Format =
    Format { name: "hermes", shapes: &[Shape::Json(HERMES), Shape::Tags(QWEN)], closers: QWEN_CLOSERS, ..PLAIN };

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
            Shape::Written(written) => text.contains([']', ')']) || has(&[written.close]),
        }
    }
}
