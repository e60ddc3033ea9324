//! The `retrieve` step: passages of documents that bear on the question, found before the answer is written.

use std::ops::RangeInclusive;

use super::program::{Program, ProgramStep, ProgramWork};
use crate::documents::COLLECTION_CHARS_MAX;
use crate::service::DocumentsWish;
use crate::turn::{DocumentTerms, Step, Work};

/// Passages of one reply, and their tokens together.
pub const PASSAGES_OF_REPLY_MAX: u32 = 20;
pub const PASSAGE_TOKENS_MAX: u32 = 16_384;
const COLLECTIONS: RangeInclusive<usize> = 1..=64;
const TOKENS_MIN: u32 = 64;

/// The name of the step.
pub(super) const RETRIEVE: &str = "retrieve";

/// A step as a file has it.
pub(super) fn checked(terms: DocumentTerms) -> Result<ProgramStep, String> {
    check(&terms)?;
    Ok(ProgramStep { name: RETRIEVE.to_owned(), work: ProgramWork::Retrieve(terms) })
}

fn check(terms: &DocumentTerms) -> Result<(), String> {
    if !(1..=PASSAGES_OF_REPLY_MAX).contains(&terms.k) {
        return Err(format!("has k {}, but must have 1 to {PASSAGES_OF_REPLY_MAX}", terms.k));
    }
    if !(TOKENS_MIN..=PASSAGE_TOKENS_MAX).contains(&terms.tokens_max) {
        return Err(format!("has tokens_max {}, but must have {TOKENS_MIN} to {PASSAGE_TOKENS_MAX}", terms.tokens_max));
    }
    let names = terms.collections.as_deref().unwrap_or_default();
    let fits = |name: &String| !name.is_empty() && name.chars().count() <= COLLECTION_CHARS_MAX;
    if terms.collections.is_some() && !COLLECTIONS.contains(&names.len()) || !names.iter().all(fits) {
        let most = COLLECTIONS.end();
        return Err(format!("names collections, but must name 1 to {most} of 1 to {COLLECTION_CHARS_MAX} characters"));
    }
    Ok(())
}

/// What the documents of a reply are looked for by: the request's words, or else the program's.
pub(super) fn terms(program: &Program, wish: &DocumentsWish) -> Option<DocumentTerms> {
    match wish {
        DocumentsWish::Off => None,
        DocumentsWish::Use(terms) => Some(terms.clone()),
        DocumentsWish::Pipeline => program.steps.iter().find_map(|step| match &step.work {
            ProgramWork::Retrieve(terms) => Some(terms.clone()),
            _ => None,
        }),
    }
}

/// The steps of a reply with this search in the place that the program has for it, or else before all others.
pub(super) fn placed(mut steps: Vec<Step>, terms: Option<DocumentTerms>) -> Vec<Step> {
    let at = steps.iter().position(|step| matches!(step.work, Work::Retrieve(_)));
    match (at, terms) {
        (Some(at), Some(terms)) => steps[at].work = Work::Retrieve(terms),
        (Some(at), None) => drop(steps.remove(at)),
        (None, Some(terms)) => steps.insert(0, Step { name: RETRIEVE.to_owned(), work: Work::Retrieve(terms) }),
        (None, None) => {}
    }
    steps
}
