//! What a model is asked with where neither the request nor a file of the owner's says it. The first of three decides:
//! a file beside the weights that names their hash (`NAME.defaults.json`), the model file's own `general.sampling.*`,
//! or what the makers of its family recommend. The file of nano is compiled in as well, so that it holds wherever the
//! weights lie.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::gguf::Gguf;
use crate::turn::{Sampling, Tier};

/// Largest file of defaults, bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Most routes that one names.
const ROUTES_MAX: usize = 256;
const NANO: &str = include_str!("../../../nano/nano.defaults.json");

/// Tokens that the model may think before it answers, by tier; 0 = it does not think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThinkingBudget {
    pub fast_tokens: u32,
    pub quality_tokens: u32,
    pub ultra_tokens: u32,
}

impl ThinkingBudget {
    pub fn of(self, tier: Tier) -> u32 {
        match tier {
            Tier::Fast => self.fast_tokens,
            Tier::Quality => self.quality_tokens,
            Tier::Ultra => self.ultra_tokens,
        }
    }
}

/// What was chosen for one route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteDefaults {
    /// Begins the system message; empty = none.
    pub system: String,
    pub thinking: Option<ThinkingBudget>,
    pub max_tokens: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelDefaults {
    /// Where they come from, for people.
    pub source: String,
    pub sampling: Sampling,
    /// Tokens of a reply.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    #[serde(default)]
    pub routes: BTreeMap<String, RouteDefaults>,
    /// Why the file beside the weights is passed over, if there is one that cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused: Option<String>,
}

/// A file of defaults as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    /// What it is, for people.
    #[serde(rename = "about", default)]
    _about: String,
    /// The weights that it is for; it says nothing of any others.
    model_hash: String,
    #[serde(default)]
    sampling: Sampling,
    max_tokens: Option<u32>,
    #[serde(default)]
    routes: BTreeMap<String, RouteDefaults>,
}

impl ModelDefaults {
    /// The defaults of the weights in `path`. A file that cannot be used is passed over, and `unused` says why.
    pub fn of(path: &Path, gguf: &Gguf, architecture: &str, model_hash: &str) -> ModelDefaults {
        let beside = path.with_extension("defaults.json");
        let name = beside.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let why = match read(&beside).and_then(|text| text.map(|text| chosen(&text, &name, model_hash)).transpose()) {
            Ok(Some(Some(defaults))) => return defaults,
            Ok(Some(None)) => Some(format!("its `model_hash` is that of other weights, of these it is {model_hash}")),
            Ok(None) => None,
            Err(why) => Some(why),
        };
        let unused = why.map(|why| format!("{} is passed over: {why}; correct or remove it", beside.display()));
        match chosen(NANO, "nano.defaults.json", model_hash) {
            Ok(Some(defaults)) => ModelDefaults { unused, ..defaults },
            _ => ModelDefaults { unused, ..by_file(gguf, architecture) },
        }
    }
}

/// The file of defaults that `path` has, for the same weights in other types: `to` is their hash, `from` the one of `path`.
pub fn carried(path: &Path, from: &str, to: &str) -> Option<String> {
    let beside = read(&path.with_extension("defaults.json")).ok().flatten();
    let texts = beside.as_deref().into_iter().chain([NANO]);
    let own = texts.into_iter().find(|text| matches!(chosen(text, "", from), Ok(Some(_))))?;
    Some(own.replace(from, to))
}

fn read(path: &Path) -> Result<Option<String>, String> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match text.len() as u64 > FILE_BYTES_MAX {
        true => Err(format!("it is over the limit of {FILE_BYTES_MAX} bytes")),
        false => Ok(Some(text)),
    }
}

/// `None`: they are for other weights.
fn chosen(text: &str, source: &str, model_hash: &str) -> Result<Option<ModelDefaults>, String> {
    let raw: Raw = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if raw.model_hash != model_hash {
        return Ok(None);
    }
    if raw.routes.len() > ROUTES_MAX {
        return Err(format!("it has more than {ROUTES_MAX} routes"));
    }
    let lengths = raw.routes.values().filter_map(|route| route.max_tokens).chain(raw.max_tokens);
    if lengths.into_iter().any(|tokens| tokens == 0) {
        return Err("max_tokens is 0: no reply could be given".to_owned());
    }
    if !in_range(&raw.sampling) {
        return Err("a sampling field is out of its range".to_owned());
    }
    let Raw { sampling, max_tokens, routes, .. } = raw;
    Ok(Some(ModelDefaults { source: source.to_owned(), sampling, max_tokens, routes, unused: None }))
}

