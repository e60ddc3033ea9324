//! The `tojson` filter as Hugging Face defines it: Python's `json.dumps` with `ensure_ascii=False`. Templates
//! were trained on its exact bytes: ", " and ": " between items, floats as Python writes them.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::{CUT_MARK, MARK};
use crate::whole;

/// Nesting of a value that can be written.
const DEPTH_MAX: usize = 100;

/// How to write.
struct Style {
    item: String,
    key: String,
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    bytes_max: u64,
}

/// `value` as JSON text of at most `bytes_max` bytes.
pub(super) fn filter(value: &Value, indent: Option<usize>, kwargs: &Kwargs, bytes_max: u64) -> Result<String, Error> {
    let bad = |why: &str| Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"));
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<usize>>("indent")?,
    };
    if indent.is_some_and(|i| i > 32) {
        return Err(bad("indent is over 32"));
    }
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(bad("separators must be two")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    // Over text, which has whole numbers of any length.
    let text = serde_json::to_string(value).map_err(|e| bad(&e.to_string()))?;
    let json = whole::read(&text).map_err(|e| bad(&e.to_string()))?;
    let mut out = String::new();
    let style = Style { item, key, indent, ascii, sorted, bytes_max };
    write(&json, &style, 0, &mut out).map_err(bad)?;
    Ok(out)
}

fn write(json: &Json, style: &Style, depth: usize, out: &mut String) -> Result<(), &'static str> {
    if depth > DEPTH_MAX {
        return Err("the value is nested too deep");
    }
    match json {
        Json::Null => out.push_str("null"),
        Json::Bool(true) => out.push_str("true"),
        Json::Bool(false) => out.push_str("false"),
        Json::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
            Some(f) => out.push_str(&python_float(f)),
            None => out.push_str(&n.to_string()),
        },
        Json::String(text) => match whole::digits(text) {
            Some(digits) => out.push_str(digits),
            None => write_text(text, style.ascii, out),
        },
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(|v| (None, v)).collect();
            write_items(&items, ('[', ']'), style, depth, out)?;
        }
        Json::Object(map) => {
            let mut items: Vec<_> = map.iter().map(|(k, v)| (Some(k.as_str()), v)).collect();
            if style.sorted {
                items.sort_by_key(|(k, _)| *k);
            }
            write_items(&items, ('{', '}'), style, depth, out)?;
        }
    }
    match out.len() as u64 > style.bytes_max {
        true => Err("the template makes too much of text"),
        false => Ok(()),
    }
}

fn write_items(
    items: &[(Option<&str>, &Json)],
    (open, close): (char, char),
    style: &Style,
    depth: usize,
    out: &mut String,
) -> Result<(), &'static str> {
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = style.indent.filter(|_| !items.is_empty()) {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    for (i, (key, value)) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.item);
        }
        line(out, depth + 1);
        if let Some(key) = key {
            write_text(key, style.ascii, out);
            out.push_str(&style.key);
        }
        write(value, style, depth + 1, out)?;
    }
    line(out, depth);
    out.push(close);
    Ok(())
}

fn write_text(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            // They are taken out of the prompt later, and must be found there.
            MARK | CUT_MARK => out.push(c),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `repr` of a float: shortest digits, exponent below 1e-4 and from 1e16 on, at least two digits.
pub(super) fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let Ok(power) = exponent.parse::<i32>() else { return scientific };
    if value != 0.0 && !(-4..16).contains(&power) {
        let sign = if power < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", power.abs());
    }
    format!("{value:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (1.0, "1.0"),
            (-0.5, "-0.5"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (123456789.125, "123456789.125"),
            (0.1 + 0.2, "0.30000000000000004"),
        ];
        for (value, expected) in cases {
            assert_eq!(python_float(value), expected);
        }
    }
}
