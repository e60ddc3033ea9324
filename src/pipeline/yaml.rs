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
        let message = in_words(message.rsplit_once(" at line ").map_or(message, |(said, _)| said));
        YamlError { place: format!("{place}{at}"), message }
    })
}

/// What the reader expected, as somebody would say it who writes such a file.
fn in_words(message: &str) -> String {
    let words = match message.rsplit_once("expected ").map_or(message, |(_, expected)| expected) {
        "mapping start" => "keys with their values must stand here, each as `name: value`",
        "sequence start" => "a list must stand here: `[a, b]`, or lines that begin with `- `",
        "string scalar" | "scalar" => "a single value must stand here, and no list or keys",
        "single YAML node" => "the file must be one document, without `---` between several",
        _ => return crate::mistyped::in_words(message),
    };
    words.to_owned()
}

/// The line, from 1, that sets `field` (`training.zeroth.rate`, `stages[1].percent`) in block style, or the deepest section
/// around it that has one.
pub fn line_of(text: &str, field: &str) -> Option<usize> {
    let mut wanted = field.split('.').map(|key| key.split('[').next().unwrap_or(key));
    let mut key = wanted.next()?;
    // The last section found: its line and its indent.
    let mut found: Option<(usize, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let stripped = line.trim_start();
        if stripped.is_empty() || stripped.starts_with('#') {
            continue;
        }
        let indent = line.len() - stripped.len();
        if found.is_some_and(|(_, section)| indent <= section) {
            break;
        }
        if stripped.split_once(':').is_some_and(|(name, _)| name == key) {
            found = Some((number + 1, indent));
            match wanted.next() {
                Some(next) => key = next,
                None => break,
            }
        }
    }
    found.map(|(line, _)| line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_stand_there_is_said_in_plain_words() {
        #[derive(Debug, serde::Deserialize)]
        #[allow(dead_code)]
        struct Whole {
            name: String,
            steps: Vec<u32>,
        }
        for (text, place, words) in [
            ("name", ":1:1", "keys with their values must stand here"),
            ("[engine]", ":1:1", "keys with their values must stand here"),
            ("name: a\nsteps: 3", ":2:8", "a list must stand here"),
            ("name: [a]\nsteps: []", ":1:7", "a single value must stand here"),
        ] {
            let YamlError { place: found, message } = read::<Whole>(text, "c.yaml", 100, 10).unwrap_err();
            assert!(found == format!("c.yaml{place}") && message.starts_with(words), "{text}: {found} {message}");
        }
    }
}
