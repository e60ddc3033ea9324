//! All pipelines together: the shipped files, those of the overlay folder over them by name, and the cascade
//! built from their rules. A set is whole and immutable, or it is not made at all.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Pipeline;
use super::cost::Ceilings;
use super::file::{FILE_BYTES_MAX, PipelineError};
use crate::intent::{Cascade, Choice, Guess, Likeness, Reading, Rules, guess};
use crate::store::files::read_bounded;
use crate::turn::{Message, Role};

pub const DEFAULT_ROUTE: &str = "default";
const FILES_MAX: usize = 256;
/// Earlier user messages that the cascade asks when the last one says nothing.
const EARLIER_MESSAGES_MAX: usize = 3;

/// The files of this source tree, for a binary without its folder.
const COMPILED_IN: &[(&str, &str)] = &[
    ("code", include_str!("../../pipelines/code.yaml")),
    ("cyber", include_str!("../../pipelines/cyber.yaml")),
    ("default", include_str!("../../pipelines/default.yaml")),
    ("kine", include_str!("../../pipelines/kine.yaml")),
    ("research", include_str!("../../pipelines/research.yaml")),
];

/// Where the files are.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Absent: the files compiled in.
    pub shipped: Option<PathBuf>,
    /// May not exist.
    pub overlay: Option<PathBuf>,
}

/// One file of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name in messages.
    pub place: String,
    pub text: String,
    /// It is of the state folder.
    pub overlay: bool,
}

/// What the rules and the guess make of one text.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    pub choice: Choice,
    pub reading: Reading,
    /// Of the routes of this set.
    pub guess: Vec<Likeness>,
}

impl Routing {
    /// The routes between which it is unsure; none where it is sure.
    pub fn unsure(&self) -> Vec<&str> {
        if self.reading.decided { self.reading.unsure() } else { guess::near(&self.guess) }
    }
}

pub struct PipelineSet {
    pipelines: BTreeMap<String, Pipeline>,
    cascade: Cascade,
    guess: Arc<Guess>,
    /// What makes this set different from another, for status and tests.
    pub sources: Vec<String>,
}

impl PipelineSet {
    pub fn load(sources: &Sources) -> Result<PipelineSet, PipelineError> {
        let files = PipelineSet::texts(sources)?;
        let mut pipelines = BTreeMap::new();
        for (name, file) in &files {
            pipelines.insert(name.clone(), Pipeline::parse(&file.text, &file.place, name, file.overlay)?);
        }
        if !pipelines.contains_key(DEFAULT_ROUTE) {
            return Err(PipelineError::NoDefault);
        }
        let cascade = Cascade::new(rules_of(&pipelines)).map_err(|error| PipelineError::Cascade(error.to_string()))?;
        let guess = Guess::shipped().map_err(|error| PipelineError::Examples(error.to_string()))?;
        Ok(PipelineSet { pipelines, cascade, guess, sources: files.into_values().map(|file| file.place).collect() })
    }

    /// The same set, if no file asks for more than is allowed.
    pub fn within(self, ceilings: &Ceilings) -> Result<PipelineSet, PipelineError> {
        self.pipelines.values().zip(&self.sources).try_for_each(|(own, place)| ceilings.check_file(own, place))?;
        Ok(self)
    }

    /// The file of every route, unread.
    pub fn texts(sources: &Sources) -> Result<BTreeMap<String, Source>, PipelineError> {
        let source = |(place, text): (String, String), overlay| Source { place, text, overlay };
        let mut files: BTreeMap<String, Source> = match &sources.shipped {
            Some(folder) => read_folder(folder, true)?.into_iter().map(|(n, file)| (n, source(file, false))).collect(),
            None => {
                let file = |(n, t): &(&str, &str)| ((*n).to_owned(), (format!("{n}.yaml"), (*t).to_owned()));
                COMPILED_IN.iter().map(file).map(|(n, file)| (n, source(file, false))).collect()
            }
        };
        if let Some(folder) = &sources.overlay {
            files.extend(read_folder(folder, false)?.into_iter().map(|(n, file)| (n, source(file, true))));
        }
        Ok(files)
    }

    pub fn get(&self, route: &str) -> Option<&Pipeline> {
        self.pipelines.get(route)
    }

