//! What drafts 3 and 4 of JSON Schema wrote otherwise. What has one meaning in every draft is taken where it stands
//! (`required: true` of a property, `exclusiveMinimum: true` beside `minimum`). What is left of them is refused here, for
//! a later draft passes over it without a word.

use serde_json::{Map, Value};

use super::wrong;
use crate::engine::grammar::{GrammarError, Reads};

/// Keywords that no later draft knows, and what says the same today.
const GONE: [(&str, &str); 3] =
    [("divisibleBy", "`multipleOf`"), ("extends", "`allOf`"), ("disallow", "which `type` or `anyOf` is allowed")];

/// Refuses what a schema at a JSON pointer says in the words of an older draft.
pub(super) fn check(map: &Map<String, Value>, at: &str) -> Result<(), GrammarError> {
    for (keyword, now) in GONE {
        if map.contains_key(keyword) {
            return Err(wrong(at, keyword, format!("this keyword is of draft 3, and gone since: write {now}")));
        }
    }
    if map.get("required") == Some(&Value::Bool(true)) && !is_property(at) {
        let reason =
            "`true` means something within a property alone (draft 3): write the list of names that must be there";
        return Err(wrong(at, "required", reason));
    }
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if map.get(exclusive) == Some(&Value::Bool(true)) && !map.contains_key(bound) {
            let reason = format!("`true` needs a `{bound}` beside it (draft 4): write the number itself here");
            return Err(wrong(at, exclusive, reason));
        }
    }
    Ok(())
}

/// Whether a property says of itself that it must be there, as in draft 3.
pub(super) fn is_required(property: &Value) -> bool {
    property["required"] == true
}

/// Whether the schema at a JSON pointer is that of a property.
fn is_property(pointer: &str) -> bool {
    let (mut reads, mut last) = (Reads::Schema, "");
    for key in pointer.split('/').skip(1) {
        // Behind a name of the client's stands a schema.
        (last, reads) = match reads {
            Reads::Named if last == "properties" => ("property", Reads::Schema),
            Reads::Named => ("", Reads::Schema),
            _ => (key, reads.under(key)),
        };
    }
    reads == Reads::Schema && last == "property"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_property_is_told_from_what_is_called_so() {
        for (pointer, expected) in [
            ("#", false),
            ("#/properties/a", true),
            ("#/properties", false),
            ("#/properties/properties", true),
            ("#/properties/properties/items", false),
            ("#/properties/properties/properties/a", true),
            ("#/$defs/properties", false),
            ("#/$defs/a/properties/b", true),
            ("#/$defs/property", false),
            ("#/patternProperties/a", false),
            ("#/items/0", false),
            ("#/anyOf/0/properties/x", true),
        ] {
            assert_eq!(is_property(pointer), expected, "{pointer}");
        }
    }
}
