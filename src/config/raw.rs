//! The configuration as it was typed: every field optional, with the place it came from, and the layers put
//! over each other. Nothing here knows what a value means; `Config` does.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};

use super::ConfigError;

/// One value as typed, and where.
#[derive(Clone, Debug)]
pub struct Field<T> {
    pub value: T,
    /// `file:line:column`, a variable or a flag: what a message about this value names.
    pub origin: String,
    span: Range<usize>,
}

impl<T> Field<T> {
    pub fn flag(value: T, flag: &str) -> Option<Self> {
        Some(Field { value, origin: format!("flag {flag}"), span: 0..0 })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let spanned = toml::Spanned::<T>::deserialize(from)?;
        let span = spanned.span();
        Ok(Field { value: spanned.into_inner(), origin: String::new(), span })
    }
}

/// A key that somebody set, for people: its value as TOML, and where it was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed {
    /// `section.key`
    pub key: String,
    pub value: String,
    pub origin: String,
}

impl Typed {
    fn of<T: Serialize>(section: &str, key: &str, field: &Field<T>) -> Typed {
        let value = toml::Value::try_from(&field.value).map_or_else(|_| String::new(), |value| value.to_string());
        Typed { key: format!("{section}.{key}"), value, origin: field.origin.clone() }
    }
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$about])* pub $field: Option<Field<$kind>>,)* }

        impl $name {
            const KEYS: &'static [&'static str] = &[$(stringify!($field)),*];

            fn over(self, below: Self) -> Self {
                $name { $($field: self.$field.or(below.$field),)* }
            }

            fn typed(&self, section: &str, out: &mut Vec<Typed>) {
                $(if let Some(field) = &self.$field { out.push(Typed::of(section, stringify!($field), field)); })*
            }

            fn locate(&mut self, place: &dyn Fn(Range<usize>) -> String) {
                $(if let Some(field) = &mut self.$field { field.origin = place(field.span.clone()); })*
            }
        }
    };
}

macro_rules! document {
    ($($section:ident: $kind:ident,)*) => {
        /// A whole configuration file.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct RawConfig { $(pub $section: $kind,)* }

        impl RawConfig {
            /// Every `section.key` that exists.
            pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
                [$((stringify!($section), $kind::KEYS)),*]
                    .into_iter()
                    .flat_map(|(section, keys)| keys.iter().map(move |key| (section, *key)))
            }

            /// `self` where it says something, `below` elsewhere.
            pub fn over(self, below: Self) -> Self {
                RawConfig { $($section: self.$section.over(below.$section),)* }
            }

            /// What was set, of every section.
            pub fn typed(&self) -> Vec<Typed> {
                let mut out = Vec::new();
                $(self.$section.typed(stringify!($section), &mut out);)*
                out
            }

            fn locate(&mut self, place: &dyn Fn(Range<usize>) -> String) {
                $(self.$section.locate(place);)*
            }
        }
    };
}

section! {
    /// `[model]`
    ModelSection {
        /// A GGUF file. Absent: the installation's nano model.
        path: PathBuf,
        /// Other names that requests may give the model.
        aliases: Vec<String>,
    }
}

section! {
    /// `[models]`: further models, each with an engine of its own while somebody asks for it.
    ModelsSection {
        /// The name that a request gives, and a GGUF file; several names may share one.
        files: BTreeMap<String, PathBuf>,
        loaded_max: u64,
        /// 0: until its place is needed.
        idle_unload_ms: u64,
        load_wait_ms: u64,
    }
}

section! {
    /// `[engine]`: the process that hosts the model.
    EngineSection {
        /// `auto`, `cpu`, `cuda` or `llama`.
        backend: String,
        /// Device memory that may be used.
        vram_bytes_max: u64,
        /// Memory of the host that may be pinned for experts that do not fit there.
        pinned_bytes_max: u64,
        threads: u64,
        context_tokens: u64,
        sequences: u64,
        /// Absent: what suits the device.
        step_tokens: u64,
        /// `auto`, `f16`, `f32` or `q8_0/q4_0`.
        kv: String,
        /// `f32` or `bf16`.
        state: String,
        /// Memory of kept prompt prefixes; 0: none are kept.
        snapshot_bytes_max: u64,
        snapshots_on_disk: bool,
        load_timeout_ms: u64,
        stall_timeout_ms: u64,
        first_start_attempts: u64,
    }
}

section! {
    /// `[http]`: the listener and its limits.
    HttpSection {
        listen: String,
        connections_max: u64,
        connections_per_address_max: u64,
        body_bytes_max: u64,
        header_timeout_ms: u64,
        body_timeout_ms: u64,
        idle_timeout_ms: u64,
        write_timeout_ms: u64,
        hosts: Vec<String>,
        origins: Vec<String>,
        loopback_owner: String,
    }
}