fn in_range(sampling: &Sampling) -> bool {
    let share = 0.0..=1.0;
    (0.0..=2.0).contains(&sampling.temperature)
        && share.contains(&sampling.top_p)
        && share.contains(&sampling.min_p)
        && (0.1..=10.0).contains(&sampling.repetition_penalty)
        && (-2.0..=2.0).contains(&sampling.frequency_penalty)
        && (-2.0..=2.0).contains(&sampling.presence_penalty)
}

/// What the makers recommend: temperature, top_p, top_k, min_p.
struct Family {
    /// How the architecture's name begins.
    architecture: &'static str,
    numbers: (f32, f32, u32, f32),
}

const fn family(architecture: &'static str, numbers: (f32, f32, u32, f32)) -> Family {
    Family { architecture, numbers }
}

/// The longer names of a kind first.
const FAMILIES: &[Family] = &[
    family("qwen2", (0.7, 0.8, 20, 0.0)),
    family("qwen", (0.6, 0.95, 20, 0.0)),
    family("gemma", (1.0, 0.95, 64, 0.0)),
    family("gpt-oss", (1.0, 1.0, 0, 0.0)),
    family("deepseek", (0.6, 0.95, 0, 0.0)),
    family("glm4", (1.0, 0.95, 40, 0.0)),
    family("llama", (0.6, 0.9, 0, 0.0)),
    family("mistral3", (0.15, 1.0, 0, 0.0)),
    family("phi3", (0.8, 0.95, 0, 0.0)),
    family("smollm3", (0.6, 0.95, 0, 0.0)),
    family("lfm2", (0.3, 1.0, 0, 0.15)),
    family("nemotron_h", (0.6, 0.95, 0, 0.0)),
    family("command-r", (0.3, 0.75, 0, 0.0)),
    family("cohere2", (0.3, 0.75, 0, 0.0)),
    family("seed_oss", (1.1, 0.95, 0, 0.0)),
];
/// Where nobody recommends anything.
const UNKNOWN: Family = family("", (0.8, 0.95, 40, 0.05));

/// The family's numbers, under those that the model file carries.
fn by_file(gguf: &Gguf, architecture: &str) -> ModelDefaults {
    let family = FAMILIES.iter().find(|family| architecture.starts_with(family.architecture)).unwrap_or(&UNKNOWN);
    let (temperature, top_p, top_k, min_p) = family.numbers;
    let mut sampling = Sampling { temperature, top_p, top_k, min_p, ..Sampling::default() };
    let own = of_file(gguf, &mut sampling);
    let source = match own {
        true => "the model file".to_owned(),
        false if family.architecture.is_empty() => "none".to_owned(),
        false => format!("family {}", family.architecture),
    };
    ModelDefaults { source, sampling, ..ModelDefaults::default() }
}

/// Takes the numbers that the file has and that are in their range; whether there was one.
fn of_file(gguf: &Gguf, sampling: &mut Sampling) -> bool {
    let float = |key: &str| gguf.optional::<f32>(&format!("general.sampling.{key}")).ok().flatten();
    let whole = |key: &str| gguf.optional::<i32>(&format!("general.sampling.{key}")).ok().flatten();
    let mut told = sampling.clone();
    let fields = [
        (float("temp"), &mut told.temperature),
        (float("top_p"), &mut told.top_p),
        (float("min_p"), &mut told.min_p),
        (float("penalty_repeat"), &mut told.repetition_penalty),
    ];
    let mut found = false;
    for (value, field) in fields {
        if let Some(value) = value {
            (*field, found) = (value, true);
        }
    }
    if let Some(top_k) = whole("top_k").and_then(|k| u32::try_from(k).ok()) {
        (told.top_k, found) = (top_k, true);
    }
    if let Some(window) = whole("penalty_last_n").and_then(|n| u32::try_from(n).ok()) {
        (told.penalty_window_tokens, found) = (window, true);
    }
    let good = found && in_range(&told);
    if good {
        *sampling = told;
    } else if found {
        tracing::warn!("the sampling numbers of the model file are out of their ranges, and passed over");
    }
    good
}

