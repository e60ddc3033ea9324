//! Schemas that hold for one value together: a schema, the parts of its `allOf`, what its references lead to, and what
//! stands around it. Each may be satisfiable where all of them are not. What is not found out counts as satisfiable.

use std::collections::BTreeSet;
use std::ptr;

use llguidance::derivre::{JsonQuoteOptions, RegexAst, RegexBuilder};
use serde_json::{Map, Number, Value};

use super::GrammarError;
use super::prepare::{decimal, integer, kind_of, parts};

/// Schemas looked at for one value.
const SCHEMAS_MAX: usize = 64;
/// Work of one question about texts.
const FUEL: u64 = 20_000;
/// Steps whose every division in two is looked at.
const SPLIT_MAX: usize = 8;
/// Digits behind the point that are counted.
const PLACES_MAX: u32 = 18;

/// Why a list of values is no way out.
pub(super) const NO_VALUE: &str = "none of the values that its `enum` or `const` lists satisfies the rest of it";

type Schema = Map<String, Value>;

/// Schemas of one value, each once.
#[derive(Clone, Default)]
pub(super) struct Together<'a> {
    schemas: Vec<&'a Schema>,
    /// There are more.
    cut: bool,
}

/// What a prepared schema says of a text or a value.
enum Says {
    Yes,
    No,
    Unknown,
}

