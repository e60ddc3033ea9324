//! The passages that an answer was shown, and what of it stands on them, as a client is told.

use serde_json::{Value, json};

use crate::documents::cite::{Citation, citations};
use crate::documents::place::Place;
use crate::turn::{Generation, ShownPassage, StepOutcome, StepRecord, Work};

/// Every passage that was shown, and whether any was looked for.
fn shown(steps: &[StepRecord]) -> Option<Vec<ShownPassage>> {
    let documents = Work::Retrieve(Default::default()).kind();
    let web = Work::Web(Default::default()).kind();
    // Where no engine is configured, a step of a route looks for nothing.
    let looked =
        |step: &&StepRecord| step.kind == documents || step.kind == web && step.outcome != StepOutcome::Skipped;
    let steps: Vec<&StepRecord> = steps.iter().filter(looked).collect();
    (!steps.is_empty()).then(|| steps.iter().flat_map(|step| step.passages.clone()).collect())
}

fn url(passage: &ShownPassage) -> String {
    if !passage.url.is_empty() {
        return passage.url.clone();
    }
    Place::from(passage).url(&passage.document)
}

/// Adds where a passage stands to what is told of it.
fn with_place(mut told: Value, passage: &ShownPassage) -> Value {
    if let Value::Object(told) = &mut told {
        told.extend(Place::from(passage).fields());
    }
    told
}

fn source(passage: &ShownPassage) -> Value {
    let source = json!({
        "number": passage.number,
        "document": passage.document,
        "title": passage.title,
        "line": passage.line,
        "start": passage.start,
        "end": passage.end,
        "url": url(passage),
        "text": passage.text,
    });
    of_web(passage, with_place(source, passage))
}

/// What is said of a passage of a web page: it is of no document, and its lines are none that a reader sees.
fn of_web(passage: &ShownPassage, mut told: Value) -> Value {
    if let Some(told) = told.as_object_mut().filter(|_| !passage.url.is_empty()) {
        told.remove("document");
        told.remove("line");
    }
    told
}

/// `sources` of `x_chimere`: absent where nothing was looked for, empty where nothing was found.
pub(super) fn sources(steps: &[StepRecord]) -> Option<Vec<Value>> {
    Some(shown(steps)?.iter().map(source).collect())
}

fn citation(choice: u32, citation: &Citation, passage: &ShownPassage) -> Value {
    let mut told = json!({
        "choice": choice,
        "number": passage.number,
        "document": passage.document,
        "title": passage.title,
        "line": passage.line,
        "url": url(passage),
        "by": if citation.written { "model" } else { "words" },
        "start": citation.start,
        "end": citation.end,
    });
    if let Some((text, start, end)) = &citation.quote {
        told["quote"] = json!({"text": text, "start": start, "end": end});
    }
    of_web(passage, with_place(told, passage))
}

/// `citations` of `x_chimere`, of all choices.
pub(super) fn told(generations: &[Generation], steps: &[StepRecord]) -> Vec<Value> {
    let Some(shown) = shown(steps) else { return Vec::new() };
    let of = |generation: &Generation| {
        let found = citations(&generation.content, &shown);
        found.iter().map(|found| citation(generation.index, found, &shown[found.passage])).collect::<Vec<_>>()
    };
    generations.iter().flat_map(of).collect()
}

/// OpenAI's `annotations` of an answer: the marks that the model wrote, of passages that it was shown. Absent where nothing
/// was looked for.
pub(super) fn annotations(answer: &str, steps: &[StepRecord]) -> Option<Value> {
    let shown = shown(steps)?;
    let written = citations(answer, &shown).into_iter().filter(|citation| citation.written);
    let one = |citation: Citation| {
        let passage = &shown[citation.passage];
        let place = json!({
            "start_index": citation.start,
            "end_index": citation.end,
            "url": url(passage),
            "title": passage.title,
        });
        json!({"type": "url_citation", "url_citation": place})
    };
    Some(written.map(one).collect())
}