    pub fn all(&self) -> impl Iterator<Item = &Pipeline> {
        self.pipelines.values()
    }

    /// The rules of every route but the default one.
    pub fn rules(&self) -> Vec<Rules> {
        rules_of(&self.pipelines)
    }

    /// The route of a conversation: its last user message decides, or else the few before it.
    pub fn route(&self, messages: &[Message]) -> Choice {
        self.read(messages).choice
    }

    /// The same with what spoke for every route. Of the texts the first that says something decides, or the last message
    /// where none does.
    pub fn read(&self, messages: &[Message]) -> Routing {
        let users = messages.iter().rev().filter(|m| m.role == Role::User).map(|m| m.content.as_str());
        let mut texts = users.take(1 + EARLIER_MESSAGES_MAX);
        let last = self.read_text(texts.next().unwrap_or_default());
        if last.choice.route != DEFAULT_ROUTE {
            return last;
        }
        texts.map(|text| self.read_text(text)).find(|earlier| earlier.choice.route != DEFAULT_ROUTE).unwrap_or(last)
    }

    /// Rules first: they are the owner's words. Where none speaks, the guess.
    fn read_text(&self, text: &str) -> Routing {
        let reading = self.cascade.read(text);
        let mut guess = self.guess.read(text);
        guess.retain(|one| self.pipelines.contains_key(&one.route));
        let choice = reading.choice().or_else(|| {
            let likely = guess::likely(&guess).filter(|likely| likely.route != DEFAULT_ROUTE)?;
            let because = format!("reads like the examples of it ({:.0} %)", likely.probability * 100.0);
            Some(Choice { route: likely.route.clone(), because })
        });
        let choice = choice.unwrap_or_else(|| Choice {
            route: DEFAULT_ROUTE.to_owned(),
            because: "no rule of another route matched, and it reads like none".to_owned(),
        });
        Routing { choice, reading, guess }
    }

    /// The same set with another guess.
    pub fn with_guess(self, guess: Guess) -> PipelineSet {
        PipelineSet { guess: Arc::new(guess), ..self }
    }
}

fn rules_of(pipelines: &BTreeMap<String, Pipeline>) -> Vec<Rules> {
    pipelines.values().filter(|p| p.name != DEFAULT_ROUTE).map(|p| p.rules.clone()).collect()
}

type Files = BTreeMap<String, (String, String)>;

