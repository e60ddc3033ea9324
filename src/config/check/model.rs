//! The model of a check: the one that a daemon serves, and the one that a start would serve. They may be two files, and
//! a daemon that says nothing may hold memory that a start would find free.

use std::path::{Path, PathBuf};

use super::{Finding, Looked, Served, Unsaid, file, finding, pipelines};
use crate::config::Config;
use crate::daemon::DaemonError;
use crate::daemon::choice::{served_file, whole};
use crate::engine::learns;
use crate::engine::validate::Judged;
use crate::engram::fit;

/// More memory than any machine has: what is refused with less alone is refused for want of memory.
const ENDLESS_BYTES: u64 = 1 << 50;

/// A judgement in words and whole, or why the file cannot be hosted.
type Verdict = Result<(String, Judged), String>;

/// The model that is served, or would be. Of one that can be: whether its weights learn at night, and which tables it uses.
pub(super) fn look(config: &Config, looked: &Looked) -> Vec<Finding> {
    let start = served_file(config).map_err(|places| DaemonError::NoModel(places).to_string());
    let look = Look { config, program: looked.program.as_deref(), start };
    match &looked.served {
        None => look.in_use(look.start(0), ""),
        Some(Ok(served)) if served.here => look.served_here(served),
        Some(Ok(served)) => look.served_elsewhere(served),
        Some(Err(unsaid)) => look.unsaid(unsaid, looked.named),
    }
}

struct Look<'a> {
    config: &'a Config,
    program: Option<&'a Path>,
    /// The file that a start would serve, or why there is none.
    start: Result<PathBuf, String>,
}

impl Look<'_> {
    fn judged(&self, path: &Path, freed_bytes: u64) -> Verdict {
        file(self.config, path, self.program, freed_bytes)
    }

    /// `freed_bytes`: memory that is free before the start.
    fn start(&self, freed_bytes: u64) -> Verdict {
        self.judged(self.start.as_ref().map_err(Clone::clone)?, freed_bytes)
    }

    fn served_here(&self, served: &Served) -> Vec<Finding> {
        let (shown, by) = (served.file.display(), format!("; the daemon at {} serves it", served.by));
        // What it holds is free before it starts again.
        let freed_bytes = std::fs::metadata(&served.file).map_or(0, |file| file.len());
        let mut findings = match self.judged(&served.file, freed_bytes) {
            Ok(judged) => self.in_use(Ok(judged), &by),
            // In a container, or where this user cannot look.
            Err(why) if freed_bytes == 0 => {
                vec![finding("model", Ok::<_, String>(format!("{shown}{by}. Looked at from here: {why}")))]
            }
            Err(why) => vec![finding("model", Err::<String, _>(format!("{shown}{by}, and could not again: {why}")))],
        };
        let same = self.start.as_ref().is_ok_and(|path| whole(path) == whole(&served.file));
        if !same {
            let start = self.start(freed_bytes).map(|(said, _)| said);
            findings.push(started("a start without --model would serve another file", start));
        }
        findings
    }

    /// Of the other machine's file nothing is looked at here.
    fn served_elsewhere(&self, Served { file, by, .. }: &Served) -> Vec<Finding> {
        let message = format!("{}; the daemon at {by} serves it, on another machine", file.display());
        let start = self.start(0);
        let tables = self.wrong_tables(&start);
        let start = started("a start here would serve", start.map(|(said, _)| said));
        [finding("model", Ok::<_, String>(message)), start].into_iter().chain(tables).collect()
    }

    /// `named`: somebody named that daemon, or showed it a key.
    fn unsaid(&self, Unsaid { why, here, .. }: &Unsaid, named: bool) -> Vec<Finding> {
        let unseen = if *here { "what it serves, and the memory that it holds, are" } else { "what it serves is" };
        let silent = Finding { what: "served", good: !named, message: format!("{why}; so {unseen} not looked at") };
        let start = self.start(0);
        let tables = self.wrong_tables(&start);
        let start =
            if *here { self.beside(start) } else { started("a start would serve", start.map(|(said, _)| said)) };
        [silent, start].into_iter().chain(tables).collect()
    }

    /// A start after a daemon of this machine has ended, which holds nobody knows how much.
    fn beside(&self, start: Verdict) -> Finding {
        let begins = "a start would serve";
        match start {
            Ok((said, _)) => finding("start", Ok::<_, String>(format!("{begins}: {said}, beside the running daemon"))),
            Err(why) if self.start(ENDLESS_BYTES).is_ok() => {
                let unknown =
                    "That is beside the running daemon, so whether it fits once the daemon has ended is not known";
                finding("start", Ok::<_, String>(format!("{begins}: {why}. {unknown}")))
            }
            Err(why) => started(begins, Err(why)),
        }
    }

    fn in_use(&self, verdict: Verdict, by: &str) -> Vec<Finding> {
        let (said, judged) = match verdict {
            Ok(judged) => judged,
            Err(why) => return vec![finding("model", Err::<String, _>(why))],
        };
        let mut findings = vec![
            finding("model", Ok::<_, String>(said + by)),
            finding("learning", Ok::<_, String>(learns::told(judged.frozen.as_deref()))),
        ];
        findings.extend(judged.tokenizer.and_then(|tokenizer| self.tables(&tokenizer)));
        findings
    }

    /// What keeps a route from a table once the file is served.
    fn wrong_tables(&self, start: &Verdict) -> Option<Finding> {
        let tokenizer = start.as_ref().ok()?.1.tokenizer.as_deref()?;
        self.tables(tokenizer).filter(|tables| !tables.good)
    }

    /// The tables that a model can use; a pipeline that names another is wrong. `None`: there are no tables, and none is
    /// named.
    fn tables(&self, tokenizer: &str) -> Option<Finding> {
        let set = pipelines(self.config).ok()?;
        let shelf = crate::daemon::tables::look(self.config);
        fit::told(&shelf, tokenizer, &set).map(|said| finding("tables", said))
    }
}

