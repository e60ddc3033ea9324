//! Values as text in the way of Python: `str`, `repr`, and the operator `%` of its strings.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::json::python_float;
use super::python::would_make;
use super::{CUT_MARK, MARK};

/// Nesting of a value that can be written.
const DEPTH_MAX: usize = 100;
/// Width and precision of one `%` field.
const WIDTH_MAX: usize = 1_000;
/// `%` fields of one text.
const FIELDS_MAX: usize = 1_000;

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

/// Python's `str`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            let mut out = String::new();
            write(value, 0, &mut out)?;
            Ok(out)
        }
    }
}

/// Python's `repr` of what is no text at the top.
fn write(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(wrong("the value is nested too deep"));
    }
    match value.kind() {
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if number.is_finite() => out.push_str(&python_float(number)),
            Ok(number) if number.is_nan() => out.push_str("nan"),
            Ok(number) => out.push_str(if number < 0.0 { "-inf" } else { "inf" }),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write(&key, depth + 1, out)?;
                out.push_str(": ");
                write(&value.get_item(&key)?, depth + 1, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write(&item, depth + 1, out)?;
            }
            out.push(']');
        }
        ValueKind::Undefined if depth > 0 => out.push_str("Undefined"),
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// In quotes, the single ones unless only they stand in the text.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            // They are taken out of the prompt later, and must be found there.
            MARK | CUT_MARK => out.push(c),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xff => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push(quote);
}

/// Nearly what Python takes for printable: marks that join the letter before them are.
fn is_printable(c: char) -> bool {
    let joins = matches!(u32::from(c), 0x300..=0x36f | 0x591..=0x5bd | 0x610..=0x61a | 0x64b..=0x65f | 0x900..=0x903 | 0x93a..=0x94f | 0xe31..=0xe4e | 0xfe00..=0xfe0f);
    joins || !c.escape_debug().to_string().starts_with("\\u") && !c.is_control() && (c == ' ' || !c.is_whitespace())
}

/// `format % arguments`.
pub(super) fn percent(format: &str, arguments: &Value) -> Result<String, Error> {
    let list = match arguments.kind() {
        ValueKind::Seq => arguments.try_iter()?.collect(),
        _ => vec![arguments.clone()],
    };
    fields(format, &list, arguments)
}

/// Jinja's filter of the same.
pub(super) fn format_filter(format: &str, arguments: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let names: Vec<String> = named.args().map(str::to_owned).collect();
    let pairs: Result<Vec<(String, Value)>, Error> =
        names.into_iter().map(|name| named.get(&name).map(|value| (name, value))).collect();
    named.assert_all_used()?;
    fields(format, &arguments, &Value::from_iter(pairs?))
}

fn fields(format: &str, list: &[Value], named: &Value) -> Result<String, Error> {
    let mut out = String::new();
    let mut next = list.iter();
    let mut rest = format;
    for _ in 0..FIELDS_MAX {
        let Some((before, behind)) = rest.split_once('%') else {
            out.push_str(rest);
            return Ok(out);
        };
        out.push_str(before);
        let field = Field::read(behind)?;
        rest = &behind[field.length..];
        if field.kind == '%' {
            out.push('%');
            continue;
        }
        let value = match field.name {
            Some(name) => named.get_item(&Value::from(name))?,
            None => next.next().cloned().ok_or_else(|| wrong("not enough arguments for the format"))?,
        };
        field.write(&value, &mut out)?;
        would_make(Some(out.len() as u64))?;
    }
    Err(wrong("the format has too many fields"))
}

/// One `%` field: `%(name)-08.3f`.
struct Field<'a> {
    name: Option<&'a str>,
    flags: &'a str,
    width: usize,
    precision: Option<usize>,
    kind: char,
    /// Bytes behind the `%`.
    length: usize,
}

impl<'a> Field<'a> {
    fn read(text: &'a str) -> Result<Field<'a>, Error> {
        let mut rest = text;
        let mut name = None;
        if let Some(inside) = rest.strip_prefix('(') {
            let (own, behind) = inside.split_once(')').ok_or_else(|| wrong("a format's name does not end"))?;
            (name, rest) = (Some(own), behind);
        }
        let digits = |text: &'a str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let flags = rest.len() - rest.trim_start_matches(['-', '+', ' ', '0', '#']).len();
        let (flags, behind) = rest.split_at(flags);
        let (width, behind) = behind.split_at(digits(behind));
        let (precision, behind) = match behind.strip_prefix('.') {
            Some(behind) => {
                let (precision, behind) = behind.split_at(digits(behind));
                (Some(if precision.is_empty() { "0" } else { precision }), behind)
            }
            None => (None, behind),
        };
        let number = |text: &str| match text.is_empty() {
            true => Ok(0),
            false => {
                text.parse().ok().filter(|n| *n <= WIDTH_MAX).ok_or_else(|| wrong("a format's width is too large"))
            }
        };
        let kind = behind.chars().next().ok_or_else(|| wrong("a format ends within a field"))?;
        Ok(Field {
            name,
            flags,
            width: number(width)?,
            precision: precision.map(number).transpose()?,
            kind,
            length: text.len() - behind.len() + kind.len_utf8(),
        })
    }

    fn write(&self, value: &Value, out: &mut String) -> Result<(), Error> {
        let float = || f64::try_from(value.clone()).map_err(|_| wrong("a format wants a number"));
        let cut = |text: String| match self.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text,
        };
        let body = match self.kind {
            's' => cut(text(value)?),
            'r' | 'a' => {
                let mut quoted = String::new();
                write(value, 0, &mut quoted)?;
                cut(quoted)
            }
            'd' | 'i' | 'u' if value.is_integer() => value.to_string(),
            'd' | 'i' | 'u' => format!("{:.0}", float()?.trunc()),
            'f' | 'F' => format!("{:.*}", self.precision.unwrap_or(6), float()?),
            'x' | 'X' => {
                let number = value.as_i64().ok_or_else(|| wrong("a format wants a whole number"))?;
                let sign = if number < 0 { "-" } else { "" };
                let digits = format!("{sign}{:x}", number.unsigned_abs());
                if self.kind == 'X' { digits.to_uppercase() } else { digits }
            }
            _ => return Err(wrong("a format has a field of an unknown kind")),
        };
        let signed = matches!(self.kind, 'd' | 'i' | 'u' | 'f' | 'F') && !body.starts_with('-');
        let sign = match self.flags {
            flags if signed && flags.contains('+') => "+",
            flags if signed && flags.contains(' ') => " ",
            _ => "",
        };
        let body = format!("{sign}{body}");
        let pad = self.width.saturating_sub(body.chars().count());
        let zeros = self.flags.contains('0') && !matches!(self.kind, 's' | 'r' | 'a');
        match () {
            () if self.flags.contains('-') => out.push_str(&format!("{body}{}", " ".repeat(pad))),
            () if zeros => out.push_str(&zero_filled(&body, pad)),
            () => out.push_str(&format!("{}{body}", " ".repeat(pad))),
        }
        Ok(())
    }
}

/// Zeros between the sign and the digits.
pub(super) fn zero_filled(number: &str, zeros: usize) -> String {
    let sign = if number.starts_with(['+', '-']) { 1 } else { 0 };
    format!("{}{}{}", &number[..sign], "0".repeat(zeros), &number[sign..])
}
