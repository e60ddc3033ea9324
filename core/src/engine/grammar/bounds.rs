//! Bounds of numbers in the form that the grammar library enforces to the letter. It lets an open lower bound itself
//! through where the upper one has the same whole part, `-0` below 0 among them. So bounds are moved to the next
//! double, or beside the next multiple.

use serde_json::{Map, Number, Value};

use super::prepare::{decimal, parts};

/// What lies between 0 and this is not written beside an open bound of 0, nor beside a bound that lies there itself.
pub(super) const LEAST: f64 = 1e-30;
/// Beyond, doubles have no fractions that matter.
const FRACTIONS_MAX: f64 = (1u64 << 52) as f64;
/// Steps up to which half of one is known for certain.
const STEPS_MAX: i128 = 1_000_000_000_000_000;

const LEAST_KEYS: [&str; 2] = ["minimum", "exclusiveMinimum"];
const MOST_KEYS: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// The schema with such bounds in all its parts.
pub(super) fn closed(schema: &Value) -> Value {
    match schema {
        Value::Array(list) => list.iter().map(closed).collect(),
        Value::Object(map) => {
            let inner = |(key, value): (&String, &Value)| {
                let own = match key.as_str() {
                    "enum" | "const" => value.clone(),
                    "properties" | "patternProperties" | "$defs" => named(value),
                    _ => closed(value),
                };
                (key.clone(), own)
            };
            let mut own: Map<String, Value> = map.iter().map(inner).collect();
            if let Some(only) = one_multiple(&own) {
                [LEAST_KEYS, MOST_KEYS, ["multipleOf", "type"]]
                    .as_flattened()
                    .iter()
                    .for_each(|key| drop(own.remove(*key)));
                own.insert("const".to_owned(), only);
                return Value::Object(own);
            }
            close(&mut own, LEAST_KEYS, Side::Least);
            close(&mut own, MOST_KEYS, Side::Most);
            Value::Object(own)
        }
        other => other.clone(),
    }
}

/// Schemas under names of the client's, which may be those of keywords.
fn named(schemas: &Value) -> Value {
    match schemas {
        Value::Object(map) => map.iter().map(|(name, schema)| (name.clone(), closed(schema))).collect(),
        other => closed(other),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Least,
    Most,
}

fn close(map: &mut Map<String, Value>, [bound, exclusive]: [&str; 2], side: Side) {
    let step = map.get("multipleOf").and_then(Value::as_number).cloned();
    let mut found: Vec<Edge> = Vec::new();
    for (keyword, open) in [(bound, false), (exclusive, true)] {
        let Some(Value::Number(number)) = map.get(keyword) else { continue };
        let beside_multiple = step.as_ref().and_then(|step| beside_multiples(number, step, open, side));
        let own = beside_multiple.or_else(|| if open { beside(number, side) } else { None });
        let Some(own) = own else { continue };
        map.remove(keyword);
        found.push(own);
    }
    for Edge { at, open } in found {
        let keyword = if open { exclusive } else { bound };
        let narrower = |before: f64| if side == Side::Least { before < at } else { before > at };
        if map.get(keyword).and_then(Value::as_f64).is_none_or(narrower) {
            map.insert(keyword.to_owned(), Value::from(at));
        }
    }
}

/// A bound as the library is told of it.
struct Edge {
    at: f64,
    open: bool,
}

/// The double next to an open bound. Away from 0 the library is right, and closed there it would ask for more digits.
fn beside(bound: &Number, side: Side) -> Option<Edge> {
    let bound = bound.as_f64().filter(|bound| bound.abs() < FRACTIONS_MAX)?;
    let at = match side {
        Side::Least if bound == 0.0 => LEAST,
        Side::Most if bound == 0.0 => -LEAST,
        Side::Least if bound > 0.0 => bound.next_up(),
        Side::Most if bound < 0.0 => bound.next_down(),
        _ => return None,
    };
    Some(Edge { at, open: false })
}

/// The number, where bounds leave one multiple of a step that is no whole number. The library may miss it: it multiplies
/// and subtracts in doubles. Told only where nothing else is said.
fn one_multiple(map: &Map<String, Value>) -> Option<Value> {
    let beside = ["anyOf", "allOf", "$ref", "enum", "const"].into_iter().any(|key| map.contains_key(key));
    if beside || !matches!(map.get("type").and_then(Value::as_str), Some("number" | "integer")) {
        return None;
    }
    let step = map.get("multipleOf").and_then(Value::as_number)?;
    let outermost = |[bound, exclusive]: [&str; 2], side: Side| -> Vec<Outermost> {
        let of = |keyword: &str, open: bool| {
            let number = map.get(keyword).and_then(Value::as_number)?;
            Outermost::of(number, step, open, side)
        };
        [of(bound, false), of(exclusive, true)].into_iter().flatten().collect()
    };
    let least = outermost(LEAST_KEYS, Side::Least).into_iter().max_by_key(|found| found.multiple)?;
    let most = outermost(MOST_KEYS, Side::Most).iter().map(|found| found.multiple).min()?;
    if least.multiple != most || least.places == 0 {
        return None;
    }
    let units = least.multiple.checked_mul(i128::from(least.coefficient))?;
    let only: f64 = format!("{units}e-{}", least.places).parse().ok()?;
    let whole = only.fract() == 0.0 && only.abs() < FRACTIONS_MAX;
    Some(if whole { Value::from(only as i64) } else { Value::from(only) })
}

/// The last multiple of a step within a bound.
struct Outermost {
    /// In steps.
    multiple: i128,
    /// The step, as `coefficient · 10^-places`.
    coefficient: u64,
    places: u32,
    /// The bound is 0.
    zero: bool,
}

impl Outermost {
    fn of(bound: &Number, step: &Number, open: bool, side: Side) -> Option<Outermost> {
        let ((bound, places), (coefficient, step_places)) = (parts(bound)?, decimal(step)?);
        let deepest = places.max(step_places);
        let bound = bound.checked_mul(10i128.checked_pow(deepest - places)?)?;
        let step = i128::from(coefficient).checked_mul(10i128.checked_pow(deepest - step_places)?)?;
        let (below, exact) = (bound.div_euclid(step), bound.rem_euclid(step) == 0);
        let multiple = match side {
            Side::Least => below + i128::from(open || !exact),
            Side::Most => below - i128::from(open && exact),
        };
        (multiple.abs() <= STEPS_MAX).then_some(Outermost {
            multiple,
            coefficient,
            places: step_places,
            zero: bound == 0,
        })
    }
}

/// Outside of the outermost multiple: the library divides in doubles, and would miss one at the bound. Towards 0 that is
/// half a step; away from it the next multiple, left open.
fn beside_multiples(bound: &Number, step: &Number, open: bool, side: Side) -> Option<Edge> {
    let Outermost { multiple, coefficient, places, zero } = Outermost::of(bound, step, open, side)?;
    // Whole steps are divided exactly.
    if !open && (zero || places == 0) {
        return None;
    }
    let outwards = if side == Side::Least { -1 } else { 1 };
    let next = multiple * outwards >= 0;
    let halves = (2 * multiple + if next { 2 * outwards } else { outwards }) as f64;
    let at = halves * coefficient as f64 / 2.0 / 10f64.powi(i32::try_from(places).ok()?);
    (at.abs() < FRACTIONS_MAX).then_some(Edge { at, open: next })
}