section! {
    /// `[replies]`: what one reply may cost.
    RepliesSection {
        requests_max: u64,
        max_tokens: u64,
        /// 0: no ceiling.
        tokens_max: u64,
        generations_max: u64,
        tool_calls_max: u64,
        start_timeout_ms: u64,
        reply_timeout_ms: u64,
        client_stall_timeout_ms: u64,
    }
}

section! {
    /// `[memory]`: the turn log.
    MemorySection {
        bytes_max: u64,
        append_timeout_ms: u64,
    }
}

section! {
    /// `[scorer]`: the judge of finished replies, an engine process of its own.
    ScorerSection {
        enabled: bool,
        /// A GGUF file. Absent: the installation's nano model.
        model: PathBuf,
        /// A judge's adapter for that model. Absent: `nano-prm.gguf` beside the model.
        adapter: PathBuf,
        backend: String,
        threads: u64,
        sequences: u64,
        queue_max: u64,
    }
}

section! {
    /// `[judge]`: how the judge's model is asked, and by which tokens it answers.
    JudgeSection {
        /// `nano`, `chat` or `text`.
        form: String,
        /// Each one token of the model.
        good: String,
        bad: String,
        /// The words around `{question}` and `{steps}`.
        prompt: String,
        /// The words around one of `{steps}`.
        step: String,
        before_label: String,
        think_tokens: u64,
        label_each: bool,
    }
}

section! {
    /// `[embed]`: texts as vectors, to find verified exchanges that are like a question.
    EmbedSection {
        /// An embedding model (GGUF). Absent: `nano-embed.gguf` beside the model, else the installation's.
        model: PathBuf,
        aliases: Vec<String>,
        threads: u64,
        context_tokens: u64,
        /// Put before a question, and before what it is compared with.
        query_prefix: String,
        document_prefix: String,
        query_timeout_ms: u64,
        timeout_ms: u64,
    }
}

section! {
    /// `[documents]`: files that people give.
    DocumentsSection {
        file_bytes_max: u64,
        /// A collection, and the folder whose files it has: `papers`, or `ada/papers` for one of a key's.
        folders: BTreeMap<String, PathBuf>,
    }
}

section! {
    /// `[web]`: searching the web.
    WebSection {
        /// `searxng` or `brave`. Absent: no web is searched.
        engine: String,
        url: String,
        key_file: PathBuf,
        allowed_domains: Vec<String>,
        blocked_domains: Vec<String>,
        results: u64,
        pages: u64,
        page_bytes_max: u64,
        search_timeout_ms: u64,
        fetch_timeout_ms: u64,
        rank_timeout_ms: u64,
        timeout_ms: u64,
        cache_ms: u64,
    }
}

section! {
    /// `[pipelines]`
    PipelinesSection {
        dir: PathBuf,
    }
}

section! {
    /// `[night]`
    NightSection {
        enabled: bool,
        /// The exam that the gate reads (JSONL).
        golden: PathBuf,
        /// The exam that the night may tune on (JSONL).
        slice: PathBuf,
    }
}

section! {
    /// `[daemon]`
    DaemonSection {
        state_dir: PathBuf,
        drain_timeout_ms: u64,
        low_priority: bool,
        actor_restarts_max: u64,
        actor_restarts_window_ms: u64,
    }
}

section! {
    /// `[log]`
    LogSection {
        /// `text` or `json`.
        format: String,
        /// As RUST_LOG: `info`, `chimere=debug,warn` …
        filter: String,
    }
}

document! {
    model: ModelSection,
    models: ModelsSection,
    engine: EngineSection,
    http: HttpSection,
    replies: RepliesSection,
    memory: MemorySection,
    scorer: ScorerSection,
    judge: JudgeSection,
    embed: EmbedSection,
    documents: DocumentsSection,
    web: WebSection,
    pipelines: PipelinesSection,
    night: NightSection,
    daemon: DaemonSection,
    log: LogSection,
}