impl<'a> Together<'a> {
    /// With `schema`, and what it joins.
    pub(super) fn and(mut self, schema: &'a Value, defs: &'a Schema) -> Together<'a> {
        let Value::Object(map) = schema else { return self };
        if self.schemas.iter().any(|own| ptr::eq(*own, map)) {
            return self;
        }
        if self.schemas.len() == SCHEMAS_MAX {
            return Together { cut: true, ..self };
        }
        self.schemas.push(map);
        let target = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
        let target = target.and_then(|name| defs.get(name));
        let parts = map.get("allOf").and_then(Value::as_array).into_iter().flatten();
        parts.chain(target).fold(self, |all, part| all.and(part, defs))
    }

    pub(super) fn len(&self) -> usize {
        self.schemas.len()
    }

    /// What is said of a property.
    pub(super) fn property(&self, name: &str, defs: &'a Schema) -> Together<'a> {
        self.inner(defs, |map| {
            let own = map.get("properties").and_then(|properties| properties.get(name));
            own.or_else(|| map.get("additionalProperties").filter(|_| !map.contains_key("patternProperties")))
        })
    }

    /// What is said of an item; `None`: of those behind the ones that have a schema of their own.
    pub(super) fn item(&self, at: Option<usize>, defs: &'a Schema) -> Together<'a> {
        self.inner(defs, |map| {
            let first = map.get("prefixItems").and_then(Value::as_array);
            match (at, first) {
                (Some(at), Some(first)) if at < first.len() => first.get(at),
                (None, Some(_)) => None,
                _ => map.get("items"),
            }
        })
    }

    fn inner(&self, defs: &'a Schema, of: impl Fn(&'a Schema) -> Option<&'a Value>) -> Together<'a> {
        let found = self.schemas.iter().filter_map(|map| of(map));
        found.fold(Together { cut: self.cut, ..Together::default() }, |all, schema| all.and(schema, defs))
    }

    /// Names of properties of which more than one schema speaks.
    pub(super) fn shared_properties(&self) -> Vec<&'a str> {
        let (mut seen, mut shared) = (BTreeSet::new(), BTreeSet::new());
        for name in self.all("properties").filter_map(Value::as_object).flat_map(Map::keys) {
            if !seen.insert(name.as_str()) {
                shared.insert(name.as_str());
            }
        }
        let others = self.all("additionalProperties").any(|others| others.is_object());
        (if others { seen } else { shared }).into_iter().collect()
    }

    /// Why nothing satisfies all.
    pub(super) fn impossible(&self) -> Option<String> {
        if self.schemas.len() < 2 {
            return None;
        }
        if self.values().is_some_and(|(values, _)| values.is_empty()) {
            return Some(NO_VALUE.to_owned());
        }
        let mut because = None;
        let empty = self.kinds().iter().all(|kind| {
            let none = match *kind {
                "string" => self.no_text(),
                "number" | "integer" => self.no_number(),
                _ => None,
            };
            let found = none.is_some();
            because = because.take().or(none);
            found
        });
        because.filter(|_| empty)
    }

    /// The types that all leave to a value. An integer is a number too.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        let of = |map: &Schema, kind: &str| may_be(map, kind) || kind == "integer" && may_be(map, "number");
        let left = |kind: &&str| self.schemas.iter().all(|map| of(map, kind));
        super::reachable::TYPES.into_iter().filter(left).collect()
    }

    /// Why no object satisfies all. `own`: one of the schemas, in which parts that nothing fills are `false`; `why`: of a
    /// property.
    pub(super) fn no_object(&self, own: &Schema, why: impl Fn(&str) -> Option<String>) -> Option<String> {
        let required = self.all("required").filter_map(Value::as_array).flatten().filter_map(Value::as_str);
        let required: BTreeSet<&str> = required.collect();
        let most = self.all("maxProperties").filter_map(Value::as_u64).min();
        if let Some(most) = most.filter(|most| *most < required.len() as u64) {
            return Some(format!(
                "no object has the {} properties of `required` and {most} at most (`maxProperties`)",
                required.len()
            ));
        }
        let missing = required.into_iter().find(|name| closed(own, name))?;
        let because = why(missing).map_or(String::new(), |because| format!(": {because}"));
        Some(format!("nothing can be the value of the required property `{missing}`{because}"))
    }

    /// What each schema says of a property of its own.
    pub(super) fn properties(&self, name: &str) -> impl Iterator<Item = &'a Value> {
        self.all("properties").filter_map(move |properties| properties.get(name))
    }

    fn all<'s>(&'s self, key: &'s str) -> impl Iterator<Item = &'a Value> + 's {
        self.schemas.iter().filter_map(move |map| map.get(key))
    }

    /// Why no text satisfies all, as it is written in an answer.
    pub(super) fn no_text(&self) -> Option<String> {
        let mut all: Vec<RegexAst> = self.all("pattern").filter_map(Value::as_str).map(search).collect();
        let least = self.all("minLength").filter_map(Value::as_u64).max().unwrap_or(0);
        let most = self.all("maxLength").filter_map(Value::as_u64).min();
        if all.is_empty() {
            let told = || {
                format!(
                    "no text has {least} characters at least (`minLength`) and {} at most (`maxLength`)",
                    most.unwrap_or(0)
                )
            };
            return most.is_some_and(|most| least > most).then(told);
        }
        if least > 0 || most.is_some() {
            let most = most.map_or(String::new(), |most| most.to_string());
            all.push(RegexAst::Regex(format!("(?s:.{{{least},{most}}})")));
        }
        is_empty(&in_quotes(RegexAst::And(all)))
            .then(|| "no text that can be written satisfies its `pattern`, `format` and lengths together".to_owned())
    }

    /// Why no number satisfies all.
    pub(super) fn no_number(&self) -> Option<String> {
        let whole = !self.schemas.iter().all(|map| may_be(map, "number"));
        let steps: Vec<&Number> = self.all("multipleOf").filter_map(Value::as_number).collect();
        let bounds: Vec<(&str, &Number)> = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]
            .into_iter()
            .flat_map(|key| self.all(key).filter_map(move |bound| Some((key, bound.as_number()?))))
            .collect();
        let none = no_number_between(&steps, &bounds, whole)?;
        let named = |(key, bound): &(&str, &Number)| format!("`{key}` {bound}");
        let steps = steps.iter().map(|step| format!("`multipleOf` {step}"));
        let told: Vec<String> = steps.chain(bounds.iter().map(named)).collect();
        none.then(|| format!("no {} has {}", if whole { "integer" } else { "number" }, told.join(", ")))
    }

    pub(super) fn has_step(&self) -> bool {
        self.all("multipleOf").next().is_some()
    }

    /// The step of all multiples, where there are several; an error where the grammar library cannot count in it.
    /// `apart`: they stay where they are, and the library multiplies them.
    pub(super) fn step(&self, apart: bool) -> Result<Option<Number>, GrammarError> {
        let steps = self.all("multipleOf").filter_map(Value::as_number).filter_map(decimal);
        let steps: Vec<(u64, u32)> = steps.collect();
        if steps.len() < 2 || self.cut {
            return Ok(None);
        }
        let deepest = steps.iter().map(|(_, places)| *places).max().unwrap_or(0);
        let scaled = |(coefficient, places): &(u64, u32)| coefficient.checked_mul(10u64.checked_pow(deepest - places)?);
        let most = u64::from(u32::MAX);
        let scaled: Option<Vec<u64>> = steps.iter().map(scaled).collect();
        let joined =
            scaled.filter(|steps| !apart || multiply_in_any_order(steps, most)).and_then(|steps| least(&steps));
        let sized = |joined: &u64| u128::from(*joined) * 10 + 9 * 10u128.pow(deepest.min(9)) <= u128::from(most);
        let fits = joined.filter(sized);
        let number = fits.filter(|_| deepest <= 9).and_then(|joined| match deepest {
            0 => Some(Number::from(joined)),
            places => Number::from_f64(joined as f64 / 10f64.powi(places as i32)),
        });
        if number.is_some() || !self.kinds().iter().any(|kind| ["integer", "number"].contains(kind)) {
            return Ok(number);
        }
        let told: Vec<String> = self.all("multipleOf").map(Value::to_string).collect();
        let reason =
            format!("`multipleOf` {} cannot be enforced together: they have too many digits", told.join(" and "));
        Err(GrammarError::Heavy(reason))
    }

    /// The values that are listed, without those that something forbids. `true`: what is left satisfies everything.
    pub(super) fn values(&self) -> Option<(Vec<Value>, bool)> {
        let list = self.schemas.iter().find_map(|map| listed(map))?;
        let compiled = |map: &Schema| map.get("pattern").and_then(Value::as_str).map(regex::Regex::new);
        let patterns: Vec<Option<Result<regex::Regex, _>>> = self.schemas.iter().map(|map| compiled(map)).collect();
        let mut exact = !self.cut;
        let mut left = Vec::new();
        for value in list {
            let said = self.schemas.iter().zip(&patterns).map(|(map, pattern)| satisfies(value, map, pattern.as_ref()));
            let mut wrong = false;
            for says in said {
                exact &= !matches!(says, Says::Unknown);
                wrong |= matches!(says, Says::No);
            }
            if !wrong {
                left.push(value.clone());
            }
        }
        Some((left, exact))
    }
}

