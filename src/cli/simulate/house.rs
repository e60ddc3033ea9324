//! The daemon that lives the week: its folder, keys and configuration, its clock, its process.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chimere::clock::Clock;
use chimere::config::Environment;
use chimere::keys::KeyRing;
use chimere::night::schedule::{SHIPPED, Schedule, Weighing};
use chimere::service::Scope;
use chimere::simulate::plan::{OWNER, USERS, guest};
use chimere::store::files::{create_private_dir, write_durable};
use tokio::process::{Child, Command};

use super::super::client::{Client, Where};
use super::super::port;

/// Longest wait for a daemon that loads its model.
const READY_TIMEOUT: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);
/// The file of keys is small; its own format is JSON.
const KEYS: &str = "keys.json";
/// Who asks the exam of whole weeks, and who probes: neither may be learned from.
pub const EXAMINER: &str = "examiner";
pub const PROBER: &str = "prober";

/// Items of an exam under way at once: enough to fill the engine's batch.
pub const EXAM_PARALLEL: usize = 16;
/// Sequences of the judge's engine, and its threads at least, where there are so many.
const JUDGE_SEQUENCES: usize = 8;
const JUDGE_THREADS: usize = 2;

/// What the daemon is started with.
pub struct Means {
    pub model: PathBuf,
    pub threads: usize,
    /// `engine.backend` of the daemon.
    pub backend: String,
    pub golden: PathBuf,
    pub slice: PathBuf,
    pub pipelines: Option<PathBuf>,
    /// Replaces the one made here.
    pub night: Option<PathBuf>,
    pub gate_items: usize,
    pub gate_margin: Option<f64>,
    pub requests: usize,
    /// Guests who flood.
    pub guests: usize,
    pub seed: u64,
}

/// The folder of one simulation and the daemon in it.
pub struct House {
    folder: PathBuf,
    means: Means,
    keys: BTreeMap<String, String>,
    listen: SocketAddr,
    child: Option<Child>,
}

impl House {
    /// Makes the folder ready: keys, `night.yaml`, configuration.
    pub fn furnish(folder: &Path, means: Means) -> anyhow::Result<House> {
        create_private_dir(&folder.join("state/pipelines"))?;
        let keys = keys(folder, means.guests)?;
        let night = match &means.night {
            Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
            None => night(&means)?,
        };
        Schedule::parse(&night, "night.yaml")?;
        write_durable(&folder.join("state/pipelines/night.yaml"), night.as_bytes())?;
        let listen = port::free()?;
        Ok(House { folder: folder.to_owned(), means, keys, listen, child: None })
    }

    fn config(&self, scoring: bool) -> anyhow::Result<PathBuf> {
        let means = &self.means;
        let text = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
        let mut config = format!(
            // A day has no quiet hours here: the judge gets its share of the machine, and the trainer too.
            "[daemon]\nlow_priority = false\n[engine]\nbackend = \"{}\"\nthreads = {}\nsequences = {}\n\
             [scorer]\nenabled = {scoring}\nthreads = {}\nsequences = {JUDGE_SEQUENCES}\n\
             [night]\nenabled = false\ngolden = {}\nslice = {}\n",
            means.backend,
            means.threads,
            // The gate asks champion and candidate, and leaves one sequence free.
            2 * EXAM_PARALLEL + 2,
            means.threads.div_ceil(4).max(JUDGE_THREADS).min(means.threads),
            text(&means.golden),
            text(&means.slice),
        );
        if let Some(pipelines) = &means.pipelines {
            config += &format!("[pipelines]\ndir = {}\n", text(pipelines));
        }
        let path = self.folder.join("config.toml");
        write_durable(&path, config.as_bytes())?;
        Ok(path)
    }

