//! What chat templates expect of Python and the template engine lacks. Also those of its filters that can
//! make much out of little: here each looks at the size first. The bounds of a rendering live in its own
//! thread.

use std::cell::Cell;
use std::time::{Duration, Instant};

use chimere_ffi::limits::thread_cpu_time;
use jiff::civil::Date;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{json, text};

/// Nesting of a value.
const DEPTH_MAX: usize = 100;
/// Values looked at by all checks of one rendering together. A template that makes a list longer by each of n messages has
/// n² / 2 of them looked at, five times or more each, so it ends at some 2,200. More looks would only meet `RENDER_MAX`. Sizes
/// that are remembered instead would need values that never change, which a namespace is not.
const LOOKS_MAX: u64 = 20_000_000;
/// Time that one rendering may compute; checked where values are bound, in loops and macros. Waiting for a busy machine's
/// processor does not count.
const RENDER_MAX: Duration = Duration::from_secs(2);
/// Looks from one question for the time to the next.
const LOOKS_BETWEEN: u64 = 64;

/// Bounds of the rendering on this thread.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of text in one value.
    pub(super) value_bytes_max: u64,
    /// Bytes written by all tags together, captured text included.
    pub(super) written_bytes_max: u64,
    started: Instant,
    /// What this thread had computed then.
    computed: Duration,
    pub(super) written: u64,
    pub(super) looks: u64,
}

impl Bounds {
    /// The time that passes is cheap to ask for, and no shorter than the time that was computed. Asked at every look, it
    /// would be a good part of a long rendering.
    fn late(&self) -> bool {
        self.looks.is_multiple_of(LOOKS_BETWEEN)
            && self.started.elapsed() > RENDER_MAX
            && thread_cpu_time().saturating_sub(self.computed) > RENDER_MAX
    }
}

thread_local! {
    static BOUNDS: Cell<Option<Bounds>> = const { Cell::new(None) };
}

/// Sets the bounds of what this thread renders next.
pub(super) fn start(value_bytes_max: u64, written_bytes_max: u64) {
    let (started, computed) = (Instant::now(), thread_cpu_time());
    BOUNDS.set(Some(Bounds { value_bytes_max, written_bytes_max, started, computed, written: 0, looks: 0 }));
}

/// By this the breach of a bound is known from other errors.
pub(super) const OVER: &str = "the template makes too much of ";

fn over(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{OVER}{what}"))
}

/// Accounts for work; an error ends the rendering.
fn charge(written: u64, looks: u64) -> Result<Bounds, Error> {
    let mut bounds = BOUNDS.get().ok_or_else(|| over("nothing"))?;
    bounds.written += written;
    bounds.looks += looks;
    BOUNDS.set(Some(bounds));
    match bounds {
        b if b.written > b.written_bytes_max => Err(over("text")),
        b if b.looks > LOOKS_MAX => Err(over("work")),
        b if b.late() => Err(over("time")),
        b => Ok(b),
    }
}

/// Refuses a text of `bytes` before it is made.
pub(super) fn would_make(bytes: Option<u64>) -> Result<(), Error> {
    let bounds = charge(0, 1)?;
    match bytes {
        Some(bytes) if bytes <= bounds.value_bytes_max => Ok(()),
        _ => Err(over("text")),
    }
}

/// Bytes of text in a value.
fn size(value: &Value, depth: usize, bytes: &mut u64, bounds: Bounds) -> Result<(), Error> {
    charge(0, 1)?;
    if let Some(text) = value.as_str() {
        *bytes += text.len() as u64;
    } else if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
        if depth > DEPTH_MAX {
            return Err(over("nesting"));
        }
        let is_map = value.kind() == ValueKind::Map;
        for item in value.try_iter()? {
            *bytes += 16;
            if *bytes > bounds.value_bytes_max {
                break;
            }
            if is_map {
                size(&value.get_item(&item)?, depth + 1, bytes, bounds)?;
            }
            size(&item, depth + 1, bytes, bounds)?;
        }
    }
    match *bytes > bounds.value_bytes_max {
        true => Err(over("text")),
        false => Ok(()),
    }
}

/// The check that `scan` puts where a value gets a name. `text_bytes`: plain text that comes with it.
fn bounded(value: Value, text_bytes: Option<u64>) -> Result<Value, Error> {
    let bounds = charge(text_bytes.unwrap_or(0), 1)?;
    size(&value, 0, &mut 0, bounds)?;
    Ok(value)
}

