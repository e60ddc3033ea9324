//! `chimere check`: everything that a start would read, read and judged without starting anything.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::{Config, Environment, Flags, WatchedFolder};
use crate::daemon::validate::judge;
use crate::documents::folder::look;
use crate::engine::validate::Judged;
use crate::keys::{KeyError, KeyRing};
use crate::night::schedule::Schedule;
use crate::pipeline::{PipelineSet, Sources};
use crate::plural;
use crate::store::files::{StateLock, places, why_not};
use crate::web::Web;

mod kept;
mod model;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `config`, `pipelines`, `night`, `card`, `served`, `model`, `learning`, `tables`, `start`, `further`, `folder`, `web`, `judge`,
    /// `embedder`, `keys`, `listen`, `room`, `lessons`, `documents` or `turns`; of `chimere doctor` also `processor`, `gpu`,
    /// `memory`, `state`, `port`, `daemon`, `url` or `nights`.
    pub what: &'static str,
    pub good: bool,
    /// What was found, or what is wrong with it and where.
    pub message: String,
}

/// What a running daemon says that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    pub file: PathBuf,
    /// Where it was asked.
    pub by: String,
    /// The file is one of this machine.
    pub here: bool,
}

/// A daemon that does not say what it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaid {
    pub why: String,
    /// It may be of this machine, and hold a part of its memory.
    pub here: bool,
    /// It asks for a key, or for another one.
    pub guarded: bool,
}

/// What a running daemon says of itself.
#[derive(Clone, Debug)]
pub struct Told {
    /// Where it was asked.
    by: String,
    /// As `/v1/status` has it.
    status: Value,
}

/// What is looked at beside the configuration.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// Ours, in a process of which the model file is judged; absent: it is judged in this one.
    pub program: Option<PathBuf>,
    /// Absent: nobody named a daemon, and none answered.
    pub served: Option<Result<Served, Unsaid>>,
    /// Absent: none answers, or it tells it to others alone.
    pub told: Option<Told>,
    /// Somebody named that daemon, or showed it a key: that it does not say is a fault.
    pub named: bool,
}

fn finding<E: std::fmt::Display>(what: &'static str, result: Result<String, E>) -> Finding {
    match result {
        Ok(message) => Finding { what, good: true, message },
        Err(error) => Finding { what, good: false, message: error.to_string() },
    }
}

impl Config {
    /// Checks a configuration and what it names.
    pub fn check_in(flags: &Flags, env: &Environment, looked: &Looked) -> Vec<Finding> {
        let program = looked.program.as_deref();
        let config = match Config::load_in(flags, env) {
            Ok(config) => config,
            Err(error) => return vec![finding("config", Err::<String, _>(error))],
        };
        let mut said = format!("valid; state in {}", config.state_dir.display());
        if !config.unknown_variables.is_empty() {
            said += &format!("; variables that mean nothing: {}", config.unknown_variables.join(", "));
        }
        let keys = KeyRing::load(&config.state_dir);
        let further =
            |(path, names): (_, &Vec<String>)| finding("further", further(&config, Path::new(path), names, program));
        let mut findings = vec![
            finding("config", Ok::<_, String>(said)),
            finding("pipelines", pipelines(&config).map(|set| versions(&set))),
            finding("night", night(&config)),
        ];
        // Any other choice does without a card.
        findings.extend((config.engine.backend == "cuda").then(|| finding("card", card())));
        findings.extend(model::look(&config, looked));
        findings.extend(config.models.files.iter().map(further));
        findings.extend(config.folders.iter().map(|one| finding("folder", folder(one))));
        findings.extend(config.web.as_ref().map(|web| finding("web", Web::describe(web))));
        findings.extend([
            finding("judge", crate::daemon::judge::describe(&config)),
            finding("embedder", crate::daemon::embedder::describe(&config)),
            finding("listen", listen(&config, keys.as_ref().is_ok_and(KeyRing::is_empty))),
            finding("keys", self::keys(&config.state_dir, keys, looked)),
        ]);
        findings.extend(kept::look(&config, looked.told.as_ref()));
        findings
    }
}

/// The keys of the file. A running daemon may have others in use: those of before the file was damaged or went.
fn keys(state_dir: &Path, ring: Result<KeyRing, KeyError>, looked: &Looked) -> Result<String, String> {
    let guarded = matches!(&looked.served, Some(Err(unsaid)) if unsaid.guarded && unsaid.here);
    if guarded && ring.as_ref().is_ok_and(KeyRing::is_empty) && lives_in(state_dir) {
        return Err(format!(
            "{} has none, and the running daemon asks for one: those that it read before stay in use until a restart. Put a \
             copy of the file back, or restart the daemon to do without keys (http.loopback_owner says who is its owner then)",
            KeyRing::path(state_dir).display()
        ));
    }
    let said = ring.map(|ring| counted(&ring)).map_err(|error| error.to_string());
    match looked.told.as_ref().and_then(kept::keys_of) {
        None => said,
        Some(why) => Err(format!("{}; {why}", said.unwrap_or_else(|error| error))),
    }
}

