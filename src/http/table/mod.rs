//! The table of parameters: what each route's body and query may say is written down once, as data. The readers check what
//! comes against it, and the OpenAPI document is made of it, so that the two cannot differ.

mod check;

pub(crate) use check::found;
mod schema;
#[cfg(test)]
mod tests;

use crate::http::error::ApiError;

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Bool,
    /// This very value, as JSON.
    Exactly(&'static str),
    /// A whole number as JSON Schema means it: `5.0` and `1e2` are whole.
    Whole {
        min: i128,
        max: i128,
    },
    Number {
        min: f64,
        max: f64,
    },
    /// Lengths are counted in characters.
    Text {
        min: usize,
        max: usize,
    },
    Name(&'static Name),
    Word(&'static [&'static str]),
    List {
        of: &'static Shape,
        min: usize,
        max: usize,
    },
    /// An object whose keys are token ids.
    ByToken {
        of: &'static Shape,
        max: usize,
    },
    Object(&'static [Param]),
    /// An object that may have more keys, which are passed over.
    Open(&'static [Param]),
    Either(&'static [Shape]),
    /// A component of the document with a reader of its own.
    Elsewhere(&'static str),
}

/// Texts that a pattern describes.
#[derive(Debug)]
pub(crate) struct Name {
    /// Of the whole text.
    pub(crate) pattern: &'static str,
    pub(crate) max: usize,
    /// What such a text is, in words.
    pub(crate) says: &'static str,
}

/// One parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) doc: &'static str,
    required: bool,
    /// As JSON.
    default: Option<&'static str>,
    /// Its other name.
    also: Option<&'static str>,
}

impl Param {
    pub(crate) const fn new(name: &'static str, shape: Shape, doc: &'static str) -> Param {
        Param { name, shape, doc, required: false, default: None, also: None }
    }

    pub(crate) const fn required(self) -> Param {
        Param { required: true, ..self }
    }

    pub(crate) const fn default(self, json: &'static str) -> Param {
        Param { default: Some(json), ..self }
    }

    pub(crate) const fn also(self, name: &'static str) -> Param {
        Param { also: Some(name), ..self }
    }
}

/// What several parameters say together.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rule {
    /// The first may be given only where the second has this value, as JSON.
    Needs(&'static str, &'static str, &'static str),
    /// Where the first has this value, as JSON, the second must be given.
    Asks(&'static str, &'static str, &'static str),
    ExactlyOne(&'static [&'static str]),
    AtLeastOne(&'static [&'static str]),
}

/// The parameters of one route.
#[derive(Debug)]
pub(crate) struct Table {
    /// Of the document's component.
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    pub(crate) params: &'static [&'static [Param]],
    pub(crate) rules: &'static [Rule],
    /// Accepted without effect: they change nothing that a client could see in the reply, which names them.
    pub(crate) ignored: &'static [&'static str],
    /// Part of the API, but not of this daemon: refused with the reason.
    pub(crate) unsupported: &'static [(&'static str, &'static str)],
}

impl Table {
    pub(crate) const fn new(name: &'static str, doc: &'static str, params: &'static [&'static [Param]]) -> Table {
        Table { name, doc, params, rules: &[], ignored: &[], unsupported: &[] }
    }

    pub(crate) fn params(&self) -> impl Iterator<Item = &'static Param> {
        self.params.iter().copied().flatten()
    }
}

pub(crate) const TEXT: Shape = Shape::Text { min: 0, max: usize::MAX };
pub(crate) const SOME_TEXT: Shape = Shape::Text { min: 1, max: usize::MAX };
pub(crate) const TOKEN: Shape = Shape::Whole { min: 0, max: u32::MAX as i128 };
/// The whole numbers that every JSON reader knows exactly.
pub(crate) const WHOLE_MAX: i128 = (1 << 53) - 1;

/// Keys of a map by token ids; no vocabulary has ids of more digits.
const TOKEN_KEYS: &str = "^(0|[1-9][0-9]{0,8})$";

/// What is wrong with a value, and where.
type Checked = Result<(), ApiError>;
