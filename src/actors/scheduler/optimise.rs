//! The phase `optimise`. It searches a better instruction and demonstrations for every route on the slice exam, and
//! lets the held-out exam decide. It writes what won as a file of the state folder. Questions are background
//! requests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::desk::{Desk, blocking};
use super::exam::{ask_alone, ask_each};
use super::examine::open;
use super::host::Contender;
use super::work::Work;
use crate::engine::protocol::{ChatInput, Generate, Prompt};
use crate::eval::golden::{Item, Outcome};
use crate::night::phase::Event;
use crate::optimise::paper::{Compared, FORMAT, Optimised, POINTS_MAX, Point, RouteOutcome, RouteResult};
use crate::optimise::random::Random;
use crate::optimise::tpe::Tpe;
use crate::optimise::{Settings, demonstrate, instruct, overlay};
use crate::pipeline::{Pipeline, PipelineSet, Provenance, Source, Wishes, plan};
use crate::service::{EngramWish, SamplingOverrides, ServiceError, StepsWish};
use crate::store::files::write_durable;
use crate::turn::{Message, Thinking};

/// Items of an exam that are read.
const ITEMS_MAX: usize = 100_000;
const ENGINE_TIMEOUT: Duration = Duration::from_secs(120);
/// Tokens of thought, as everywhere in the exams.
const THINKING_TOKENS: u32 = 192;
const PROPOSAL_TOKENS: u32 = 96;
const PROPOSAL_TEMPERATURE: f32 = 0.9;
/// Of a route's items, one in so many gives demonstrations; the others are asked in the search.
const POOL_EVERY: usize = 3;
/// Of the points of a search, one in so many is for seeing every choice once.
const FIRST_OF: usize = 2;

impl Work {
    pub(super) async fn optimise(&self) -> Result<Event, String> {
        let (desk, settings) = (&self.desk, &self.schedule.optimise);
        let deadline = Instant::now() + Duration::from_secs_f64(60.0 * settings.minutes_max);
        let set = desk.pipelines.current();
        let seed = self.run.order.seed;
        let (slice, golden) = (open(&desk.slice, ITEMS_MAX, seed).await?, open(&desk.golden, ITEMS_MAX, seed).await?);
        let (base, base_hash) = desk.base(ENGINE_TIMEOUT).await?;
        tracing::info!(model = base, "prompts are searched");
        let contender = self.champion(&base_hash).await?;
        contender.load(desk).await?;
        let hosted = desk.board.hosted().ok_or("the engine is gone")?;
        let mut searches = Vec::new();
        for pipeline in set.all().filter(|p| settings.routes.is_empty() || settings.routes.contains(&p.name)) {
            let of_route = |items: &[Item]| -> Vec<Item> {
                let ours = items.iter().filter(|item| set.route(&item.messages).route == pipeline.name);
                ours.take(settings.items_max).cloned().collect()
            };
            let (slice, golden) = (of_route(&slice), of_route(&golden));
            if slice.len().min(golden.len()) >= settings.items_min {
                searches.push((pipeline.for_model(&hosted), slice, golden));
            }
        }
        if searches.is_empty() {
            return Ok(Event::Nothing { words: "no route has enough items in both exams".to_owned() });
        }
        // However many routes are tried, chance changes one of them in `alpha` of the nights at most.
        let alpha = settings.alpha / searches.len() as f64;
        let earlier = self.found_before().await?;
        let mut found = Optimised { format: FORMAT, alpha, routes: Vec::new() };
        for (pipeline, slice, golden) in searches {
            if in_force(&pipeline, &self.run.order.id) {
                found.routes.push(changed_before(&pipeline.name, &earlier));
                continue;
            }
            let (pool, items) = slice.into_iter().enumerate().partition::<Vec<_>, _>(|(n, _)| n % POOL_EVERY == 0);
            let plain = |items: Vec<(usize, Item)>| items.into_iter().map(|(_, item)| item).collect();
            let search = Search {
                desk,
                settings,
                contender: &contender,
                parallel: self.schedule.exam.parallel,
                seed: self.run.order.seed,
                pool: plain(pool),
                items: plain(items),
                golden,
                pipeline,
                alpha,
                deadline,
            };
            let result = search.run().await?;
            let better = result.outcome == RouteOutcome::WouldChange;
            found.routes.push(result);
            if let (true, false, Some(result)) = (better, self.run.order.dry_run, found.routes.last().cloned()) {
                // Before the change: whoever reads the papers later can say what was found.
                self.keep_found(&found).await?;
                self.apply(&search.pipeline, &base_hash, &result).await?;
                if let Some(last) = found.routes.last_mut() {
                    last.outcome = RouteOutcome::Changed;
                }
            }
        }
        self.keep_found(&found).await?;
        let words = found.words();
        Ok(if found.would_change().is_empty() { Event::Passed { words } } else { Event::WouldChange { words } })
    }