    /// Starts the daemon and waits until it answers. `scoring`: a judge runs beside it.
    pub async fn start(&mut self, scoring: bool) -> anyhow::Result<()> {
        let config = self.config(scoring)?;
        let log = OpenOptions::new().create(true).append(true).open(self.folder.join("daemon.log"))?;
        let mut command = std::process::Command::new(chimere::program::own()?);
        // Nothing of the caller's own configuration may reach it, and Ctrl-C is for the simulation to answer.
        for (name, _) in Environment::of_process().chimere {
            command.env_remove(name);
        }
        command.env("TZ", "UTC").process_group(0);
        // However this process ends, its daemon ends with it: the pipe to it is closed.
        command.args(["serve", "--end-with-input", "--listen", &self.listen.to_string()]);
        for (flag, path) in [
            ("--config", &config),
            ("--state-dir", &self.state()),
            ("--model", &self.means.model),
            ("--clock-offset", &self.clock_file()),
        ] {
            command.arg(flag).arg(path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::from(log));
        self.child = Some(Command::from(command).kill_on_drop(true).spawn().context("cannot start a daemon")?);
        self.ready().await
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let (client, began) = (self.client(USERS[OWNER].0)?, Instant::now());
        loop {
            if client.get("/health").await.is_ok()
                && client.get("/v1/night").await.is_ok_and(|night| night["served"]["ready"] == true)
            {
                return Ok(());
            }
            let ended = self.child.as_mut().map(Child::try_wait).transpose()?.flatten();
            if let Some(status) = ended {
                bail!("the daemon ended while it started ({status}):\n{}", self.log_end());
            }
            if began.elapsed() > READY_TIMEOUT {
                bail!("the daemon was not ready within {} s:\n{}", READY_TIMEOUT.as_secs(), self.log_end());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Ends the daemon at once: whatever it acknowledged is on the disk.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await.context("cannot end the daemon")?;
        }
        Ok(())
    }

    /// A client with the key of that name.
    pub fn client(&self, name: &str) -> anyhow::Result<Client> {
        let key = self.keys.get(name).cloned();
        Client::new(&Where { url: None, key }, self.listen)
    }

    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    pub fn model(&self) -> &Path {
        &self.means.model
    }

    pub fn threads(&self) -> usize {
        self.means.threads
    }

    fn clock_file(&self) -> PathBuf {
        self.folder.join("clock")
    }

    /// Moves the daemon's clock on to `wanted_ms`; never back.
    pub fn wind(&self, wanted_ms: i64) -> anyhow::Result<()> {
        let file = self.clock_file();
        if file.exists() && Clock::moved_by(file.clone()).now_ms() >= wanted_ms {
            return Ok(());
        }
        let offset = wanted_ms - Clock::wall().now_ms();
        write_durable(&file, offset.to_string().as_bytes()).context("cannot move the clock")
    }

    /// Last lines of the daemon's log.
    pub fn log_end(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

/// Makes the keys of everybody in the house, or finds those of a simulation that goes on.
fn keys(folder: &Path, guests: usize) -> anyhow::Result<BTreeMap<String, String>> {
    let path = folder.join(KEYS);
    if let Ok(file) = File::open(&path) {
        return serde_json::from_reader(file).with_context(|| path.display().to_string());
    }
    let state = folder.join("state");
    create_private_dir(&state)?;
    let mut keys = BTreeMap::new();
    let now = jiff::Timestamp::now();
    for (at, (name, _)) in USERS.iter().enumerate() {
        let scopes: &[Scope] = if at == OWNER { &[Scope::Chat, Scope::Metrics, Scope::Admin] } else { &[Scope::Chat] };
        keys.insert((*name).to_owned(), KeyRing::add(&state, name, scopes, true, now)?.0);
    }
    let others = [(EXAMINER.to_owned(), false), (PROBER.to_owned(), false)];
    for (name, consent) in (0..guests).map(|at| (guest(at), true)).chain(others) {
        let (key, _) = KeyRing::add(&state, &name, &[Scope::Chat], consent, now)?;
        keys.insert(name, key);
    }
    write_durable(&path, &serde_json::to_vec(&keys)?)?;
    Ok(keys)
}

/// The shipped `night.yaml` with an exam of the wanted size and a canary that a day's turns can finish.
fn night(means: &Means) -> anyhow::Result<String> {
    let items = means.gate_items;
    let stages = [(20, means.requests.div_ceil(40).max(2)), (50, means.requests.div_ceil(20).max(4))];
    let (mut out, mut section) = (String::new(), "");
    for line in SHIPPED.lines() {
        let named = line.trim_start();
        let (indent, name) = (&line[..line.len() - named.len()], named.split(':').next().unwrap_or_default());
        if indent.is_empty() && !named.starts_with('#') {
            section = name;
        }
        if section == "canary" && named.starts_with("- {percent") {
            continue;
        }
        let value = match (section, name) {
            ("exam", "items_max") => Some(items.to_string()),
            ("engram", "items_max") => Some(items.min(Weighing::default().items_max).to_string()),
            ("exam", "parallel") => Some(EXAM_PARALLEL.to_string()),
            ("gate", "items_min") => Some((items / 2).clamp(1, 200).to_string()),
            ("gate", "margin") => means.gate_margin.map(|margin| margin.to_string()),
            // A search on a few hundred items of each route, so that the one Monday of a week takes no longer than a night.
            ("optimise", "trials") => Some("12".to_owned()),
            ("optimise", "items_max") => Some("200".to_owned()),
            ("selection", "pairs_min") => Some((means.requests / 10).clamp(8, 40).to_string()),
            ("training", "threads") => Some(means.threads.to_string()),
            ("training", "seed") => Some(means.seed.to_string()),
            _ => None,
        };
        match value {
            Some(value) => out += &format!("{indent}{name}: {value}\n"),
            None => out += &format!("{line}\n"),
        }
        if section == "canary" && name == "stages" {
            for (percent, turns) in stages {
                out += &format!("{indent}  - {{percent: {percent}, scored_turns: {turns}}}\n");
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_night_is_the_shipped_one_but_for_its_sizes() {
        let means = Means {
            model: PathBuf::new(),
            threads: 3,
            backend: "auto".to_owned(),
            golden: PathBuf::new(),
            slice: PathBuf::new(),
            pipelines: None,
            night: None,
            gate_items: 60,
            gate_margin: Some(0.05),
            requests: 400,
            guests: 1,
            seed: 9,
        };
        let made = Schedule::parse(&night(&means).unwrap(), "night.yaml").unwrap();
        let shipped = Schedule::parse(SHIPPED, "night.yaml").unwrap();
        assert_eq!((made.exam.items_max, made.exam.parallel, made.gate.items_min), (60, EXAM_PARALLEL, 30));
        assert_eq!(made.engram.items_max, 60);
        assert_eq!((made.gate.margin, made.training.threads, made.selection.pairs_min), (0.05, 3, 40));
        let stages: Vec<(u8, usize)> = made.canary.stages.iter().map(|s| (s.percent, s.scored_turns)).collect();
        assert_eq!(stages, [(20, 10), (50, 20)]);
        assert_eq!(night(&means).unwrap().lines().count(), SHIPPED.lines().count());
        assert_eq!((made.gate.kl_max, made.training.rank), (shipped.gate.kl_max, shipped.training.rank));
        assert_eq!(made.jobs.len(), shipped.jobs.len());
    }
}
