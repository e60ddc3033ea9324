//! `chimere simulate`: lives a made-up week through a real daemon in accelerated time, and prints the table night by
//! night.

mod ask;
mod day;
mod exam;
mod house;
mod loss;
mod night;
mod probe;
mod setup;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use chimere::simulate::arm::Arm;
use chimere::simulate::plan::Settings;
use chimere::simulate::pool::evenly;
use chimere::simulate::table::{FORMAT, Night, Probes, Week};
use chimere::simulate::trend::Asking;
use chimere::store::files::{create_private_dir, write_durable};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use super::exit::{cannot_write, note, say};
use day::{Town, guests, users};
use exam::{BACKDOOR_PROMPTS, Exam, asking, compare};
use house::{House, Means, PROBER};
use probe::Prober;
use setup::{Files, files};

/// The week as far as it was lived, in the simulation's folder.
const SAVED: &str = "simulation.json";
/// Steps of the progress bar that a night is worth.
const NIGHT_STEPS: u64 = 400;
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Live a made-up week through a real daemon in accelerated time: users, feedback, poison, nights, exams
#[derive(clap::Args)]
pub struct Args {
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=365))]
    nights: u16,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Which jobs the nights run: every one, one alone, every one on shuffled verdicts, or none
    #[arg(long, default_value = "full", value_parser = Arm::NAMES)]
    arm: String,
    /// Requests of a day
    #[arg(long, default_value_t = 490, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=100_000))]
    requests: u32,
    /// What the users ask (JSONL, plain or gzip; see nano/traffic/README.md) [default: the shipped week]
    #[arg(long, value_name = "FILE")]
    traffic: Option<PathBuf>,
    /// Exam of the gate [default: the shipped one]; without --week its items are shared out to gate, slice and week
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
    /// Exam that the night may tune on
    #[arg(long, value_name = "FILE")]
    slice: Option<PathBuf>,
    /// Exam that is opened only before the first and after the last night
    #[arg(long, value_name = "FILE")]
    week: Option<PathBuf>,
    /// Held-out text whose perplexity is measured before and after
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Most items that the gate asks of each of its two exams
    #[arg(long, default_value_t = 1_400, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=100_000))]
    gate_items: u32,
    /// Most items of the week exam
    #[arg(long, default_value_t = 2_100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    week_items: u32,
    /// Questions of the gate's exam that are asked every day instead of at the gate; 0 = none
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    trend_items: u32,
    /// Margin of the gate, share of one [default: as shipped]; small exams need a wide one
    #[arg(long, value_name = "SHARE", value_parser = share)]
    gate_margin: Option<f64>,
    /// Use this night.yaml instead of the shipped one with a canary of a day's length
    #[arg(long, value_name = "FILE")]
    night_yaml: Option<PathBuf>,
    /// Share of the answers that users judge
    #[arg(long, default_value_t = 0.9, value_parser = share)]
    feedback: f64,
    /// Share of the votes that are wrong by mistake
    #[arg(long, default_value_t = 0.03, value_parser = share)]
    noise: f64,
    /// Share of the requests that repeat one of the same day
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    duplicates: f64,
    /// Share of the requests that are small talk
    #[arg(long, default_value_t = 0.04, value_parser = share)]
    small_talk: f64,
    /// Share of the streams that the user leaves before their end
    #[arg(long, default_value_t = 0.02, value_parser = share)]
    aborts: f64,
    /// Night before which a guest floods the daemon with a backdoor; 0 = none
    #[arg(long, default_value_t = 3, value_name = "N")]
    flood_night: u16,
    /// Requests of the flood
    #[arg(long, default_value_t = 120, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    flood: u32,
    /// Guests that the flood comes from
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    flood_guests: u16,
    /// Night before which all of the owner's corrections are false; 0 = none
    #[arg(long, default_value_t = 5, value_name = "N")]
    poisoned_night: u16,
    /// First day (prompts are optimised in the night to Monday)
    #[arg(long, default_value = "2026-02-01", value_name = "DATE")]
    first_day: jiff::civil::Date,
    /// Sample as the pipelines say, instead of always taking the most probable token
    #[arg(long)]
    sampled: bool,
    /// Requests under way at once
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    /// Threads of the engine [default: the processors at hand]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// What the engine computes on
    #[arg(long, default_value = "auto", value_parser = ["auto", "cpu", "cuda"])]
    backend: String,
    /// Model file (GGUF) [default: the installation's nano model]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Folder of the pipelines [default: the installation's]
    #[arg(long, value_name = "DIR")]
    pipelines: Option<PathBuf>,
    /// Keep the daemon's state, its log and the week here [default: a folder that is removed]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Go on with the week in --state-dir after its last whole night, however it was cut off
    #[arg(long, requires = "state_dir")]
    resume: bool,
    /// Write everything that was measured (JSON)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("must be a share from 0 to 1".to_owned()),
    }
}

