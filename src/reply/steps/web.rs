//! Searches the web and shows the model what bears on the question, behind the conversation as passages of documents are. The
//! search is made of the user's words alone. Whatever is missing or late, the reply goes on.

use super::Outcome;
use crate::documents::QUERY_CHARS_MAX;
use crate::plural::counted;
use crate::reply::generate::chat_input;
use crate::reply::run::ReplyRun;
use crate::reply::stops::StepError;
use crate::turn::{Role, StepOutcome, WebTerms};
use crate::web::{Wanted, show};

/// Why a step of a pipeline does nothing where the owner configured no engine.
const OFF: &str = "no search engine is configured (`web.engine`)";

pub(super) async fn run(run: &mut ReplyRun<'_>, terms: &WebTerms) -> Result<Outcome, StepError> {
    let Some(web) = run.replies.web.clone() else { return Ok(Outcome::skipped(OFF)) };
    let asked = run.plan.messages.iter().rfind(|message| message.role == Role::User);
    let question: String = asked.map(|asked| asked.content.chars().take(QUERY_CHARS_MAX).collect()).unwrap_or_default();
    if question.trim().is_empty() {
        return Ok(Outcome::skipped("nothing was asked in words"));
    }
    let wanted = Wanted {
        principal: run.opening.principal.clone(),
        question: question.clone(),
        k: terms.k as usize,
        first: run.shown() + 1,
        embedder: run.replies.examples.embedder().ok().cloned(),
    };
    let stops = run.stops.clone();
    let gathered = tokio::select! {
        gathered = web.gather(wanted) => gathered,
        stop = stops.wait() => return Err(StepError::Stopped(stop)),
    };
    run.record.stages = gathered.stages;
    let found = gathered.passages.len();
    let fitting = match found {
        0 => Ok(Vec::new()),
        _ => {
            let chat = chat_input(&run.plan, run.said(&[]), run.replies.clock.date());
            run.fitting(chat, gathered.passages, terms.tokens_max).await
        }
    };
    let (passages, uncounted) = match fitting {
        Ok(passages) => (passages, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let failed = gathered.failed.or(uncounted);
    let because = match (&failed, found - passages.len()) {
        (Some(why), _) => Some(why.clone()),
        (None, 0) => None,
        (None, left) => Some(format!("there was no room for {left} more")),
    };
    // Where nothing was found the model is told so. Where nothing had room it is told nothing.
    if found == 0 || !passages.is_empty() || failed.is_some() {
        run.evidence.extend(show::messages(&question, &passages, failed.is_some()));
    }
    let decided = match (passages.len(), &failed) {
        (0, Some(_)) => "the web could not be searched".to_owned(),
        (0, None) if found == 0 => "nothing was found".to_owned(),
        (n, _) => counted(n, "passage", "passages"),
    };
    run.record.passages = passages;
    let outcome = if failed.is_some() { StepOutcome::Failed } else { StepOutcome::Done };
    Ok(Outcome { decided: Some(decided), because, ..Outcome::of(outcome) })
}