    /// What an earlier life of this run has written down.
    async fn found_before(&self) -> Result<Vec<RouteResult>, String> {
        let papers = self.desk.run_dir(&self.run.order.id);
        let found = blocking(move || Optimised::read(&papers)).await?;
        let found = found.inspect_err(|error| tracing::warn!(error, "what was found before a stop is not known"));
        Ok(found.ok().flatten().map(|papers| papers.routes).unwrap_or_default())
    }

    async fn keep_found(&self, found: &Optimised) -> Result<(), String> {
        let (found, dir) = (found.clone(), self.desk.run_dir(&self.run.order.id));
        let written = blocking(move || found.write(&dir)).await?;
        written.map_err(|error| format!("cannot keep what the search found: {error}"))
    }

    /// Writes the winner beside the shipped files, and takes the pipelines up again.
    async fn apply(&self, base: &Pipeline, base_hash: &str, result: &RouteResult) -> Result<(), String> {
        let (Some(gate), Some(system)) = (result.gate, result.system.clone()) else { return Ok(()) };
        let (pipelines, route) = (&self.desk.pipelines, base.name.clone());
        let source = source(self.desk.as_ref(), &route)?;
        let set = pipelines.current();
        // As the file has it, without what the served model adds.
        let base = set.get(&route).ok_or_else(|| format!("the route `{route}` is gone"))?;
        let provenance = Provenance {
            run: self.run.order.id.clone(),
            parent: base.version.clone(),
            model_hash: base_hash.to_owned(),
            adapter_revision: self.pointer.champion,
            items: gate.n,
            difference: gate.difference,
            low: gate.low,
            high: gate.high,
            p: gate.p,
            demonstrations: result.demonstrations.clone(),
        };
        let text = overlay::text(base, &source.text, &system, &result.messages, &provenance)
            .map_err(|error| error.to_string())?;
        let path = own_file(self.desk.as_ref(), &route)?;
        let before = source.overlay.then_some(source.text);
        self.desk.pass("optimise.write").map_err(|error| error.to_string())?;
        let to = path.clone();
        blocking(move || write_durable(&to, text.as_bytes())).await?.map_err(|error| error.to_string())?;
        if let Err(error) = pipelines.reload() {
            // Another file is wrong, or this one after all: as it was.
            restore(&path, before).map_err(|more| format!("{error}; and {more}"))?;
            return Err(format!("the new file of `{route}` was not taken up: {error}"));
        }
        self.desk.pass("optimise.written").map_err(|error| error.to_string())?;
        tracing::info!(route, run = self.run.order.id, "the prompt of a route changed");
        Ok(())
    }
}

/// Whether a route answers with what `run` wrote.
pub(super) fn in_force(pipeline: &Pipeline, run: &str) -> bool {
    pipeline.provenance.as_ref().is_some_and(|provenance| provenance.run == run)
}

/// What an earlier life of a run found for a route, whose file it wrote before it was cut off.
fn changed_before(route: &str, earlier: &[RouteResult]) -> RouteResult {
    let found = earlier.iter().find(|found| found.route == route).cloned().unwrap_or_default();
    RouteResult { route: route.to_owned(), outcome: RouteOutcome::Changed, ..found }
}

