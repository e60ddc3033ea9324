//! The model's vote on prompts whose rules are unsure, one after the other.

use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Instant;

use anyhow::Context;
use chimere::engine::host::HostLimits;
use chimere::engine::load::Loaded;
use chimere::engine::process::{self, Running};
use chimere::engine::protocol::{Command, Event, Generate};
use chimere::eval::routing::{self, Prompt, Routed, Voted};
use chimere::intent::vote;
use chimere::pipeline::PipelineSet;

use super::super::super::model_args::bar;

/// Asks the model about every unsure prompt. → the routes with the vote, and what it gave.
pub(super) fn vote(
    loaded: Loaded,
    set: &PipelineSet,
    prompts: &[Prompt],
    rules: &[Routed],
) -> anyhow::Result<(Vec<Routed>, Voted)> {
    let (to_us, events) = sync_channel(64);
    let engine = process::start(loaded, HostLimits { waiting_max: 1, ..HostLimits::default() }, to_us)?;
    let unsure = rules.iter().filter(|routed| !routed.unsure.is_empty()).count();
    let bar = bar(unsure as u64, "voting");
    let (mut routed, mut times, mut missed) = (rules.to_vec(), Vec::new(), 0);
    for (at, prompt) in prompts.iter().enumerate().filter(|(at, _)| !rules[*at].unsure.is_empty()) {
        let about = |name: &String| set.get(name).map_or("", |pipeline| &pipeline.description);
        let candidates: Vec<vote::Candidate> =
            rules[at].unsure.iter().map(|name| (name.as_str(), about(name))).collect();
        let began = Instant::now();
        let said = ask(&engine, &events, Generate { id: at as u64, ..vote::question(&prompt.text, &candidates) })?;
        let took = began.elapsed();
        match vote::answer(&said, &candidates).filter(|_| took <= vote::DEADLINE) {
            Some(route) => routed[at].taken = route.to_owned(),
            None => missed += 1,
        }
        times.push(took.as_secs_f64() * 1_000.0);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let voted = routing::voted(rules, &routed, missed, times);
    Ok((routed, voted))
}

/// The text of an answer.
fn ask(engine: &Running, events: &Receiver<Vec<Event>>, request: Generate) -> anyhow::Result<String> {
    engine.commands.send((Command::Generate(Box::new(request)), Instant::now())).context("the engine ended")?;
    let mut said = String::new();
    loop {
        for event in events.recv().context("the engine ended")? {
            match event {
                Event::Token(token) => said += &token.text,
                Event::Finished { text, .. } => return Ok(said + &text),
                Event::Failed { message, .. } => anyhow::bail!("the model could not be asked: {message}"),
                _ => {}
            }
        }
    }
}