fn started(begins: &str, said: Result<String, String>) -> Finding {
    finding("start", said.map(|said| format!("{begins}: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// What a check says of `served`, `model`, `start`, `learning` and `tables`.
    fn found(flags: &Flags, looked: &Looked) -> [Option<(bool, String)>; 5] {
        let home = tempfile::tempdir().unwrap();
        let env = Environment { home: Some(home.path().to_owned()), cores: 2, ..Environment::default() };
        let findings = Config::check_in(flags, &env, looked);
        let of = |what: &str| {
            findings.iter().find(|found| found.what == what).map(|found| (found.good, found.message.clone()))
        };
        ["served", "model", "start", "learning", "tables"].map(of)
    }

    fn nano() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/nano.gguf")
    }

    /// Of a daemon that does not say, and of another machine's, nothing is said of what a start here would serve.
    #[test]
    fn what_is_served_elsewhere_or_not_told_is_not_looked_at_here() {
        let flags = Flags { model: Some(nano()), ..Flags::default() };
        let found = |served, named| found(&flags, &Looked { served: Some(served), named, ..Looked::default() });
        // The file of that name lies here too, and is none of that daemon's.
        let far = Served { file: nano(), by: "http://192.0.2.1:1".into(), here: false };
        let [served, model, start, learning, tables] = found(Ok(far), true);
        assert_eq!((served, learning, tables), (None, None, None));
        let (good, model) = model.unwrap();
        assert!(
            good && model.ends_with("nano.gguf; the daemon at http://192.0.2.1:1 serves it, on another machine"),
            "{model}"
        );
        assert!(start.unwrap().1.starts_with("a start here would serve: "));
        for (named, here, unseen) in [
            (true, false, "so what it serves is not looked at"),
            (false, true, "so what it serves, and the memory that it holds, are not looked at"),
        ] {
            let unsaid = Unsaid { why: "the key `ann` lacks a scope".into(), here, guarded: true };
            let [served, model, start, learning, tables] = found(Err(unsaid), named);
            let wanted = format!("the key `ann` lacks a scope; {unseen}");
            assert_eq!((served, model, learning, tables), (Some((!named, wanted)), None, None, None));
            let (good, start) = start.unwrap();
            assert!(good && start.starts_with("a start would serve: "), "{start}");
            assert_eq!(start.ends_with(", beside the running daemon"), here, "{start}");
        }
    }

    /// A daemon that says nothing may hold the very memory that the file lacks; for any other reason it is refused as ever.
    #[test]
    fn a_start_beside_a_silent_daemon_is_not_judged_by_the_memory_that_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let judged = Judged {
            architecture: "llama".into(),
            embedding_only: false,
            library: true,
            tensors: 1,
            files: 1,
            file_bytes: 1,
            context_tokens: 64,
            sequences: 1,
            needs_bytes: 30_000_000_000,
            available_bytes: None,
            frozen: None,
            defaults_unused: None,
            tokenizer: None,
        };
        // Reads a file that is too large for what is free now, or that nothing can read.
        let program = |name: &str, else_says: &str| {
            let path = dir.path().join(name);
            let script = format!(
                "#!/bin/sh\ncase \"$*\" in *'--freed 0 '*) echo 'takes 30.0 GB, and 2.0 GB are free'; exit 65;; esac\n{else_says}\n"
            );
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            Some(path)
        };
        let large = program("large", &format!("echo '{}'", serde_json::to_string(&judged).unwrap()));
        let broken = program("broken", "echo 'it is damaged'; exit 65");
        let flags = Flags { model: Some(nano()), ..Flags::default() };
        let unknown = "is not known";
        for (program, here, good) in [(&large, true, true), (&large, false, false), (&broken, true, false)] {
            let unsaid = Unsaid { why: "it has keys".into(), here, guarded: true };
            let looked = Looked { program: program.clone(), served: Some(Err(unsaid)), ..Looked::default() };
            let (said, message) = found(&flags, &looked)[2].clone().unwrap();
            assert_eq!((said, message.contains(unknown)), (good, good), "{message}");
            assert!(message.contains("takes 30.0 GB, and 2.0 GB are free"), "{message}");
        }
        let none = found(&flags, &Looked { program: large, ..Looked::default() });
        assert!(none[1].as_ref().is_some_and(|(good, _)| !good), "no daemon holds anything: {none:?}");
    }
}
