//! Looks for passages of documents that bear on the question. What is found stands behind the conversation, as the result of
//! a call: it is evidence and no order. The search is made of the user's words alone.

use super::Outcome;
use crate::documents::{QUERY_CHARS_MAX, show};
use crate::reply::generate::chat_input;
use crate::reply::run::ReplyRun;
use crate::reply::stops::StepError;
use crate::turn::{DocumentTerms, Role, StepOutcome};

pub(super) async fn run(run: &mut ReplyRun<'_>, terms: &DocumentTerms) -> Result<Outcome, StepError> {
    let asked = run.plan.messages.iter().rfind(|message| message.role == Role::User);
    let question: String = asked.map(|asked| asked.content.chars().take(QUERY_CHARS_MAX).collect()).unwrap_or_default();
    if question.trim().is_empty() {
        return Ok(Outcome::skipped("nothing was asked in words"));
    }
    let (replies, principal) = (run.replies, run.opening.principal.clone());
    let search = replies.search_documents(principal, question.clone(), terms.collections.clone(), terms.k as usize);
    let stops = run.stops.clone();
    let (found, no_vectors) = tokio::select! {
        found = search => found.map_err(StepError::Failed)?,
        stop = stops.wait() => return Err(StepError::Stopped(stop)),
    };
    let found = show::bearing(found);
    let mut numbered = show::numbered(&found);
    let before = run.shown();
    numbered.iter_mut().for_each(|passage| passage.number += before);
    let wanted = numbered.len();
    let passages = match wanted {
        0 => numbered,
        _ => {
            let chat = chat_input(&run.plan, run.said(&[]), replies.clock.date());
            run.fitting(chat, numbered, terms.tokens_max).await.map_err(StepError::Failed)?
        }
    };
    let because = match (wanted > passages.len(), no_vectors) {
        (true, _) => Some(format!("there was no room for {} more", wanted - passages.len())),
        (false, Some(why)) => Some(format!("found by words alone: {why}")),
        (false, None) => None,
    };
    // Where nothing was found the model is told so. Where nothing had room it is told nothing.
    if wanted == 0 || !passages.is_empty() {
        run.evidence.extend(show::messages(&question, &passages));
    }
    let decided = match passages.len() {
        0 if wanted == 0 => "nothing was found".to_owned(),
        1 => "1 passage".to_owned(),
        n => format!("{n} passages"),
    };
    run.record.passages = passages;
    Ok(Outcome { decided: Some(decided), because, ..Outcome::of(StepOutcome::Done) })
}