/// The file that a route was read from.
fn source(desk: &Desk, route: &str) -> Result<Source, String> {
    let mut all = PipelineSet::texts(desk.pipelines.sources()).map_err(|error| error.to_string())?;
    all.remove(route).ok_or_else(|| format!("the file of the route `{route}` is gone"))
}

fn own_file(desk: &Desk, route: &str) -> Result<PathBuf, String> {
    let folder = desk.pipelines.sources().overlay.as_ref().ok_or("there is no folder for pipelines of the state")?;
    Ok(folder.join(format!("{route}.yaml")))
}

fn restore(path: &std::path::Path, before: Option<String>) -> std::io::Result<()> {
    match before {
        Some(text) => write_durable(path, text.as_bytes()),
        None => std::fs::remove_file(path),
    }
}

/// Takes an optimised file away again: the shipped one answers, at once.
pub(super) fn reset(desk: &Desk, route: &str) -> Result<Value, ServiceError> {
    let invalid = |message: String| ServiceError::Invalid { message, param: Some("route".to_owned()) };
    let set = desk.pipelines.current();
    let before = set.get(route).ok_or_else(|| {
        let known: Vec<_> = set.all().map(|pipeline| pipeline.name.as_str()).collect();
        invalid(format!("there is no route `{route}`: the routes are {}", known.join(", ")))
    })?;
    if before.provenance.is_none() {
        let own = own_file(desk, route).ok().filter(|path| path.exists());
        let next = own.map_or_else(String::new, |path| format!("; {} is your own: remove it by hand", path.display()));
        let why = format!("the route `{route}` was not optimised: it is at version {}{next}", before.version);
        return Err(invalid(why));
    }
    let path = own_file(desk, route).map_err(ServiceError::Internal)?;
    std::fs::remove_file(&path)
        .map_err(|error| ServiceError::Internal(format!("cannot remove {}: {error}", path.display())))?;
    desk.pipelines.reload().map_err(ServiceError::Internal)?;
    let now = desk.pipelines.current();
    Ok(json!({ "route": route, "before": before.version, "version": now.get(route).map(|p| p.version.as_str()) }))
}

/// One route under search.
struct Search<'a> {
    desk: &'a Desk,
    settings: &'a Settings,
    contender: &'a Contender,
    parallel: usize,
    seed: u64,
    /// The pipeline in force.
    pipeline: Pipeline,
    /// Items that demonstrations are made of, those of the search, those of the gate. They share none.
    pool: Vec<Item>,
    items: Vec<Item>,
    golden: Vec<Item>,
    alpha: f64,
    deadline: Instant,
}

/// What a search chooses from; the first of each is what is in force.
struct Choices {
    instructions: Vec<String>,
    /// Exchanges, and the items that they come from.
    sets: Vec<(Vec<Message>, Vec<String>)>,
}

