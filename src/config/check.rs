//! `chimere check`: everything that a start would read, read and judged without starting anything.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{Config, Environment, Flags};
use crate::daemon::choice::{served_file, whole};
use crate::daemon::validate::judge;
use crate::engine::learns;
use crate::engine::validate::Judged;
use crate::engram::fit;
use crate::keys::KeyRing;
use crate::night::schedule::Schedule;
use crate::pipeline::{PipelineSet, Sources};
use crate::plural;
use crate::store::files::places;
use crate::web::Web;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// `config`, `pipelines`, `night`, `card`, `served`, `model`, `learning`, `tables`, `start`, `further`, `web`, `judge`,
    /// `embedder`, `keys` or `listen`; of `chimere doctor` also `processor`, `gpu`, `memory`, `state`, `port`, `daemon`,
    /// `url` or `nights`.
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

/// What is looked at beside the configuration.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// Ours, in a process of which the model file is judged; absent: it is judged in this one.
    pub program: Option<PathBuf>,
    /// Absent: nobody named a daemon, and none answered. `Err`: why it did not say.
    pub served: Option<Result<Served, String>>,
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
        findings.extend(model(&config, looked));
        findings.extend(config.models.files.iter().map(further));
        findings.extend(config.web.as_ref().map(|web| finding("web", Web::describe(web))));
        findings.extend([
            finding("judge", crate::daemon::judge::describe(&config)),
            finding("embedder", crate::daemon::embedder::describe(&config)),
            finding("listen", listen(&config, keys.as_ref().is_ok_and(KeyRing::is_empty))),
            finding("keys", keys.map(|ring| counted(&ring))),
        ]);
        findings
    }
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

/// The model that is served, or would be. Of one that can be: whether its weights learn at night, and which tables it uses.
/// A daemon may serve another file than a start would.
fn model(config: &Config, looked: &Looked) -> Vec<Finding> {
    let start = served_file(config).map_err(|places| crate::daemon::DaemonError::NoModel(places).to_string());
    let judged_with = |path: &Path, freed_bytes| file(config, path, looked.program.as_deref(), freed_bytes);
    // What a start would serve, and what keeps a route of it from a table.
    let started = |begins: &str, path: Result<PathBuf, String>, freed_bytes| {
        let judged = path.and_then(|path| judged_with(&path, freed_bytes));
        let tokenizer = judged.as_ref().ok().and_then(|(_, judged)| judged.tokenizer.as_deref());
        let tables = tokenizer.and_then(|tokenizer| tables(config, tokenizer)).filter(|tables| !tables.good);
        (finding("start", judged.map(|(said, _)| format!("{begins}: {said}"))), tables)
    };
    let served = match &looked.served {
        Some(Ok(served)) if served.here => served,
        Some(Ok(Served { file, by, .. })) => {
            let message = format!("{}; the daemon at {by} serves it, on another machine", file.display());
            let (start, tables) = started("a start here would serve", start, 0);
            return [finding("model", Ok::<_, String>(message)), start].into_iter().chain(tables).collect();
        }
        Some(Err(why)) => {
            let message = format!("{why}; so what is served is not looked at");
            let silent = Finding { what: "served", good: !looked.named, message };
            let (start, tables) = started("a start would serve", start, 0);
            return [silent, start].into_iter().chain(tables).collect();
        }
        None => return of_model(config, start.and_then(|path| judged_with(&path, 0)), String::new()),
    };
    let (shown, by) = (served.file.display(), format!("; the daemon at {} serves it", served.by));
    // What it holds is free before it starts again.
    let freed_bytes = std::fs::metadata(&served.file).map_or(0, |file| file.len());
    let mut findings = match judged_with(&served.file, freed_bytes) {
        Ok(judged) => of_model(config, Ok(judged), by),
        // In a container, or where this user cannot look.
        Err(why) if freed_bytes == 0 => {
            vec![finding("model", Ok::<_, String>(format!("{shown}{by}. Looked at from here: {why}")))]
        }
        Err(why) => vec![finding("model", Err::<String, _>(format!("{shown}{by}, and could not again: {why}")))],
    };
    let same = start.as_ref().is_ok_and(|path| whole(path) == whole(&served.file));
    if !same {
        findings.push(started("a start without --model would serve another file", start, freed_bytes).0);
    }
    findings
}