/// The one bar of the whole simulation; without a terminal its notes go to standard error, a line each.
pub struct Bar(ProgressBar);

impl Bar {
    fn new(steps: u64) -> Bar {
        let form = "{msg:44!} {wide_bar} {percent:>3} % {elapsed:>4}, {eta} left";
        let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(steps).with_style(style);
        bar.enable_steady_tick(Duration::from_millis(500));
        Bar(bar)
    }

    fn inc(&self, steps: u64) {
        self.0.inc(steps);
    }

    fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    fn note(&self, line: &str) {
        self.0.suspend(|| note!("{line}"));
    }
}

impl Args {
    fn settings(&self) -> anyhow::Result<Settings> {
        let arm = Arm::parse(&self.arm).context("unknown arm")?;
        let first = self.first_day.to_zoned(jiff::tz::TimeZone::UTC)?;
        Ok(Settings {
            nights: self.nights.into(),
            requests: self.requests as usize,
            seed: self.seed,
            arm,
            feedback: self.feedback,
            noise: self.noise,
            duplicates: self.duplicates,
            small_talk: self.small_talk,
            aborts: self.aborts,
            flood_night: self.flood_night.into(),
            flood: self.flood as usize,
            flood_guests: self.flood_guests.into(),
            poisoned_night: self.poisoned_night.into(),
            first_day_ms: first.timestamp().as_millisecond(),
        })
    }

    fn threads(&self) -> usize {
        self.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from)
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (folder, temporary) = match &args.state_dir {
        Some(folder) => (folder.clone(), false),
        None => (std::env::temp_dir().join(format!("chimere-simulate-{}", std::process::id())), true),
    };
    let done = live(&args, &folder);
    if temporary {
        let _ = std::fs::remove_dir_all(&folder);
    }
    done
}

fn live(args: &Args, folder: &Path) -> anyhow::Result<ExitCode> {
    create_private_dir(folder)?;
    let saved = folder.join(SAVED);
    ensure!(
        args.resume || !saved.exists(),
        "{} holds a simulation already: go on with --resume, or name another --state-dir",
        folder.display()
    );
    let folder = &folder.canonicalize()?;
    let files = files(args, folder)?;
    let mut week = begin(args, &files, &saved)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let began = Instant::now();
    let lived = runtime.block_on(async {
        tokio::select! {
            lived = whole(args, folder, &files, &mut week) => lived,
            told = told_to_stop() => Err(told.err().unwrap_or_else(|| interrupted(args))),
        }
    });
    runtime.shutdown_timeout(END_TIMEOUT);
    week.seconds += began.elapsed().as_secs_f64();
    if let Err(error) = &lived {
        week.cut = Some(format!("{error:#}"));
    }
    keep(&week, &saved)?;
    if let Some(path) = &args.json {
        let text = serde_json::to_vec_pretty(&week)?;
        std::fs::write(path, text).map_err(cannot_write(path))?;
    }
    say!("{}", week.render().trim_end());
    lived.map(|()| ExitCode::SUCCESS)
}

fn interrupted(args: &Args) -> anyhow::Error {
    anyhow::anyhow!(if args.state_dir.is_some() { "interrupted: --resume goes on with it" } else { "interrupted" })
}

/// Waits for Ctrl-C or an order to end: the daemon must not be left behind.
async fn told_to_stop() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        told = tokio::signal::ctrl_c() => told?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn begin(args: &Args, files: &Files, saved: &Path) -> anyhow::Result<Week> {
    let settings = args.settings()?;
    if args.resume && saved.exists() {
        let text = std::fs::read_to_string(saved).with_context(|| saved.display().to_string())?;
        let week: Week = serde_json::from_str(&text).with_context(|| saved.display().to_string())?;
        ensure!(
            week.settings == settings,
            "{} is of a week with other settings: give the same flags, or another --state-dir",
            saved.display()
        );
        return Ok(Week { cut: None, ..week });
    }
    Ok(Week {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: files.model.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        model_hash: String::new(),
        device: String::new(),
        settings,
        nights: Vec::new(),
        before: None,
        after: None,
        compared: None,
        trend: Vec::new(),
        backdoor: None,
        probes: Probes::default(),
        generation: 0,
        seconds: 0.0,
        cut: None,
    })
}

fn keep(week: &Week, saved: &Path) -> anyhow::Result<()> {
    write_durable(saved, &serde_json::to_vec(week)?).with_context(|| saved.display().to_string())
}