fn times(left: Value, right: Value) -> Result<Value, Error> {
    let (text, count) = match (left.as_str(), right.as_str()) {
        (Some(text), None) => (text, &right),
        (None, Some(text)) => (text, &left),
        _ => {
            let numbers = left.as_i64().zip(right.as_i64());
            if let Some(product) = numbers.and_then(|(a, b)| a.checked_mul(b)) {
                return Ok(Value::from(product));
            }
            let floats = f64::try_from(left).ok().zip(f64::try_from(right).ok());
            return floats.map(|(a, b)| Value::from(a * b)).ok_or_else(|| over("a multiplication"));
        }
    };
    let count = count.as_i64().ok_or_else(|| over("a multiplication"))?.max(0) as u64;
    would_make((text.len() as u64).checked_mul(count))?;
    Ok(Value::from(text.repeat(count as usize)))
}

fn replace(text: &str, from: &str, to: &str, count: Option<i64>) -> Result<String, Error> {
    let limit = count.and_then(|c| usize::try_from(c).ok());
    let found = match from {
        "" => text.chars().count() + 1,
        _ => text.matches(from).count(),
    }
    .min(limit.unwrap_or(usize::MAX)) as u64;
    would_make(found.checked_mul(to.len() as u64).and_then(|n| n.checked_add(text.len() as u64)))?;
    Ok(match limit {
        Some(limit) => text.replacen(from, to, limit),
        None => text.replace(from, to),
    })
}

fn join(items: &Value, separator: &str, attribute: Option<&str>) -> Result<String, Error> {
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        let item = match attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&text::text(&item)?),
        }
        would_make(Some(out.len() as u64))?;
    }
    Ok(out)
}

/// Jinja's: every line but the first (and blank ones, unless asked) gets `width` spaces.
fn indent(text: &str, width: Option<Value>, rest: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?).unwrap_or(Value::from(4));
    let pad = match width.as_str() {
        Some(pad) => pad.to_owned(),
        None => {
            let width = width.as_usize().ok_or_else(|| over("an indent"))?;
            would_make(Some(width as u64))?;
            " ".repeat(width)
        }
    };
    let first = rest.first().map(Value::is_true).or(kwargs.get("first")?).unwrap_or(false);
    let blank = rest.get(1).map(Value::is_true).or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let lines = text.lines().count() as u64 + 1;
    would_make(lines.checked_mul(pad.len() as u64).and_then(|n| n.checked_add(text.len() as u64)))?;
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn range(a: i64, b: Option<i64>, step: Option<i64>) -> Result<Vec<i64>, Error> {
    let (from, to) = b.map_or((0, a), |b| (a, b));
    let step = step.unwrap_or(1);
    let span = if step > 0 { to.saturating_sub(from) } else { from.saturating_sub(to) };
    let count = match step {
        0 => return Err(over("a range of step 0")),
        _ => (span.max(0) as u64).div_ceil(step.unsigned_abs()),
    };
    if count > 100_000 {
        return Err(over("a range"));
    }
    charge(0, count)?;
    Ok((0..count as i64).map(|i| from + i * step).collect())
}