fn of_model(config: &Config, judged: Result<(String, Judged), String>, by: String) -> Vec<Finding> {
    let Ok((said, judged)) = judged else { return vec![finding("model", judged.map(|(said, _)| said))] };
    let mut findings = vec![
        finding("model", Ok::<_, String>(said + &by)),
        finding("learning", Ok::<_, String>(learns::told(judged.frozen.as_deref()))),
    ];
    findings.extend(judged.tokenizer.and_then(|tokenizer| tables(config, &tokenizer)));
    findings
}

/// The tables that a model can use; a pipeline that names another is wrong. `None`: there are no tables, and none is named.
fn tables(config: &Config, tokenizer: &str) -> Option<Finding> {
    let set = pipelines(config).ok()?;
    let shelf = crate::daemon::tables::look(config);
    fit::told(&shelf, tokenizer, &set).map(|said| finding("tables", said))
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
        assert_eq!(all[5..], [("embedder", true), ("listen", true), ("keys", true)]);
        let card = chimere_ffi::gpu::first_card().is_ok();
        assert!(good("[engine]\nbackend = 'cuda'").contains(&("card", card)));
        let judge = |more: &str| format!("[scorer]\nmodel = '{}/nano/nano.gguf'\n{more}", env!("CARGO_MANIFEST_DIR"));
        assert!(good(&judge("")).contains(&("judge", true)));
        assert!(good(&judge("[judge]\ngood = '<|good|> or so'")).contains(&("judge", false)));
        let embed = |name: &str| format!("[embed]\nmodel = '{}/{name}'", env!("CARGO_MANIFEST_DIR"));
        for (name, fits) in [("nano/nano-embed.gguf", true), ("nano/none.gguf", false), ("nano/nano.gguf", false)] {
            assert!(good(&embed(name)).contains(&("embedder", fits)), "{name}");
        }
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

    /// Of a daemon that does not say, and of another machine's, nothing is said of what a start here would serve.
    #[test]
    fn what_is_served_elsewhere_or_not_told_is_not_looked_at_here() {
        let dir = tempfile::tempdir().unwrap();
        let env = Environment { home: Some(dir.path().to_owned()), cores: 2, ..Environment::default() };
        let nano = Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/nano.gguf");
        let flags = Flags { model: Some(nano.clone()), ..Flags::default() };
        let found = |served: Result<Served, String>, named: bool| {
            let looked = Looked { program: None, served: Some(served), named };
            let findings = Config::check_in(&flags, &env, &looked);
            let of = |what: &str| {
                findings.iter().find(|found| found.what == what).map(|found| (found.good, found.message.clone()))
            };
            (["served", "model", "start"].map(of), ["learning", "tables"].map(of))
        };
        // The file of that name lies here too, and is none of that daemon's.
        let far = Served { file: nano.clone(), by: "http://192.0.2.1:1".into(), here: false };
        let ([served, model, start], rest) = found(Ok(far), true);
        assert_eq!((served, rest), (None, [None, None]));
        let (good, model) = model.unwrap();
        assert!(
            good && model.ends_with("nano.gguf; the daemon at http://192.0.2.1:1 serves it, on another machine"),
            "{model}"
        );
        assert!(start.unwrap().1.starts_with("a start here would serve: "));
        for named in [true, false] {
            let ([served, model, start], rest) = found(Err("the key `ann` lacks a scope".into()), named);
            let (good, served) = served.unwrap();
            assert_eq!((good, model, rest), (!named, None, [None, None]));
            assert!(served.starts_with("the key `ann` lacks a scope; so what is served is not looked at"), "{served}");
            assert!(start.unwrap().1.starts_with("a start would serve: "));
        }
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