/// A schema, or a part of its `allOf`, takes nothing under this name.
fn closed(schema: &Schema, name: &str) -> bool {
    let own = schema.get("properties").and_then(|properties| properties.get(name));
    let parts = schema.get("allOf").and_then(Value::as_array).into_iter().flatten();
    own == Some(&Value::Bool(false)) || parts.filter_map(Value::as_object).any(|part| closed(part, name))
}

fn listed(map: &Schema) -> Option<&[Value]> {
    let list = map.get("enum").and_then(Value::as_array).map(Vec::as_slice);
    map.get("const").map(std::slice::from_ref).or(list)
}

pub(super) fn types(map: &Schema) -> Vec<&str> {
    match map.get("type") {
        None => super::reachable::TYPES.to_vec(),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(one) => one.as_str().into_iter().collect(),
    }
}

fn may_be(map: &Schema, kind: &str) -> bool {
    types(map).contains(&kind)
}

/// Whether a value satisfies one schema, what it joins left out. `pattern`: its own.
fn satisfies(value: &Value, map: &Schema, pattern: Option<&Result<regex::Regex, regex::Error>>) -> Says {
    let kinds = types(map);
    let of_kind = kinds.iter().any(|kind| kind_of(value, kind));
    let is_listed = listed(map).is_none_or(|list| list.iter().any(|own| equal(own, value)));
    if !of_kind || !is_listed {
        return Says::No;
    }
    let number = |key: &str| map.get(key).and_then(Value::as_number);
    match value {
        Value::Number(own) => {
            let bounds = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
            let bounds: Vec<(&str, &Number)> = bounds.into_iter().filter_map(|key| Some((key, number(key)?))).collect();
            let at = [("minimum", own), ("maximum", own)];
            let steps: Vec<&Number> = number("multipleOf").into_iter().collect();
            match no_number_between(&steps, &[bounds.as_slice(), &at].concat(), false) {
                Some(true) => Says::No,
                Some(false) => joins(map),
                None => Says::Unknown,
            }
        }
        Value::String(text) => {
            let length = text.chars().count() as u64;
            let count = |key: &str| map.get(key).and_then(Value::as_u64);
            let long = count("minLength").is_none_or(|least| least <= length);
            if !long || count("maxLength").is_some_and(|most| most < length) {
                return Says::No;
            }
            match pattern {
                // To the library `\d` and `\w` are ASCII.
                Some(_) if !text.is_ascii() => Says::Unknown,
                Some(Ok(pattern)) if !pattern.is_match(text) => Says::No,
                Some(Err(_)) => Says::Unknown,
                _ if map.contains_key("format") => Says::Unknown,
                _ => joins(map),
            }
        }
        Value::Array(_) | Value::Object(_) => Says::Unknown,
        Value::Null | Value::Bool(_) => joins(map),
    }
}