/// The `.yaml` files of a folder: name → (path for messages, text).
fn read_folder(folder: &Path, required: bool) -> Result<Files, PipelineError> {
    let fail = |path: &Path, message: String| PipelineError::Read { file: path.display().to_string(), message };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => return Ok(Files::new()),
        Err(error) => return Err(fail(folder, error.to_string())),
    };
    let mut files = Files::new();
    for entry in entries {
        let path = entry.map_err(|error| fail(folder, error.to_string()))?.path();
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default().to_owned();
        // `night.yaml` configures the night and is no route.
        let ours = path.extension().is_some_and(|e| e == "yaml") && !stem.starts_with('.') && stem != "night";
        if !ours {
            continue;
        }
        if files.len() >= FILES_MAX {
            return Err(fail(folder, format!("holds more than {FILES_MAX} pipelines")));
        }
        // Gone between listing and reading: as if it had not been listed.
        if let Some(text) = read_bounded(&path, FILE_BYTES_MAX).map_err(|error| fail(&path, error.to_string()))? {
            files.insert(stem, (path.display().to_string(), text));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(text: &str) -> String {
        let set = PipelineSet::load(&Sources::default()).unwrap();
        set.route(&[Message::new(Role::User, text)]).route
    }

    #[test]
    fn the_shipped_files_are_five_routes() {
        let set = PipelineSet::load(&Sources::default()).unwrap();
        let names: Vec<_> = set.all().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["code", "cyber", "default", "kine", "research"]);
        for pipeline in set.all() {
            let words = pipeline.system.split_whitespace().count();
            assert!(words <= 60, "{}: {words} words of system text are much for a small model", pipeline.name);
            assert!(!pipeline.description.is_empty());
        }
    }

    #[test]
    fn plain_questions_take_the_route_a_person_would_expect() {
        for (text, route) in [
            ("What is 17 + 25?", "default"),
            ("Hello, how are you?", "default"),
            ("Who wrote Don Quixote?", "default"),
            ("What is the capital of France?", "default"),
            ("Write a Python function that reverses a list.", "code"),
            ("Why does main.rs not compile?", "code"),
            ("```\nfn main() {}\n```\nwhat does it print?", "code"),
            ("Which muscle does the squat train most?", "kine"),
            ("How many weeks of rehab after an ankle sprain?", "kine"),
            ("Which ATT&CK technique is phishing?", "cyber"),
            ("Explain SQL injection", "cyber"),
            ("Is CVE-2021-44228 still exploited?", "cyber"),
            ("Summarise these sources and cite them.", "research"),
        ] {
            assert_eq!(routed(text), route, "{text}");
        }
    }

    #[test]
    fn questions_in_five_languages_without_a_word_of_the_rules_take_their_routes() {
        for (text, route) in [
            ("My loop never stops and the variable is undefined", "code"),
            ("Comment trier un tableau dans mon programme ?", "code"),
            ("Jemand hat mein Passwort gestohlen", "cyber"),
            ("Mi hanno rubato le credenziali, come mi difendo dagli hacker?", "cyber"),
            ("Me duele la espalda cuando corro", "kine"),
            ("Quels étirements pour le dos ?", "kine"),
            ("Welche Studien belegen das?", "research"),
            ("Riassumi le fonti della letteratura scientifica", "research"),
            ("Erzähl mir einen Witz über Hunde", "default"),
            ("Una ricetta con le uova", "default"),
        ] {
            assert_eq!(routed(text), route, "{text}");
        }
    }

    #[test]
    fn a_rule_speaks_before_the_guess_and_a_route_that_is_not_there_is_never_guessed() {
        let shipped = tempfile::tempdir().unwrap();
        let write = |name: &str, more: &str| {
            let text = format!("name: {name}\nversion: 1\nfollow_model: true\n{more}");
            fs::write(shipped.path().join(format!("{name}.yaml")), text).unwrap();
        };
        write("default", "");
        write("garden", "match: {words: ['*knie*']}\n");
        let set = PipelineSet::load(&Sources { shipped: Some(shipped.path().to_owned()), overlay: None }).unwrap();
        let read = |text: &str| set.read(&[Message::new(Role::User, text)]);
        assert_eq!(read("Knieschmerzen beim Laufen").choice.route, "garden");
        let none = read("Mein Rücken schmerzt");
        assert_eq!(none.choice.route, "default");
        assert!(none.guess.iter().all(|one| one.route == "default") && none.unsure().is_empty(), "{none:?}");
    }

    #[test]
    fn an_overlay_file_replaces_a_shipped_one_and_can_add_a_route() {
        let overlay = tempfile::tempdir().unwrap();
        let thinking = "thinking: {fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}\n";
        let write = |name: &str, more: &str| {
            let text = format!("name: {name}\nversion: 9\n{thinking}{more}");
            fs::write(overlay.path().join(format!("{name}.yaml")), text).unwrap();
        };
        write("code", "");
        write("garden", "match: {words: [tomato]}\n");
        fs::write(overlay.path().join("notes.txt"), "not a pipeline").unwrap();
        let sources = Sources { shipped: None, overlay: Some(overlay.path().to_owned()) };
        let set = PipelineSet::load(&sources).unwrap();
        assert_eq!(set.get("code").unwrap().version, "9+overlay");
        assert_ne!(set.get("kine").unwrap().version, "9+overlay");
        assert_eq!(set.route(&[Message::new(Role::User, "my tomato plant")]).route, "garden");
        write("default", "nonsense: 1\n");
        let error = PipelineSet::load(&sources).err().unwrap().to_string();
        assert!(error.contains("default.yaml:4:"), "{error}");
    }

    #[test]
    fn an_earlier_message_decides_where_the_last_says_nothing() {
        let set = PipelineSet::load(&Sources::default()).unwrap();
        for (question, then, route) in
            [("Write a Python function", "and now shorter", "code"), ("Mi fa male la schiena", "ok", "kine")]
        {
            let messages = [question, then].map(|text| Message::new(Role::User, text));
            assert_eq!(set.route(&messages).route, route, "{question}");
        }
        assert_eq!(set.route(&[]).route, DEFAULT_ROUTE);
    }
}