/// Methods of Python's types; those that can make much are done here.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let text = |i: usize| args.get(i).and_then(Value::as_str);
    match (value.as_str(), name) {
        (Some(own), "replace") => {
            let (Some(from), Some(to)) = (text(0), text(1)) else { return Err(over("arguments of replace")) };
            replace(own, from, to, args.get(2).and_then(Value::as_i64)).map(Value::from)
        }
        (Some(own), "join") => {
            let items = args.first().ok_or_else(|| over("arguments of join"))?;
            join(items, own, None).map(Value::from)
        }
        (Some(own), "format") => {
            let fields = own.matches('{').count() as u64;
            let mut bytes = 0;
            args.iter().try_for_each(|a| size(a, 0, &mut bytes, charge(0, 1)?))?;
            // Widths in a field could ask for any length.
            match own.bytes().any(|b| b.is_ascii_digit()) {
                true => Err(over("a format")),
                false => would_make(fields.checked_mul(bytes + 64)),
            }?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
        }
        (Some(own), "ljust" | "rjust" | "center" | "zfill") => {
            let width = args.first().and_then(Value::as_usize).ok_or_else(|| over("arguments of a method"))?;
            would_make(Some(width as u64))?;
            let fill = text(1).and_then(|fill| fill.chars().next()).unwrap_or(' ');
            Ok(Value::from(padded(own, width, name, fill)))
        }
        (Some(own), "removeprefix" | "removesuffix" | "partition" | "rpartition" | "rsplit") => {
            parts(own, name, text(0), args.get(1).and_then(Value::as_i64))
        }
        (Some(_), "expandtabs") => Err(Error::from(ErrorKind::UnknownMethod)),
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Python's methods that widen a text to so many letters.
fn padded(own: &str, width: usize, method: &str, fill: char) -> String {
    let pad = width.saturating_sub(own.chars().count());
    let fill = |letters: usize| fill.to_string().repeat(letters);
    match method {
        "ljust" => own.to_owned() + &fill(pad),
        "rjust" => fill(pad) + own,
        "zfill" => text::zero_filled(own, pad),
        // Of an odd rest Python gives the larger part to the left of a text of even width.
        _ => {
            let left = pad / 2 + (pad & width & 1);
            fill(left) + own + &fill(pad - left)
        }
    }
}

/// Python's methods that take a text apart.
fn parts(own: &str, method: &str, by: Option<&str>, most: Option<i64>) -> Result<Value, Error> {
    would_make(Some(own.len() as u64))?;
    let pieces = |pieces: Vec<&str>| Ok(Value::from_iter(pieces.into_iter().map(str::to_owned)));
    match (method, by) {
        ("removeprefix", Some(by)) => Ok(Value::from(own.strip_prefix(by).unwrap_or(own))),
        ("removesuffix", Some(by)) => Ok(Value::from(own.strip_suffix(by).unwrap_or(own))),
        (_, Some("")) => Err(over("an empty separator")),
        ("partition", Some(by)) => pieces(own.split_once(by).map_or(vec![own, "", ""], |(a, b)| vec![a, by, b])),
        ("rpartition", Some(by)) => pieces(own.rsplit_once(by).map_or(vec!["", "", own], |(a, b)| vec![a, by, b])),
        ("rsplit", by) => {
            let most =
                most.and_then(|most| usize::try_from(most).ok()).map_or(usize::MAX, |most| most.saturating_add(1));
            let mut found: Vec<&str> = match by {
                Some(by) => own.rsplitn(most, by).collect(),
                None => {
                    let own = own.trim_end();
                    let all: Vec<&str> = own.split_whitespace().collect();
                    if all.len() <= most {
                        all.into_iter().rev().collect()
                    } else {
                        let mut rest = own;
                        let mut last = Vec::new();
                        for word in all.iter().rev().take(most - 1) {
                            last.push(*word);
                            rest = rest.strip_suffix(word).unwrap_or(rest).trim_end();
                        }
                        last.push(rest);
                        last
                    }
                }
            };
            found.reverse();
            pieces(found)
        }
        _ => Err(over("arguments of a method")),
    }
}

/// Jinja's: at most `length` letters and the end, cut between words unless `killwords`.
fn truncate(own: &str, rest: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let given = |at: usize, name: &str| -> Result<Option<Value>, Error> {
        Ok(rest.get(at).cloned().or(kwargs.get::<Option<Value>>(name)?))
    };
    let length = given(0, "length")?.and_then(|v| v.as_usize()).unwrap_or(255);
    let killwords = given(1, "killwords")?.is_some_and(|v| v.is_true());
    let end = given(2, "end")?;
    let end = end.as_ref().and_then(Value::as_str).unwrap_or("...");
    let leeway = given(3, "leeway")?.and_then(|v| v.as_usize()).unwrap_or(5);
    kwargs.assert_all_used()?;
    if own.chars().count() <= length.saturating_add(leeway) {
        return Ok(own.to_owned());
    }
    let kept: String = own.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if killwords { kept.as_str() } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words) };
    would_make(Some((kept.len() + end.len()) as u64))?;
    Ok(format!("{kept}{end}"))
}

/// Groups of a filter that fills them up.
const GROUPS_MAX: usize = 10_000;

fn grouped(count: usize) -> Result<usize, Error> {
    charge(0, count as u64)?;
    if count > GROUPS_MAX { Err(over("groups")) } else { Ok(count) }
}

/// `strftime_now` with the request's date at midnight: the engine has no clock.
pub(super) fn strftime(date: &str) -> Option<Value> {
    let date: Date = date.parse().ok()?;
    let at = date.at(0, 0, 0, 0).to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(Value::from_function(move |format: &str| -> Result<String, Error> {
        would_make((format.len() as u64).checked_mul(16))?;
        jiff::fmt::strtime::format(format, &at).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
    }))
}

