//! The file of an optimised pipeline: the file in force, with another instruction, other demonstrations and a word on
//! where they come from. Everything else stays as it was, and is compared before the file may be used.

use serde_json::{Map, Value, json};

use super::Demonstration;
use crate::pipeline::{Pipeline, PipelineError, Provenance, yaml};
use crate::turn::{Message, Role};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OverlayError {
    #[error("the pipeline's file cannot be read again: {0}")]
    Read(String),
    #[error("the new file is no pipeline: {0}")]
    Pipeline(#[from] PipelineError),
    #[error("the new file would change more than its instruction and demonstrations")]
    Else,
}

/// Exchanges as a pipeline holds them.
pub fn messages(demonstrations: &[Demonstration]) -> Vec<Message> {
    let pair = |d: &Demonstration| [Message::new(Role::User, &*d.user), Message::new(Role::Assistant, &*d.assistant)];
    demonstrations.iter().flat_map(pair).collect()
}

/// The text of the file, made from that of `base`, the pipeline in force.
pub fn text(
    base: &Pipeline,
    base_text: &str,
    system: &str,
    demonstrations: &[Message],
    provenance: &Provenance,
) -> Result<String, OverlayError> {
    let mut file: Map<String, Value> =
        yaml::read(base_text, &base.name, 20_000, 32).map_err(|error| OverlayError::Read(error.message))?;
    let pairs: Vec<Value> = demonstrations
        .chunks_exact(2)
        .map(|pair| json!({ "user": pair[0].content, "assistant": pair[1].content }))
        .collect();
    file.insert("system".to_owned(), json!(system));
    file.insert("demonstrations".to_owned(), json!(pairs));
    file.insert("provenance".to_owned(), json!(provenance));
    let mut text = format!(
        "# Written by the prompt optimisation of run {}: its instruction and demonstrations were better on held-out\n\
         # questions. `chimere pipeline reset {}` removes this file.\n",
        provenance.run, base.name
    );
    // JSON is YAML.
    for (key, value) in &file {
        text.push_str(&format!("{key}: {value}\n"));
    }
    let made = Pipeline::parse(&text, &format!("{}.yaml", base.name), &base.name, true)?;
    let same = Pipeline {
        version: base.version.clone(),
        system: base.system.clone(),
        left: base.left,
        demonstrations: base.demonstrations.clone(),
        provenance: base.provenance.clone(),
        ..made.clone()
    };
    let as_wanted = made.system == system.trim() && made.demonstrations == demonstrations;
    if same == *base && as_wanted { Ok(text) } else { Err(OverlayError::Else) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{PipelineSet, Sources};

    fn provenance() -> Provenance {
        Provenance {
            run: "2026-01-05".into(),
            parent: "1".into(),
            model_hash: "m".into(),
            adapter_revision: 3,
            items: 300,
            difference: 0.05,
            low: 0.02,
            high: 0.08,
            p: 0.001,
            demonstrations: vec!["slice-1".into()],
        }
    }

    #[test]
    fn every_shipped_pipeline_keeps_all_but_what_was_searched() {
        let set = PipelineSet::load(&Sources::default()).unwrap();
        for base in set.all() {
            let file = concat!(env!("CARGO_MANIFEST_DIR"), "/pipelines/");
            let shipped = std::fs::read_to_string(format!("{file}{}.yaml", base.name)).unwrap();
            let pairs = [Message::new(Role::User, "a: \"b\"\n# c"), Message::new(Role::Assistant, "- é\t{x}")];
            let made = text(base, &shipped, "Be exact: always.", &pairs, &provenance()).unwrap();
            let read = Pipeline::parse(&made, "f", &base.name, true).unwrap();
            assert_eq!((read.system.as_str(), read.demonstrations.as_slice()), ("Be exact: always.", &pairs[..]));
            assert_eq!(read.provenance, Some(provenance()));
            assert_eq!(read.version, format!("{}+overlay.2026-01-05", base.version));
            assert_eq!(read.rules, base.rules);
            // And once more on top of that.
            let again = Provenance { run: "2026-01-12".into(), ..provenance() };
            let second = text(&read, &made, "", &[], &again).unwrap();
            let read = Pipeline::parse(&second, "f", &base.name, true).unwrap();
            assert!(read.system.is_empty() && read.demonstrations.is_empty(), "{second}");
        }
    }
}