impl RawConfig {
    /// Reads TOML text; `name` is the file that messages name.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigError> {
        let place = |span: Range<usize>| format!("{name}:{}", line_column(text, span.start));
        match read(text) {
            Ok(mut raw) => {
                raw.locate(&place);
                Ok(raw)
            }
            Err(Unread { span, message }) => {
                Err(ConfigError::Parse { place: span.map_or_else(|| name.to_owned(), place), message })
            }
        }
    }

    /// Reads `CHIMERE_SECTION_KEY` variables. Unknown names come back to be warned of and not refused:
    /// an orchestrator may set variables of that form for a service called chimere.
    pub fn from_variables(variables: &[(String, String)]) -> Result<(Self, Vec<String>), ConfigError> {
        let mut raw = RawConfig::default();
        let mut unknown = Vec::new();
        for (name, value) in variables {
            let Some(wanted) = name.strip_prefix(super::ENV_PREFIX) else { continue };
            if super::ENV_OTHER.contains(&name.as_str()) {
                continue;
            }
            let key = Self::keys().find(|(section, key)| wanted.eq_ignore_ascii_case(&format!("{section}_{key}")));
            match key {
                Some((section, key)) => raw = Self::variable(name, section, key, value)?.over(raw),
                None => unknown.push(name.clone()),
            }
        }
        Ok((raw, unknown))
    }

    /// A path that says nothing, and where it does. It would be the folder in which the program was started.
    pub fn empty_path<'a>(&'a self) -> Option<(&'static str, &'a str)> {
        let empty = |path: &PathBuf| path.as_os_str().is_empty();
        let several = [("models.files", &self.models.files), ("documents.folders", &self.documents.folders)];
        let within = several.into_iter().find_map(|(key, field)| {
            field.as_ref().filter(|field| field.value.values().any(empty)).map(|field| (key, field.origin.as_str()))
        });
        let paths = [
            ("daemon.state_dir", &self.daemon.state_dir),
            ("model.path", &self.model.path),
            ("scorer.model", &self.scorer.model),
            ("scorer.adapter", &self.scorer.adapter),
            ("embed.model", &self.embed.model),
            ("web.key_file", &self.web.key_file),
            ("pipelines.dir", &self.pipelines.dir),
            ("night.golden", &self.night.golden),
            ("night.slice", &self.night.slice),
        ];
        let of = |(key, field): (&'static str, &'a Option<Field<PathBuf>>)| {
            field.as_ref().filter(|field| empty(&field.value)).map(|field| (key, field.origin.as_str()))
        };
        paths.into_iter().find_map(of).or(within)
    }

    /// A variable's text is a TOML value where the key wants one, and a string otherwise.
    fn variable(name: &str, section: &str, key: &str, value: &str) -> Result<Self, ConfigError> {
        let quoted = toml::Value::String(value.to_owned()).to_string();
        let of = |value: &str| read(&format!("[{section}]\n{key} = {value}\n"));
        // Of two refusals that one which takes the text for what it is.
        let is_toml = || toml::from_str::<toml::Table>(&format!("value = {value}\n")).is_ok();
        let unread = |plain, quoted| if is_toml() { plain } else { quoted };
        let mut raw = of(value).or_else(|plain| of(&quoted).map_err(|quoted| unread(plain, quoted))).map_err(
            |Unread { message, .. }| ConfigError::Parse { place: format!("environment variable {name}"), message },
        )?;
        raw.locate(&|_| format!("environment variable {name}"));
        Ok(raw)
    }
}

/// Why a text is no configuration, and where in it.
struct Unread {
    span: Option<Range<usize>>,
    message: String,
}

/// A value of the wrong kind is told with its key.
fn read(text: &str) -> Result<RawConfig, Unread> {
    let unread = |error: &toml::de::Error, message| Unread { span: error.span(), message };
    let parsed = toml::Deserializer::parse(text).map_err(|error| unread(&error, explain(error.message())))?;
    serde_path_to_error::deserialize(parsed).map_err(|error| {
        // A value is read with its place, by a struct whose names are no keys.
        let keys: Vec<String> =
            error.path().iter().map(ToString::to_string).filter(|key| !key.starts_with('$')).collect();
        let said = crate::mistyped::in_words(error.inner().message());
        let wrong_kind = said.starts_with("must be ");
        let message = if wrong_kind { format!("{} {said}", keys.join(".")) } else { explain(error.inner().message()) };
        unread(error.inner(), message)
    })
}

/// 1-based `line:column` (in characters) of a byte offset.
fn line_column(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("{line}:{column}")
}

/// Adds "did you mean" to serde's message about an unknown field.
fn explain(message: &str) -> String {
    let message = message.trim_end();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let (true, Some(typed)) = (message.starts_with("unknown field"), quoted.next()) else {
        return message.to_owned();
    };
    match nearest(typed, quoted) {
        Some(meant) => format!("unknown key `{typed}`: did you mean `{meant}`?"),
        None => message.replacen("unknown field", "unknown key", 1),
    }
}

/// The candidate at the smallest edit distance, if near enough to be meant.
pub fn nearest<'a>(typed: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = typed.chars().count().div_ceil(3).max(1);
    candidates.map(|c| (strsim::levenshtein(typed, c), c)).filter(|(d, _)| *d <= limit).min().map(|(_, c)| c)
}

#[cfg(test)]
mod tests;
