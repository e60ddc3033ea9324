//! What serde says of a value of a wrong kind, in the words of people who write JSON and TOML.

/// `must be a whole number of 0 or more, not the text "2"`; any other message stays as it is.
pub(crate) fn in_words(why: &str) -> String {
    let said = ["invalid type: ", "invalid value: "].iter().find_map(|begins| why.strip_prefix(begins));
    let Some((found, expected)) = said.and_then(|said| said.rsplit_once(", expected ")) else { return why.to_owned() };
    format!("must be {}, not {}", kind(expected), value(found))
}

fn kind(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        "a boolean" => "true or false",
        "a string" | "path string" => "a text",
        expected if expected.starts_with("struct ") => "an object",
        expected => expected,
    }
}

/// `string "2"`, ``integer `-1` ``, `sequence` …
fn value(found: &str) -> String {
    let quoted = |found: &str, kind: &str| Some(found.strip_prefix(kind)?.trim_matches('`').to_owned());
    let kinds = ["integer ", "floating point ", "boolean ", "character "];
    if let Some(text) = found.strip_prefix("string ") {
        return format!("the text {text}");
    }
    if let Some(value) = kinds.iter().find_map(|kind| quoted(found, kind)) {
        return value;
    }
    match found {
        "sequence" => "an array".to_owned(),
        "map" => "an object".to_owned(),
        "unit value" => "null".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_kinds_are_told_in_plain_words() {
        for (why, words) in [
            ("invalid type: string \"2\", expected u64", "must be a whole number of 0 or more, not the text \"2\""),
            ("invalid value: integer `-1`, expected u64", "must be a whole number of 0 or more, not -1"),
            (
                "invalid type: string \"a, expected u8\", expected a sequence",
                "must be an array, not the text \"a, expected u8\"",
            ),
            ("invalid type: floating point `1.5`, expected i64", "must be a whole number, not 1.5"),
            ("invalid type: map, expected a string", "must be a text, not an object"),
            ("invalid type: null, expected struct Inner", "must be an object, not null"),
            ("invalid type: boolean `true`, expected path string", "must be a text, not true"),
            ("data did not match any variant", "data did not match any variant"),
        ] {
            assert_eq!(in_words(why), words);
        }
    }
}
