//! Bounds of numbers in the form that the grammar library enforces to the letter. It lets an open lower bound itself
//! through where the upper one has the same whole part, `-0` below 0 among them. So bounds are moved to the next
//! double, or beside the next multiple.

use serde_json::{Map, Number, Value};

use super::prepare::{decimal, parts};

/// What lies between 0 and this is not written beside an open bound of 0.
const LEAST: f64 = 1e-30;
/// Beyond, doubles have no fractions that matter.
const FRACTIONS_MAX: f64 = (1u64 << 52) as f64;
/// Steps up to which half of one is known for certain.
const STEPS_MAX: i128 = 1_000_000_000_000_000;

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
            close(&mut own, "minimum", "exclusiveMinimum", Side::Least);
            close(&mut own, "maximum", "exclusiveMaximum", Side::Most);
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

fn close(map: &mut Map<String, Value>, bound: &str, exclusive: &str, side: Side) {
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

/// Outside of the outermost multiple: the library divides in doubles, and would miss one at the bound. Towards 0 that is
/// half a step; away from it the next multiple, left open.
fn beside_multiples(bound: &Number, step: &Number, open: bool, side: Side) -> Option<Edge> {
    let ((bound, places), (coefficient, step_places)) = (parts(bound)?, decimal(step)?);
    // Whole steps are divided exactly.
    if !open && (bound == 0 || step_places == 0) {
        return None;
    }
    let deepest = places.max(step_places);
    let bound = bound.checked_mul(10i128.checked_pow(deepest - places)?)?;
    let step = i128::from(coefficient).checked_mul(10i128.checked_pow(deepest - step_places)?)?;
    let (below, exact) = (bound.div_euclid(step), bound.rem_euclid(step) == 0);
    let (outermost, outwards) = match side {
        Side::Least => (below + i128::from(open || !exact), -1),
        Side::Most => (below - i128::from(open && exact), 1),
    };
    if outermost.abs() > STEPS_MAX {
        return None;
    }
    let away = outermost * outwards >= 0;
    let halves = (2 * outermost + if away { 2 * outwards } else { outwards }) as f64;
    let at = halves * coefficient as f64 / 2.0 / 10f64.powi(i32::try_from(step_places).ok()?);
    (at.abs() < FRACTIONS_MAX).then_some(Edge { at, open: away })
}
