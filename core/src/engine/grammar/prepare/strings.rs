//! Keywords of texts. Formats become patterns of our own where the grammar library's would let through what no calendar
//! knows, or digits without end.

use serde_json::{Value, json};

use super::{Node, Preparer, patterns};
use crate::engine::grammar::GrammarError;

/// Formats that the library enforces as their documents say.
const KNOWN: [&str; 5] = ["ipv4", "ipv6", "uuid", "duration", "uri"];
/// Formats that say what a text is for, and nothing of how it looks.
const SAYING: [&str; 18] = [
    "binary",
    "password",
    "textarea",
    "text",
    "color",
    "path",
    "file-path",
    "directory-path",
    "markdown",
    "html",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "float",
    "double",
];

const YEAR: &str = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})";
const LEAP_YEAR: &str = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)";
const DAY: &str = "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
/// At most nine digits of a second, no second that a clock skips.
const TIME: &str =
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// A part of a host's name; six of them are shorter than a name may be.
const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?";
/// What stands before the `@`: fewer than 64 characters, a dot never at an end nor beside another.
const MAILBOX: &str = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-](?:\.?[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]){0,31}";

/// A format as a pattern.
fn pattern(format: &str) -> Option<String> {
    let date = format!("(?:{YEAR}-{DAY}|{LEAP_YEAR}-02-29)");
    let whole = match format {
        "date" => date,
        "time" => TIME.to_owned(),
        "date-time" => format!("{date}T{TIME}"),
        "hostname" => format!(r"{LABEL}(?:\.{LABEL}){{0,5}}"),
        "email" => format!(r"{MAILBOX}@(?:{LABEL}\.){{1,4}}[A-Za-z]{{2,24}}"),
        "byte" | "base64" => "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?".to_owned(),
        "base64url" => "[A-Za-z0-9_-]*".to_owned(),
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => {
            let version = &format[4..];
            format!("[0-9a-f]{{8}}-[0-9a-f]{{4}}-{version}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-[0-9a-f]{{12}}")
        }
        "json-pointer" => "(?:/(?:[^/~]|~[01])*)*".to_owned(),
        _ => return None,
    };
    Some(format!("^(?:{whole})$"))
}

impl Preparer<'_> {
    pub(super) fn strings(&mut self, node: &mut Node<'_>) -> Result<(), GrammarError> {
        for keyword in ["minLength", "maxLength"] {
            if let Some(count) = node.count(keyword)? {
                node.out.insert(keyword.to_owned(), json!(count));
            }
        }
        match node.map.get("pattern") {
            None => {}
            Some(Value::String(own)) => match patterns::read(own) {
                Ok(pattern) => drop(node.out.insert("pattern".to_owned(), json!(pattern))),
                Err(reason) if patterns::is_wrong(own) => return Err(node.wrong("pattern", reason)),
                Err(reason) => self.leave(node.at, "pattern", reason)?,
            },
            Some(_) => return Err(node.wrong("pattern", "a pattern must be a text")),
        }
        let format = match node.map.get("format") {
            None => return Ok(()),
            Some(Value::String(format)) => format.as_str(),
            Some(_) => return Err(node.wrong("format", "a format must be a text")),
        };
        match pattern(format) {
            Some(pattern) if node.out.contains_key("pattern") => node.all.push(json!({"pattern": pattern})),
            Some(pattern) => drop(node.out.insert("pattern".to_owned(), json!(pattern))),
            None if KNOWN.contains(&format) => drop(node.out.insert("format".to_owned(), json!(format))),
            // A pattern beside a format that nobody knows says what is meant.
            None if SAYING.contains(&format) || node.map.contains_key("pattern") => {}
            None => self.leave(node.at, "format", format!("the format `{format}` is unknown"))?,
        }
        Ok(())
    }
}
