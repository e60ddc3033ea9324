//! Reading YAML of the owner's: bounded, strict, with messages that name file, line and column.

use serde::de::DeserializeOwned;

/// Why a text is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// `file:line:column`.
    pub place: String,
    pub message: String,
}

/// Reads `text`; `place` is its name in messages. Aliases cannot make a small file large: nodes and depth are
/// counted after they are expanded.
pub fn read<T: DeserializeOwned>(text: &str, place: &str, nodes_max: usize, depth_max: usize) -> Result<T, YamlError> {
    let mut options = serde_saphyr::Options::default();
    if let Some(budget) = &mut options.budget {
        budget.max_nodes = nodes_max;
        budget.max_depth = depth_max;
    }
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let at = error.location().map(|l| format!(":{}:{}", l.line(), l.column())).unwrap_or_default();
        // The message alone: the place is said once, ours, and the snippet is for terminals.
        let message = error.without_snippet().to_string();
        let message = message.lines().next().unwrap_or_default().trim();
        let message = message.rsplit_once(" at line ").map_or(message, |(said, _)| said).to_owned();
        YamlError { place: format!("{place}{at}"), message }
    })
}