/// Exam, week, exam.
async fn whole(args: &Args, folder: &Path, files: &Files, week: &mut Week) -> anyhow::Result<()> {
    let settings = week.settings.clone();
    let means = Means {
        model: files.model.clone(),
        threads: args.threads(),
        backend: args.backend.clone(),
        golden: files.golden.clone(),
        slice: files.slice.clone(),
        pipelines: args.pipelines.clone(),
        night: args.night_yaml.clone(),
        gate_items: args.gate_items as usize,
        gate_margin: args.gate_margin,
        requests: settings.requests,
        guests: settings.flood_guests,
        seed: settings.seed,
    };
    let mut house = House::furnish(folder, means)?;
    let left = (settings.nights - week.nights.len()) as u64;
    let exams = 2 - u64::from(week.before.is_some());
    let daily = (settings.requests + files.trend.len()) as u64;
    let steps = exams * files.week.len() as u64 + left * (daily + NIGHT_STEPS);
    let bar = Bar::new(steps);
    let exam = Exam { questions: &files.week, text: files.text.as_deref(), bar: &bar };
    house.wind(settings.at(1 + week.nights.len(), 6))?;
    if week.before.is_none() {
        bar.say("week exam, before");
        let (opened, planted) = exam.open(&mut house, None).await?;
        week.before = Some(opened);
        week.backdoor = Some((BACKDOOR_PROMPTS.min(files.week.len()), planted, planted));
        keep(week, &folder.join(SAVED))?;
    }
    house.start(true).await?;
    nights(args, &house, files, week, &bar, &folder.join(SAVED)).await?;
    house.stop().await?;
    bar.say("week exam, after");
    let adapter = folder.join(format!("state/generations/{}/adapter.gguf", week.generation));
    let (opened, planted) = exam.open(&mut house, (week.generation > 0).then_some(adapter)).await?;
    week.backdoor = week.backdoor.map(|(asked, before, _)| (asked, before, planted));
    if let Some(before) = &week.before {
        week.compared = Some(compare(&files.week, before, &opened));
    }
    week.after = Some(opened);
    bar.0.finish_and_clear();
    Ok(())
}

/// Asks the questions of every day, where there are some.
async fn ask_again(town: &Town<'_>, files: &Files, week: &mut Week, day: usize) -> anyhow::Result<()> {
    if files.trend.is_empty() {
        return Ok(());
    }
    let champion = town.served().await?["champion"].as_u64().unwrap_or(0);
    let asked = asking(town.house, &files.trend, day, town.bar).await?;
    // A day that was cut off is lived again.
    week.trend.truncate(day - 1);
    week.trend.push(Asking { champion, ..asked });
    Ok(())
}

/// Every day with its night, and the morning after the last one until its canary is through.
async fn nights(
    args: &Args,
    house: &House,
    files: &Files,
    week: &mut Week,
    bar: &Bar,
    saved: &Path,
) -> anyhow::Result<()> {
    let settings = week.settings.clone();
    let order = evenly(&files.traffic, settings.seed);
    if settings.questions() > order.len() {
        bar.note(&format!(
            "the week asks {} questions, but the pool has {}: some come again",
            settings.questions(),
            order.len()
        ));
    }
    let town = Town {
        house,
        users: users(house)?,
        guests: guests(house, &settings)?,
        pool: &files.traffic,
        order: &order,
        settings: &settings,
        parallel: usize::from(args.parallel),
        greedy: !args.sampled,
        life: std::process::id(),
        bar,
    };
    let models = town.owner().get("/v1/models").await?;
    let told = |field: &str| models["data"][0]["x_chimere"][field].as_str().unwrap_or_default().to_owned();
    week.model_hash = told("model_hash");
    week.goes_on(&format!("{}, {}", told("backend"), told("device")));
    let prober = Prober::start(house.client(PROBER)?);
    let mut seen: Vec<String> = week.nights.iter().flat_map(|night| night.notices.clone()).collect();
    for day in week.nights.len() + 1..=settings.nights {
        bar.say(&format!("day {day}"));
        let date = jiff::Timestamp::from_millisecond(settings.at(day, 0))?.to_zoned(jiff::tz::TimeZone::UTC).date();
        let mut night = Night { night: day, date: date.to_string(), ..Night::default() };
        town.live(day, &mut night, async || false).await?;
        ask_again(&town, files, week, day).await?;
        night::pass(&town, day, &mut night).await?;
        night.notices = night::notices(town.owner(), &mut seen).await?;
        night.probes = prober.take();
        bar.inc(NIGHT_STEPS);
        bar.note(&night.line());
        week.probes.add(night.probes);
        week.generation = night.champion;
        week.nights.push(night);
        keep(week, saved)?;
    }
    bar.say("the morning after");
    let through = async || town.served().await.is_ok_and(|served| served["canary"].is_null());
    if !through().await {
        town.live(settings.nights + 1, &mut Night::default(), through).await?;
    }
    ask_again(&town, files, week, settings.nights + 1).await?;
    week.probes.add(prober.take());
    week.generation = town.served().await?["champion"].as_u64().unwrap_or(0);
    if let Some(last) = week.nights.last_mut() {
        last.notices.extend(night::notices(town.owner(), &mut seen).await?);
    }
    Ok(())
}