impl Search<'_> {
    async fn run(&self) -> Result<RouteResult, String> {
        let mut result =
            RouteResult { route: self.pipeline.name.clone(), items: self.items.len(), ..RouteResult::default() };
        let own = source(self.desk, &self.pipeline.name)?.overlay && self.pipeline.provenance.is_none();
        if own || self.late() {
            result.because = if own { "its file is the owner's" } else { "no time was left" }.to_owned();
            return Ok(result);
        }
        let rounds = self.settings.trials * self.settings.batch.min(self.items.len());
        let full = (1 + self.settings.finalists) * self.items.len() + 2 * self.golden.len();
        self.desk.begin(&format!("prompt of `{}`", self.pipeline.name), self.pool.len() + rounds + full);
        let choices = self.choices().await?;
        result.instructions.clone_from(&choices.instructions);
        result.sets = choices.sets.len();
        let all: Vec<&Item> = self.items.iter().collect();
        let current = right(&self.ask(&self.pipeline, &all).await?);
        let ranking = self.look(&choices, &current, &mut result).await?;
        let Some((best, compared)) = self.finals(&choices, &current, &all, ranking).await? else {
            result.outcome = RouteOutcome::NothingBetter;
            return Ok(result);
        };
        result.search = Some(compared);
        let variant = self.variant(&choices, &best);
        result.system = Some(variant.system.clone());
        (result.messages, result.demonstrations) = choices.sets[best[1]].clone();
        if self.late() {
            (result.outcome, result.because) = (RouteOutcome::Refused, "no time was left for the gate".to_owned());
            return Ok(result);
        }
        let held_out: Vec<&Item> = self.golden.iter().collect();
        let before = right(&self.ask(&self.pipeline, &held_out).await?);
        let after = right(&self.ask(&variant, &held_out).await?);
        let gate = Compared::of(before.into_iter().zip(after));
        result.gate = Some(gate);
        let better = gate.difference > 0.0 && gate.p <= self.alpha;
        result.outcome = if better { RouteOutcome::WouldChange } else { RouteOutcome::Refused };
        Ok(result)
    }

    /// Instructions and demonstrations to choose from.
    async fn choices(&self) -> Result<Choices, String> {
        let pool: Vec<&Item> = self.pool.iter().collect();
        let answered = self.ask(&self.pipeline, &pool).await?;
        let verified = self.pool.iter().zip(&answered).filter(|(_, outcome)| outcome.passed);
        let verified: Vec<_> = verified.filter_map(|(item, outcome)| demonstrate::of(item, &outcome.reply)).collect();
        let known = self.pipeline.provenance.as_ref().map(|p| p.demonstrations.clone()).unwrap_or_default();
        let mut sets = vec![(self.pipeline.demonstrations.clone(), known)];
        if !self.pipeline.demonstrations.is_empty() {
            sets.push((Vec::new(), Vec::new()));
        }
        let drawn = demonstrate::sets(&verified, self.settings.sets, self.settings.demonstrations_max, self.seed);
        sets.extend(drawn.iter().map(|set| (overlay::messages(set), set.iter().map(|d| d.item.clone()).collect())));
        let questions: Vec<&str> = verified.iter().map(|d| d.user.as_str()).collect();
        let proposed = self.proposals(&questions).await?;
        let instructions = instruct::candidates(&self.pipeline.system, &self.settings.instructions, &proposed);
        Ok(Choices { instructions, sets })
    }

    /// Instructions that the model writes itself.
    async fn proposals(&self, questions: &[&str]) -> Result<Vec<String>, String> {
        let mut proposed = Vec::new();
        for n in 0..self.settings.proposals {
            let shown: Vec<&str> = questions.iter().skip(3 * n).copied().collect();
            let messages = instruct::request(&self.pipeline.description, &self.pipeline.system, &shown);
            let thinking = if self.thinks() { Thinking::Off } else { Thinking::Template };
            let mut request = generate(messages, Vec::new(), thinking, PROPOSAL_TOKENS);
            (request.sampling.temperature, request.sampling.seed) = (PROPOSAL_TEMPERATURE, Some(self.seed + n as u64));
            proposed.push(ask_alone(self.desk, None, &request, self.contender).await?.reply);
        }
        Ok(proposed)
    }

    /// The search: points with their mean gain on small parts of the items, the best first.
    async fn look(
        &self,
        choices: &Choices,
        current: &[bool],
        result: &mut RouteResult,
    ) -> Result<Vec<(Vec<usize>, f64, usize)>, String> {
        let sizes = vec![choices.instructions.len(), choices.sets.len()];
        let mut tpe = Tpe::new(sizes, self.settings.trials / FIRST_OF, self.seed);
        let mut random = Random::new(self.seed ^ 0x5eed);
        while result.looks < self.settings.trials && !self.late() {
            let point = tpe.suggest();
            let batch = random.some_of(self.items.len(), self.settings.batch);
            let score = if point == [0, 0] {
                0.0
            } else {
                let items: Vec<&Item> = batch.iter().map(|&at| &self.items[at]).collect();
                let now = right(&self.ask(&self.variant(choices, &point), &items).await?);
                let gained = |(&at, now): (&usize, &bool)| f64::from(*now) - f64::from(current[at]);
                batch.iter().zip(&now).map(gained).sum::<f64>() / batch.len().max(1) as f64
            };
            tpe.tell(point, score);
            result.looks += 1;
        }
        let ranking = tpe.ranking();
        let kept = ranking.iter().take(POINTS_MAX);
        result.best = kept
            .map(|(point, score, looks)| Point { instruction: point[0], set: point[1], score: *score, looks: *looks })
            .collect();
        Ok(ranking)
    }

    /// The best points on every item: the one that gains most, of equal ones the shorter; `None` where none gains.
    async fn finals(
        &self,
        choices: &Choices,
        current: &[bool],
        all: &[&Item],
        ranking: Vec<(Vec<usize>, f64, usize)>,
    ) -> Result<Option<(Vec<usize>, Compared)>, String> {
        let mut best: Option<(Vec<usize>, Compared)> = None;
        let others = ranking.into_iter().filter(|(point, score, _)| *point != [0, 0] && *score > 0.0);
        for (point, ..) in others.take(self.settings.finalists) {
            if self.late() {
                break;
            }
            let now = right(&self.ask(&self.variant(choices, &point), all).await?);
            let compared = Compared::of(current.iter().copied().zip(now));
            let length = |p: &[usize]| choices.sets[p[1]].0.len() + choices.instructions[p[0]].len();
            let better = best.as_ref().is_none_or(|(held, than)| {
                compared.difference > than.difference
                    || compared.difference == than.difference && length(&point) < length(held)
            });
            if compared.difference > 0.0 && better {
                best = Some((point, compared));
            }
        }
        Ok(best)
    }

    fn variant(&self, choices: &Choices, point: &[usize]) -> Pipeline {
        Pipeline {
            system: choices.instructions[point[0]].clone(),
            demonstrations: choices.sets[point[1]].0.clone(),
            ..self.pipeline.clone()
        }
    }

    /// Asks items under a pipeline, as its route would; in their order.
    async fn ask(&self, pipeline: &Pipeline, items: &[&Item]) -> Result<Vec<Outcome>, String> {
        let requests = items.iter().map(|item| Ok((*item, self.request(pipeline, item)?)));
        ask_each(self.desk, requests, self.contender, self.parallel).await
    }

    fn request(&self, pipeline: &Pipeline, item: &Item) -> Result<Generate, String> {
        let thinking = if self.thinks() { Thinking::On { budget_tokens: THINKING_TOKENS } } else { Thinking::Template };
        let wishes = Wishes {
            thinking: Some(thinking),
            sampling: SamplingOverrides { temperature: Some(0.0), ..SamplingOverrides::default() },
            max_tokens: Some(item.max_tokens),
            tools: item.tools.clone(),
            engram: EngramWish::Off,
            quality_gate: Some(false),
            steps: StepsWish::None,
            max_tokens_default: item.max_tokens,
            ..Wishes::default()
        };
        let plan = plan(pipeline, String::new(), item.messages.clone(), wishes).map_err(|error| error.to_string())?;
        let request = generate(plan.messages, plan.tools, plan.thinking, plan.max_tokens);
        Ok(Generate { sampling: plan.sampling, stop: plan.stop, ..request })
    }

    fn thinks(&self) -> bool {
        self.desk.board.hosted().is_none_or(|hosted| hosted.thinks)
    }

    fn late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

fn generate(messages: Vec<Message>, tools: Vec<Value>, thinking: Thinking, max_tokens: u32) -> Generate {
    let (date, add_generation_prompt) = (String::new(), true);
    let prompt =
        Prompt::Chat(ChatInput { messages, tools, thinking, date, add_generation_prompt, ..ChatInput::default() });
    Generate { thinking, background: true, ..Generate::new(prompt, Default::default(), max_tokens) }
}

fn right(outcomes: &[Outcome]) -> Vec<bool> {
    outcomes.iter().map(|outcome| outcome.passed).collect()
}
