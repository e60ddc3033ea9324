//! Calls as a family writes them: for examples in prompts, and for what must be read back.

use serde_json::{Map, Value};

use super::formats::{Format, Shape};
use super::json::Json;
use super::tags::Tags;
use crate::whole;

/// A function's name and its arguments.
pub type CallRef<'a> = (&'a str, &'a Map<String, Value>);

impl Format {
    /// Calls as an answer has them.
    pub fn write(&self, calls: &[CallRef<'_>]) -> String {
        self.write_mixed(calls, |_| false)
    }

    /// The same; a family of tags writes JSON between its marks for those that `as_json` says.
    pub(crate) fn write_mixed(&self, calls: &[CallRef<'_>], as_json: impl Fn(usize) -> bool) -> String {
        match self.first() {
            Shape::Tags(tags) => {
                let one = |(at, call): (usize, &CallRef<'_>)| {
                    let (open, close) = self.first().pair();
                    match as_json(at) {
                        true => format!("{open}\n{}\n{close}", object(&PLAIN_JSON, call)),
                        false => format!("{open}{}{close}", tagged(tags, call)),
                    }
                };
                calls.iter().enumerate().map(one).collect::<Vec<_>>().join("\n")
            }
            Shape::Json(form) if form.list => {
                let items: Vec<String> = calls.iter().map(|call| object(form, call)).collect();
                format!("{}{}[{}]{}{}", form.open, form.pad, items.join(", "), form.pad, form.close)
            }
            Shape::Json(form) => joined(calls, |call| {
                format!("{}{}{}{}{}", form.open, form.pad, object(form, call), form.pad, form.close)
            }),
            Shape::Named(form) => {
                let one = |(name, arguments): &CallRef<'_>| {
                    let arguments = json(arguments);
                    format!("{}{}{name}{}{arguments}{}", form.begin, form.before, form.after, form.end)
                };
                format!("{}{}{}", form.open, calls.iter().map(one).collect::<String>(), form.close)
            }
            Shape::Code(_) => String::new(),
        }
    }
}

const PLAIN_JSON: Json = Json { open: "", close: "", pad: "", list: false, name: "name", arguments: "arguments" };

fn joined(calls: &[CallRef<'_>], one: impl Fn(&CallRef<'_>) -> String) -> String {
    calls.iter().map(one).collect::<Vec<_>>().join("\n")
}

fn json(arguments: &Map<String, Value>) -> String {
    whole::written_object(arguments)
}

fn object(form: &Json, (name, arguments): &CallRef<'_>) -> String {
    let (name, arguments) = (Value::from(*name), json(arguments));
    match form.name {
        "" => format!("{{{name}: {arguments}}}"),
        key => format!("{{\"{key}\": {name}, \"{}\": {arguments}}}", form.arguments),
    }
}

fn tagged(tags: &Tags, (name, arguments): &CallRef<'_>) -> String {
    let line = if tags.lines { "\n" } else { "" };
    let one = |(key, value): (&String, &Value)| {
        let text = value.as_str().filter(|text| whole::digits(text).is_none());
        let head = tags.parameter_head(key, text.is_some());
        let value = text.map_or_else(|| whole::written(value), str::to_owned);
        format!("{head}{value}{line}{}\n", tags.parameter_end)
    };
    let parameters: String = arguments.iter().map(one).collect();
    format!("{}{parameters}{}", tags.function_head(name), tags.function_tail())
}