/// The mark by which the message of `raise_exception` is known again.
pub(super) const RAISED: &str = "raised by the template: ";

/// Puts all of it into an environment.
pub(super) fn furnish(env: &mut Environment<'static>) {
    for name in ["pprint", "chain", "zip", "urlencode"] {
        env.remove_filter(name);
    }
    env.add_filter("batch", |state: &State, list: Value, count: usize, fill: Option<Value>| {
        minijinja::filters::batch(state, list, grouped(count)?, fill)
    });
    env.add_filter("slice", |state: &State, list: Value, count: usize, fill: Option<Value>| {
        minijinja::filters::slice(state, list, grouped(count)?, fill)
    });
    env.add_filter("truncate", truncate);
    env.add_filter("center", |own: &str, width: Option<usize>| {
        let width = width.unwrap_or(80);
        would_make(Some(width as u64)).map(|()| padded(own, width, "center", ' '))
    });
    env.add_filter("format", |format: &str, arguments: Rest<Value>, named: Kwargs| {
        let mut bytes = format.len() as u64;
        arguments.iter().try_for_each(|a| size(a, 0, &mut bytes, charge(0, 1)?))?;
        text::format_filter(format, arguments, named)
            .and_then(|made| would_make(Some(made.len() as u64)).map(|()| made))
    });
    env.add_filter("__percent", |format: &str, arguments: Value| {
        size(&arguments, 0, &mut 0, charge(0, 1)?)?;
        text::percent(format, &arguments).and_then(|made| would_make(Some(made.len() as u64)).map(|()| made))
    });
    env.add_filter("string", |value: &Value| -> Result<Value, Error> {
        match value.as_str() {
            Some(_) => Ok(value.clone()),
            None => {
                size(value, 0, &mut 0, charge(0, 1)?)?;
                text::text(value).map(Value::from)
            }
        }
    });
    env.remove_global("debug");
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, state, value| {
        charge(value.as_str().map_or(16, str::len) as u64, 1)?;
        if value.as_str().is_some() || value.is_undefined() {
            return minijinja::escape_formatter(out, state, value);
        }
        size(value, 0, &mut 0, charge(0, 1)?)?;
        out.write_str(&text::text(value)?).map_err(Error::from)
    });
    env.add_filter("__bounded", bounded);
    env.add_filter("__times", times);
    env.add_filter("tojson", |value: &Value, indent: Option<usize>, kwargs: Kwargs| -> Result<Value, Error> {
        let bounds = charge(0, 1)?;
        // A namespace may hold itself.
        size(value, 0, &mut 0, bounds)?;
        let text = json::filter(value, indent, &kwargs, bounds.value_bytes_max)?;
        Ok(Value::from_safe_string(text))
    });
    env.add_filter("replace", |text: &Value, from: &str, to: &str, count: Option<i64>| match text.as_str() {
        Some(text) => replace(text, from, to, count),
        None => replace(&text.to_string(), from, to, count),
    });
    env.add_filter("join", |items: &Value, separator: Option<&str>, kwargs: Kwargs| -> Result<String, Error> {
        let attribute: Option<&str> = kwargs.get("attribute")?;
        let out = join(items, separator.unwrap_or(""), attribute)?;
        kwargs.assert_all_used()?;
        Ok(out)
    });
    let length = |value: &Value| -> Result<usize, Error> {
        // As in Python, what is not there has no length of its own.
        let unknown = || Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind()));
        if value.is_undefined() { Ok(0) } else { value.len().ok_or_else(unknown) }
    };
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("indent", indent);
    env.add_function("range", range);
    env.add_function("raise_exception", |message: &str| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
    });
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rendering that a busy machine held up goes on; one that computed for too long ends.
    #[test]
    fn a_rendering_is_held_to_what_it_computes() {
        let Some(started) = Instant::now().checked_sub(RENDER_MAX * 2) else { return };
        start(1, 1);
        let held_up = |bounds: Bounds| Bounds { started, ..bounds };
        BOUNDS.set(BOUNDS.get().map(held_up));
        assert!(charge(0, LOOKS_BETWEEN).is_ok());
        while thread_cpu_time() < RENDER_MAX + Duration::from_millis(1) {
            std::hint::black_box(started);
        }
        BOUNDS.set(BOUNDS.get().map(|bounds| Bounds { computed: Duration::ZERO, ..bounds }));
        assert!(charge(0, LOOKS_BETWEEN).is_err_and(|error| error.to_string().contains("time")));
    }
}
