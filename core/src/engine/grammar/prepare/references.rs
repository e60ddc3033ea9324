//! Where references within a schema lead.

use std::collections::HashMap;

use serde_json::Value;

use super::below;

/// Levels that are searched for names: a schema has fewer.
const LEVELS_MAX: usize = 80;

pub(super) struct References<'a> {
    pub(super) root: &'a Value,
    /// JSON pointers by the names that schemas have given themselves.
    names: HashMap<&'a str, String>,
}

impl<'a> References<'a> {
    pub(super) fn of(root: &'a Value) -> References<'a> {
        let mut names = HashMap::new();
        collect(root, "#", LEVELS_MAX, &mut names);
        References { root, names }
    }

    /// The JSON pointer, with its `#`, that a reference means; none where nothing stands there.
    pub(super) fn pointer(&self, reference: &str) -> Option<String> {
        let written = reference.strip_prefix('#')?;
        if written.is_empty() || written.starts_with('/') {
            let pointer = format!("#{}", percent_decoded(written)?);
            return self.at(&pointer).is_some().then_some(pointer);
        }
        self.names.get(written).cloned()
    }

    /// What stands at a pointer.
    pub(super) fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.root.pointer(pointer.strip_prefix('#')?)
    }
}

fn collect<'a>(schema: &'a Value, path: &str, levels: usize, names: &mut HashMap<&'a str, String>) {
    let Some(levels) = levels.checked_sub(1) else { return };
    match schema {
        Value::Object(map) => {
            for (keyword, prefix) in [("$anchor", ""), ("$id", "#"), ("id", "#")] {
                let name = map.get(keyword).and_then(Value::as_str).and_then(|id| id.strip_prefix(prefix));
                if let Some(name) = name {
                    names.entry(name).or_insert_with(|| path.to_owned());
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