/// A daemon that is seen from here holds the folder.
fn lives_in(state_dir: &Path) -> bool {
    StateLock::holder(state_dir).is_ok_and(|holder| holder.is_some_and(|holder| holder.alive))
}

fn counted(ring: &KeyRing) -> String {
    if ring.is_empty() {
        return "none: who asks from this machine as the daemon's user or root is its owner (http.loopback_owner says who), \
                and nights may learn from the owner; `chimere keys add NAME` makes one"
            .to_owned();
    }
    let revoked = ring.entries().iter().filter(|key| key.revoked.is_some()).count();
    let active = ring.entries().len() - revoked;
    let active = plural::counted(active, "key", "keys");
    if revoked > 0 { format!("{active}, and {revoked} revoked") } else { active }
}

/// The card that `engine.backend = "cuda"` asks for.
fn card() -> Result<String, String> {
    let wrong = |error| format!("{error}, but `engine.backend` is \"cuda\": with \"auto\" the processor serves");
    chimere_ffi::gpu::first_card().map(|card| card.name).map_err(wrong)
}

/// `night.yaml` and the exams.
fn night(config: &Config) -> Result<String, String> {
    let schedule = Schedule::load(&config.night_folders()).map_err(|error| error.to_string())?;
    let missing: Vec<String> = [("golden", &config.night.golden), ("slice", &config.night.slice)]
        .into_iter()
        .filter_map(|(name, path)| match path.as_ref().err()?.as_slice() {
            [named] => Some(format!("{name} in {}", places(std::slice::from_ref(named)))),
            _ => Some(name.to_owned()),
        })
        .collect();
    let exams = if missing.is_empty() { String::new() } else { format!("; exams not found: {}", missing.join(", ")) };
    let jobs: Vec<_> = schedule.jobs.iter().map(|(job, entry)| format!("{} `{}`", job.name(), entry.pattern)).collect();
    let state = if config.night.enabled { "on" } else { "off" };
    Ok(format!("{state}; {}{exams}", jobs.join(", ")))
}

fn pipelines(config: &Config) -> Result<PipelineSet, crate::pipeline::PipelineError> {
    let sources =
        Sources { shipped: config.pipelines.shipped.clone(), overlay: Some(config.pipelines.overlay.clone()) };
    PipelineSet::load(&sources)?.within(&config.replies.ceilings)
}

fn versions(set: &PipelineSet) -> String {
    set.all().map(|p| format!("{} {}", p.name, p.version)).collect::<Vec<_>>().join(", ")
}

/// A further model, with the names that requests give it.
fn further(config: &Config, path: &Path, names: &[String], program: Option<&Path>) -> Result<String, String> {
    let named = |said: String| format!("{}: {said}", names.join(", "));
    file(config, path, program, 0).map(|(said, _)| named(said)).map_err(named)
}

/// The judgement of a model file, in words and whole. A file of defaults that a start would pass over is
/// a mistake of somebody's.
/// `freed_bytes`: memory that is free before the file is loaded.
fn file(config: &Config, path: &Path, program: Option<&Path>, freed_bytes: u64) -> Result<(String, Judged), String> {
    let shown = path.display().to_string();
    match judge(config, path, program, freed_bytes) {
        Ok(judged) => match &judged.defaults_unused {
            Some(why) => Err(format!("{shown}: {judged}; but {why}")),
            None => Ok((format!("{shown}: {judged}"), judged)),
        },
        Err(why) if why.contains(&shown) => Err(why),
        Err(why) => Err(format!("{shown}: {why}")),
    }
}