// The small files are made by the library's own quantiser.
#[cfg(feature = "llama")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::load::model_hash;
    use crate::gguf::synthetic::Synthetic;

    /// A file without tensors, and what it is asked with.
    fn of(architecture: &str, numbers: &[(&str, f32)], beside: Option<&str>) -> ModelDefaults {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let mut file = Synthetic::new(architecture).unwrap();
        numbers.iter().for_each(|(key, value)| file.set(&format!("general.sampling.{key}"), *value).unwrap());
        file.norm("output_norm.weight", &[32]).unwrap();
        file.write(&path, 1, |_, _| {}).unwrap();
        let gguf = Gguf::open(&path).unwrap();
        let hash = model_hash(&path, &gguf).unwrap();
        if let Some(text) = beside {
            fs::write(folder.path().join("m.defaults.json"), text.replace("HASH", &hash)).unwrap();
        }
        ModelDefaults::of(&path, &gguf, architecture, &hash)
    }

    #[test]
    fn nano_has_its_own_wherever_it_lies() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../nano/nano.gguf"));
        let gguf = Gguf::open(path).unwrap();
        let hash = model_hash(path, &gguf).unwrap();
        for place in [path, Path::new("/nowhere/x.gguf")] {
            let found = ModelDefaults::of(place, &gguf, "qwen35moe", &hash);
            assert_eq!((found.source.as_str(), found.max_tokens), ("nano.defaults.json", Some(1_024)));
            let own = Sampling { temperature: 0.2, top_p: 0.95, min_p: 0.05, ..Sampling::default() };
            assert_eq!(found.sampling, own);
            assert_eq!(found.routes["default"].system, "You are nano, a small assistant.");
            assert_eq!(found.routes["code"].thinking.map(|t| t.of(Tier::Quality)), Some(384));
            assert_eq!(found.routes.len(), 5);
        }
        // The same weights in other types take them along.
        let carried = carried(Path::new("/nowhere/x.gguf"), &hash, "new").unwrap();
        let read = chosen(&carried, "x", "new").unwrap().unwrap();
        assert_eq!((read.max_tokens, read.routes.len()), (Some(1_024), 5));
        // Its numbers are for no other weights, and neither are its texts.
        let other = ModelDefaults::of(path, &gguf, "qwen35moe", "another");
        assert_eq!((other.source.as_str(), other.routes.len()), ("family qwen", 0));
    }

    #[test]
    fn another_model_has_its_files_numbers_or_its_familys() {
        let family = of("llama", &[], None);
        assert_eq!(
            (family.source.as_str(), family.sampling.temperature, family.sampling.top_p),
            ("family llama", 0.6, 0.9)
        );
        let own = of("llama", &[("temp", 0.25), ("min_p", 0.5)], None);
        assert_eq!((own.source.as_str(), own.sampling.temperature, own.sampling.min_p), ("the model file", 0.25, 0.5));
        assert_eq!(own.sampling.top_p, 0.9, "what the file leaves out is the family's");
        assert_eq!(of("llama", &[("temp", f32::NAN)], None), family, "numbers out of range are passed over");
        assert_eq!(of("never-heard-of", &[], None).source, "none");
    }

    #[test]
    fn a_file_beside_the_weights_is_taken_only_for_them() {
        let good = r#"{"model_hash": "HASH", "sampling": {"temperature": 0.5}, "routes": {"code": {"system": "s"}}}"#;
        let found = of("llama", &[], Some(good));
        assert_eq!((found.source.as_str(), found.sampling.temperature), ("m.defaults.json", 0.5));
        assert_eq!((found.routes["code"].system.as_str(), &found.unused), ("s", &None));
        for bad in [
            good.replace("HASH", "another"),
            good.replace("0.5", "9"),
            good.replace("system", "sytsem"),
            good.replace("\"s\"}", "\"s\", \"max_tokens\": 0}"),
            " ".repeat(FILE_BYTES_MAX as usize + 1),
            "{".to_owned(),
        ] {
            let found = of("llama", &[], Some(&bad));
            let why = found.unused.unwrap();
            assert!(found.source == "family llama" && why.contains("m.defaults.json is passed over: "), "{bad}: {why}");
        }
    }
}
