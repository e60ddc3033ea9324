//! Whether the weights of a model learn at night. They never change: what is learned is an adapter beside them, and our
//! own forward passes alone compute one. All who speak of it ask here.

use super::model;
use crate::gguf::Gguf;

/// What does not need the weights to learn.
const STILL: &str = "Lessons, verdicts, Engram tables and the index of earlier answers work with it all the same";

/// Why the weights learn nothing; `None`: they learn, as adapters. `foreign`: why no forward pass of ours runs the
/// model, if none does. `library`: libllama runs it.
pub fn frozen(foreign: Option<&str>, library: bool) -> Option<String> {
    match foreign {
        Some(why) => Some(format!("{why}, and only a native one computes adapters")),
        None if library => Some("`engine.backend` is \"llama\", and the library computes no adapters".to_owned()),
        None => None,
    }
}

/// As [`frozen`], of a file that some native backend would be asked to train.
pub fn frozen_file(file: &Gguf) -> Option<String> {
    frozen(model::why_not_native(file).as_deref(), false)
}

/// The same for people, before a night, with what works without.
pub fn told(frozen: Option<&str>) -> String {
    match frozen {
        None => "this model's weights learn at night, as adapters beside the file".to_owned(),
        Some(why) => format!("{}. The job `train` does nothing. {STILL}", refused(why)),
    }
}

/// The reason alone: why an adapter is refused, and a training.
pub fn refused(why: &str) -> String {
    format!("this model's weights cannot learn: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_native_backend_runs_learns_and_nothing_else() {
        assert_eq!(frozen(None, false), None);
        assert!(frozen(None, true).unwrap().contains("engine.backend"));
        let foreign = frozen(Some("architecture \"llama\" has no native implementation"), true).unwrap();
        let said = told(Some(&foreign));
        assert!(said.contains("architecture \"llama\"") && said.contains("`train` does nothing"), "{said}");
        assert!(said.contains("Lessons"), "{said}");
        assert!(!told(None).contains("cannot"));
    }
}
