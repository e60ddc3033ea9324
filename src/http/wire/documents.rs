//! `chimere.documents` of a chat: whether its answer is shown passages of documents, and of which.

use serde::Deserialize;

use crate::http::table::{Param, SOME_TEXT, Shape};
use crate::pipeline::{PASSAGE_TOKENS_MAX, PASSAGES_OF_REPLY_MAX};
use crate::service::DocumentsWish;
use crate::turn::DocumentTerms;

pub(super) const DOCUMENTS: Param = Param::new(
    "documents",
    Shape::Either(&[
        Shape::Bool,
        Shape::Object(&[
            Param::new(
                "collections",
                Shape::List { of: &SOME_TEXT, min: 1, max: 64 },
                "Names or ids; absent: all that the key may read.",
            ),
            Param::new("k", Shape::Whole { min: 1, max: PASSAGES_OF_REPLY_MAX as i128 }, "Passages.").default("4"),
            Param::new(
                "tokens_max",
                Shape::Whole { min: 64, max: PASSAGE_TOKENS_MAX as i128 },
                "Tokens of all passages together.",
            )
            .default("1500"),
        ]),
    ]),
    "Whether the answer is shown passages of documents that bear on the question; absent: as the route does.",
);

/// Documents to read from, as a client asks for them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum RawDocuments {
    Switch(bool),
    Use(DocumentTerms),
}

impl RawDocuments {
    pub(super) fn wish(documents: Option<RawDocuments>) -> DocumentsWish {
        match documents {
            None => DocumentsWish::Pipeline,
            Some(RawDocuments::Switch(false)) => DocumentsWish::Off,
            Some(RawDocuments::Switch(true)) => DocumentsWish::Use(DocumentTerms::default()),
            Some(RawDocuments::Use(terms)) => DocumentsWish::Use(terms),
        }
    }
}