/// A folder whose files are documents.
fn folder(folder: &WatchedFolder) -> Result<String, String> {
    let (path, shown) = (&folder.path, folder.path.display());
    let wrong = |why: String| format!("`{}` of documents.folders is {shown}: {why}", folder.collection);
    match look(path) {
        Ok(sight) => {
            let (files, others) = (sight.files.len(), sight.others);
            Ok(format!("{shown}: {}, {others} of other kinds", plural::counted(files, "file", "files")))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(wrong(
            why_not(path).unwrap_or_else(|| "there is no such folder; its documents stay as they were".to_owned()),
        )),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn listen(config: &Config, keyless: bool) -> Result<String, crate::daemon::DaemonError> {
    let listen = config.http.listen;
    if keyless && !listen.ip().is_loopback() {
        return Err(crate::daemon::DaemonError::Open(listen));
    }
    Ok(listen.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_mistake_is_found_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let env = Environment { home: Some(dir.path().to_owned()), cores: 2, ..Environment::default() };
        let file = dir.path().join("c.toml");
        let flags = Flags { config: Some(file.clone()), ..Flags::default() };
        let good = |text: &str| -> Vec<(&str, bool)> {
            fs::write(&file, text).unwrap();
            Config::check_in(&flags, &env, &Looked::default()).iter().map(|f| (f.what, f.good)).collect()
        };
        assert_eq!(good("[nonsense]"), [("config", false)]);
        let all = good("");
        assert_eq!(all[..2], [("config", true), ("pipelines", true)]);
        assert_eq!(all[2..5], [("night", true), ("model", false), ("judge", true)]);
        assert_eq!(all[5..8], [("embedder", true), ("listen", true), ("keys", true)]);
        assert_eq!(all[8..], [("room", true), ("lessons", true), ("documents", true)]);
        let card = chimere_ffi::gpu::first_card().is_ok();
        assert!(good("[engine]\nbackend = 'cuda'").contains(&("card", card)));
        let judge = |more: &str| format!("[scorer]\nmodel = '{}/nano/nano.gguf'\n{more}", env!("CARGO_MANIFEST_DIR"));
        assert!(good(&judge("")).contains(&("judge", true)));
        assert!(good(&judge("[judge]\ngood = '<|good|> or so'")).contains(&("judge", false)));
        let embed = |name: &str| format!("[embed]\nmodel = '{}/{name}'", env!("CARGO_MANIFEST_DIR"));
        for (name, fits) in [("nano/nano-embed.gguf", true), ("nano/none.gguf", false), ("nano/nano.gguf", false)] {
            assert!(good(&embed(name)).contains(&("embedder", fits)), "{name}");
        }
        let folder = |path: &std::path::Path| format!("documents.folders = {{ papers = '{}' }}", path.display());
        let papers = tempfile::tempdir().unwrap();
        assert!(good(&folder(papers.path())).contains(&("folder", true)));
        assert!(good(&folder(&papers.path().join("none"))).contains(&("folder", false)));
        assert!(good("[web]\nengine = 'searxng'\nurl = 'http://127.0.0.1:8888'").contains(&("web", true)));
        assert!(good("[web]\nengine = 'brave'\nkey_file = '/nonexistent'").contains(&("web", false)));
        assert_eq!(good("[web]\nengine = 'brave'"), [("config", false)]);
        assert!(good("[http]\nlisten = '0.0.0.0:1'").contains(&("listen", false)));
        let model = dir.path().join("m.gguf");
        fs::write(&model, "GGUF and no more").unwrap();
        assert!(good(&format!("[model]\npath = '{}'", model.display())).contains(&("model", false)));
        let overlay = dir.path().join(".local/state/chimere/pipelines");
        fs::create_dir_all(&overlay).unwrap();
        fs::write(overlay.join("code.yaml"), "name: [").unwrap();
        assert!(good("").contains(&("pipelines", false)));
        fs::write(overlay.join("night.yaml"), "version: 1\njobs: {}\n").unwrap();
        assert!(good("").contains(&("night", false)));
    }

    /// Of every model file that the configuration names, and of what lies beside it, a start would say the same.
    #[test]
    fn further_models_and_files_of_defaults_are_judged_too() {
        let dir = tempfile::tempdir().unwrap();
        let env = Environment { home: Some(dir.path().to_owned()), cores: 2, ..Environment::default() };
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("nano");
        let file = |name: &str| dir.path().join(name).display().to_string();
        fs::copy(nano.join("nano.gguf"), file("own.gguf")).unwrap();
        fs::write(file("own.defaults.json"), r#"{"model_hash": "another"}"#).unwrap();
        fs::write(file("text.gguf"), "no model").unwrap();
        let embed = nano.join("nano-embed.gguf").display().to_string();
        let prm = nano.join("nano-prm.gguf").display().to_string();
        let (own, none, text) = (file("own.gguf"), file("none.gguf"), file("text.gguf"));
        let config = file("c.toml");
        let models = format!("a = '{none}', b = '{none}', c = '{embed}', d = '{text}', e = '{own}', f = '{prm}'");
        fs::write(&config, format!("[model]\npath = '{own}'\n[models]\nfiles = {{ {models} }}")).unwrap();
        let flags = Flags { config: Some(config.into()), ..Flags::default() };
        let findings = Config::check_in(&flags, &env, &Looked::default());
        let of = |what: &str, begins: &str| {
            let found = findings.iter().find(|found| found.what == what && found.message.starts_with(begins));
            let found = found.unwrap_or_else(|| panic!("{what} {begins}: {findings:#?}"));
            assert!(!found.good, "{}", found.message);
            found.message.clone()
        };
        for (what, begins, why) in [
            ("model", own.as_str(), "own.defaults.json is passed over: its `model_hash` is that of other weights"),
            ("further", "a, b: ", "No such file"),
            ("further", "c: ", "it is an embedding model and writes no text: name it as `embed.model`"),
            ("further", "d: ", "not a GGUF file"),
            ("further", "e: ", "own.defaults.json is passed over"),
            ("further", "f: ", "of the type `adapter`; name the model that it is for"),
        ] {
            let message = of(what, begins);
            assert!(message.contains(why), "{message}");
        }
        let embedder = findings.iter().find(|found| found.what == "embedder").unwrap();
        let wanted = format!("neither {} nor the installation's", file("nano-embed.gguf"));
        assert!(embedder.message.contains(&wanted), "{}", embedder.message);
        fs::remove_file(file("own.defaults.json")).unwrap();
        let found = Config::check_in(&flags, &env, &Looked::default());
        assert!(found.iter().any(|found| found.what == "further" && found.good && found.message.starts_with("e: ")));
    }
}
