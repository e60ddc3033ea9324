//! Where references within a schema lead: for the grammar of an answer, for its reader and for a prompt alike.

use std::collections::HashMap;

use serde_json::Value;

/// Levels that are searched for names: a schema has fewer.
const LEVELS_MAX: usize = 80;

/// The names that schemas have given themselves, with JSON pointers to them.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    pub(super) fn of(root: &Value) -> Names {
        let mut names = Names::default();
        collect(root, "#", LEVELS_MAX, &mut names);
        names
    }

    /// The JSON pointer, with its `#`, that a reference means; none where nothing stands there.
    fn pointer(&self, root: &Value, reference: &str) -> Option<String> {
        let written = reference.strip_prefix('#')?;
        if written.is_empty() || written.starts_with('/') {
            let pointer = format!("#{}", percent_decoded(written)?);
            return at(root, &pointer).is_some().then_some(pointer);
        }
        self.0.get(written).cloned()
    }

    /// What a reference leads to.
    pub(super) fn target<'a>(&self, root: &'a Value, reference: &str) -> Option<&'a Value> {
        at(root, &self.pointer(root, reference)?)
    }
}

/// What stands at a pointer.
fn at<'a>(root: &'a Value, pointer: &str) -> Option<&'a Value> {
    root.pointer(pointer.strip_prefix('#')?)
}

/// The pointer to what stands under `key`.
pub(crate) fn below(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// A schema and the names within it.
pub(crate) struct References<'a> {
    pub(crate) root: &'a Value,
    names: Names,
}

impl<'a> References<'a> {
    pub(crate) fn of(root: &'a Value) -> References<'a> {
        References { root, names: Names::of(root) }
    }

    /// The JSON pointer, with its `#`, that a reference means; none where nothing stands there.
    pub(crate) fn pointer(&self, reference: &str) -> Option<String> {
        self.names.pointer(self.root, reference)
    }

    /// What stands at a pointer.
    pub(crate) fn at(&self, pointer: &str) -> Option<&'a Value> {
        at(self.root, pointer)
    }

    /// What a reference leads to.
    pub(crate) fn target(&self, reference: &str) -> Option<&'a Value> {
        self.names.target(self.root, reference)
    }
}

fn collect(schema: &Value, path: &str, levels: usize, names: &mut Names) {
    let Some(levels) = levels.checked_sub(1) else { return };
    match schema {
        Value::Object(map) => {
            for (keyword, prefix) in [("$anchor", ""), ("$id", "#"), ("id", "#")] {
                let name = map.get(keyword).and_then(Value::as_str).and_then(|id| id.strip_prefix(prefix));
                if let Some(name) = name {
                    names.0.entry(name.to_owned()).or_insert_with(|| path.to_owned());
                }
            }
            map.iter().for_each(|(key, value)| collect(value, &below(path, key), levels, names));
        }
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(n, value)| collect(value, &below(path, &n.to_string()), levels, names));
        }
        _ => {}
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        match (first, after) {
            (b'%', [a, b, after @ ..]) => {
                let hex = |digit: &u8| char::from(*digit).to_digit(16);
                bytes.push((hex(a)? * 16 + hex(b)?) as u8);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}