/// Alternatives are looked at in their own place.
fn joins(map: &Schema) -> Says {
    if map.contains_key("anyOf") { Says::Unknown } else { Says::Yes }
}

fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) => match (integer(a), integer(b)) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        // Numbers within may be written in two ways.
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => one == other,
    }
}

/// Whether nothing matches; false where that is not found out.
pub(super) fn is_empty(ast: &RegexAst) -> bool {
    matches_nothing(ast) == Some(true)
}

/// Whether nothing matches; `None`: that is not found out.
pub(super) fn matches_nothing(ast: &RegexAst) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let made = builder.mk(ast).and_then(|made| builder.to_regex_limited(made, FUEL));
    made.ok().map(|mut regex| regex.always_empty())
}

pub(super) fn in_quotes(ast: RegexAst) -> RegexAst {
    let options = JsonQuoteOptions { allowed_escapes: super::compile::ESCAPES.to_owned(), raw_mode: false };
    RegexAst::JsonQuote(Box::new(ast), options)
}

pub(super) fn search(pattern: &str) -> RegexAst {
    RegexAst::SearchRegex(llguidance::regex_to_lark(pattern, "dw"))
}

/// Whether no number, or no `whole` one, is a multiple of all steps and within all bounds; `None`: not found out.
fn no_number_between(steps: &[&Number], bounds: &[(&str, &Number)], whole: bool) -> Option<bool> {
    let steps = steps.iter().map(|step| decimal(step)).collect::<Option<Vec<_>>>()?;
    let bounds = bounds.iter().map(|(key, bound)| Some((*key, parts(bound)?))).collect::<Option<Vec<_>>>()?;
    let places = steps.iter().map(|(_, places)| *places).chain(bounds.iter().map(|(_, (_, places))| *places));
    let deepest = places.max().unwrap_or(0);
    if deepest > PLACES_MAX {
        return None;
    }
    let one = 10i128.pow(deepest);
    let mut step = whole.then_some(one);
    for (coefficient, places) in steps {
        let own = i128::from(coefficient).checked_mul(10i128.pow(deepest - places))?;
        step = Some(step.map_or(Some(own), |all| (all / common(all, own)).checked_mul(own))?);
    }
    // In halves, so that an open bound lies between two numbers. Without a step all of them are there.
    let unit = step.map_or(Some(1), |step| step.checked_mul(2))?;
    let (mut first, mut last): (Option<i128>, Option<i128>) = (None, None);
    for (key, (value, places)) in bounds {
        let bound = value.checked_mul(2)?.checked_mul(10i128.pow(deepest - places))?;
        let (least, edge) = match key {
            "minimum" => (true, bound),
            "exclusiveMinimum" => (true, bound + 1),
            "maximum" => (false, bound),
            _ => (false, bound - 1),
        };
        let at = edge.div_euclid(unit);
        match least {
            true => first = first.max(Some(at + i128::from(edge.rem_euclid(unit) != 0))),
            false => last = Some(last.map_or(at, |last| last.min(at))),
        }
    }
    Some(first.zip(last).is_some_and(|(first, last)| first > last))
}

/// The least number that is a multiple of all.
fn least(steps: &[u64]) -> Option<u64> {
    steps.iter().try_fold(1, |all: u64, step| {
        let product = u128::from(all) * u128::from(*step);
        u64::try_from(product / common(i128::from(all), i128::from(*step)).unsigned_abs()).ok()
    })
}

/// Whether no product is above `most` when two multiples of all are made one, and so on: the order is the library's own.
fn multiply_in_any_order(steps: &[u64], most: u64) -> bool {
    let small = |product: u128| product <= u128::from(most);
    if steps.len() > SPLIT_MAX {
        let product = steps.iter().try_fold(1u128, |all, step| all.checked_mul(u128::from(*step)));
        return product.is_some_and(small);
    }
    (1..1usize << (steps.len() - 1)).all(|part| {
        let of = |inside: bool| {
            let own = steps.iter().enumerate().filter(|(at, _)| (part >> at & 1 == 1) == inside);
            least(&own.map(|(_, step)| *step).collect::<Vec<_>>())
        };
        of(true).zip(of(false)).is_some_and(|(one, other)| small(u128::from(one) * u128::from(other)))
    })
}

/// The largest common divisor of two numbers above 0.
fn common(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { common(b, a % b) }
}
