//! The `web` step: passages of web pages that bear on the question, found before the answer is written.

use std::ops::RangeInclusive;

use super::program::{Program, ProgramStep, ProgramWork};
use super::retrieve::{PASSAGE_TOKENS_MAX, PASSAGES_OF_REPLY_MAX};
use crate::service::WebWish;
use crate::turn::{Step, WebTerms, Work};

const K: RangeInclusive<u32> = 1..=PASSAGES_OF_REPLY_MAX;
const TOKENS: RangeInclusive<u32> = 64..=PASSAGE_TOKENS_MAX;

/// The name of the step.
const WEB: &str = "web";

/// A step as a file has it.
pub(super) fn checked(terms: WebTerms) -> Result<ProgramStep, String> {
    for (name, value, range) in [("k", terms.k, K), ("tokens_max", terms.tokens_max, TOKENS)] {
        if !range.contains(&value) {
            return Err(format!("has {name} {value}, but must have {} to {}", range.start(), range.end()));
        }
    }
    Ok(ProgramStep { name: WEB.to_owned(), work: ProgramWork::Web(terms) })
}

/// What the web is searched by for a reply: the request's words, or else the program's.
pub(super) fn terms(program: &Program, wish: WebWish) -> Option<WebTerms> {
    let own = || {
        program.steps.iter().find_map(|step| match step.work {
            ProgramWork::Web(terms) => Some(terms),
            _ => None,
        })
    };
    match wish {
        WebWish::Off => None,
        WebWish::Use => Some(own().unwrap_or_default()),
        WebWish::Pipeline => own(),
    }
}

/// The steps of a reply with this search in the place that the program has for it, or else first, behind a search of documents.
pub(super) fn placed(mut steps: Vec<Step>, terms: Option<WebTerms>) -> Vec<Step> {
    let at = steps.iter().position(|step| matches!(step.work, Work::Web(_)));
    match (at, terms) {
        (Some(at), Some(terms)) => steps[at].work = Work::Web(terms),
        (Some(at), None) => drop(steps.remove(at)),
        (None, Some(terms)) => {
            let behind = steps.iter().take_while(|step| matches!(step.work, Work::Retrieve(_))).count();
            steps.insert(behind, Step { name: WEB.to_owned(), work: Work::Web(terms) });
        }
        (None, None) => {}
    }
    steps
}
