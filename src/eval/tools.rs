//! Items whose answer needs a calculator, a table of units or a calendar. They are made from a seed, and each knows the
//! call that gives its answer.

use jiff::ToSpan;
use jiff::civil::{Date, Weekday};
use serde_json::{Value, json};

use super::check::Check;
use super::golden::Item;
use crate::optimise::random::Random;
use crate::turn::{Message, Role, ToolCall};

/// Tokens of an answer, its thought included.
const TOKENS_MAX: u32 = 256;

/// An item, and the call that answers it.
#[derive(Clone, Debug)]
pub struct ToolItem {
    pub item: Item,
    pub call: ToolCall,
}

/// So many items of each family.
pub fn items(per_family: usize, seed: u64) -> Vec<ToolItem> {
    let mut random = Random::new(seed);
    let families: [(&str, Make); 3] = [("arithmetic", arithmetic), ("units", units), ("dates", dates)];
    let mut made = Vec::with_capacity(3 * per_family);
    for (family, make) in families {
        for n in 0..per_family {
            let Made { question, check, call } = make(&mut random, n);
            let item = Item {
                id: format!("{family}-{n}"),
                domain: "tools".to_owned(),
                family: family.to_owned(),
                level: String::new(),
                messages: vec![Message::new(Role::User, question)],
                tools: Vec::new(),
                check,
                max_tokens: TOKENS_MAX,
            };
            made.push(ToolItem { item, call });
        }
    }
    made
}

type Make = fn(&mut Random, usize) -> Made;

struct Made {
    question: String,
    check: Check,
    call: ToolCall,
}

fn number(value: String, tolerance: Option<&str>) -> Check {
    Check::Number { value, tolerance: tolerance.map(str::to_owned) }
}

fn calculation(expression: String) -> ToolCall {
    call("calculate", json!({ "expression": expression }))
}

fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: String::new(), name: name.to_owned(), arguments }
}

/// From `low` to `high`, both included.
fn between(random: &mut Random, low: i64, high: i64) -> i64 {
    low + random.below((high - low + 1) as usize) as i64
}

/// Sums and products that nobody knows by heart.
fn arithmetic(random: &mut Random, n: usize) -> Made {
    let [a, b, c, d] = [(); 4].map(|()| between(random, 1_000, 99_999));
    let few = between(random, 12, 999);
    let (question, expression, value) = match n % 5 {
        0 => (format!("What is {a} * {few}?"), format!("{a} * {few}"), (a * few).to_string()),
        1 => (format!("Calculate ({a} + {b}) * {few}."), format!("({a} + {b}) * {few}"), ((a + b) * few).to_string()),
        2 => {
            let share = between(random, 2, 98);
            (format!("What is {share}% of {a}?"), format!("{share}% of {a}"), decimal(a * share, 2))
        }
        3 => (format!("Add up {a}, {b}, {c} and {d}."), format!("{a} + {b} + {c} + {d}"), (a + b + c + d).to_string()),
        _ => (
            format!("A crate holds {few} bottles. There are {a} crates, and {b} bottles are sold. How many are left?"),
            format!("{few} * {a} - {b}"),
            (few * a - b).to_string(),
        ),
    };
    Made { question, check: number(value, None), call: calculation(expression) }
}

/// A number of so many digits behind the point, without zeros at its end.
fn decimal(mantissa: i64, scale: usize) -> String {
    let digits = format!("{:0>width$}", mantissa.abs(), width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    let part = part.trim_end_matches('0');
    let sign = if mantissa < 0 { "-" } else { "" };
    if part.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part}") }
}

/// A unit, another one, and what one is of the other: a mantissa and the digits behind its point.
const UNITS: &[(&str, &str, i64, usize)] = &[
    ("kilometres", "metres", 1_000, 0),
    ("metres", "kilometres", 1, 3),
    ("miles", "kilometres", 1_609_344, 6),
    ("inches", "centimetres", 254, 2),
    ("feet", "inches", 12, 0),
    ("pounds", "kilograms", 45_359_237, 8),
    ("hours", "minutes", 60, 0),
    ("days", "hours", 24, 0),
    ("weeks", "days", 7, 0),
    ("kilograms", "grams", 1_000, 0),
];

fn units(random: &mut Random, n: usize) -> Made {
    let (from, to, ratio, scale) = UNITS[n % UNITS.len()];
    let count = between(random, 13, 998);
    let question = match n % 3 {
        0 => format!("How many {to} are {count} {from}?"),
        1 => format!("Convert {count} {from} to {to}."),
        _ => format!("What are {count} {from} in {to}?"),
    };
    let check = number(decimal(count * ratio, scale), (scale > 3).then_some("0.01"));
    Made { question, check, call: calculation(format!("{count} {from} in {to}")) }
}

const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

fn weekday(day: Weekday) -> &'static str {
    WEEKDAYS[usize::from(day.to_monday_zero_offset().unsigned_abs()) % WEEKDAYS.len()]
}

fn dates(random: &mut Random, n: usize) -> Made {
    let first = Date::constant(1995, 1, 1);
    let later = |from: Date, days: i64| from.checked_add(days.days()).unwrap_or(from);
    let date = later(first, between(random, 0, 15_000));
    let days = between(random, 20, 700);
    let then = later(date, days);
    match n % 3 {
        0 => Made {
            question: format!("How many days are there from {date} to {then}?"),
            check: number(days.to_string(), None),
            call: call(
                "date_time",
                json!({"operation": "difference", "date": date.to_string(), "until": then.to_string()}),
            ),
        },
        1 => Made {
            question: format!("Which date is {days} days after {date}? Answer in the form YYYY-MM-DD."),
            check: Check::Contains { any: vec![then.to_string()], none: Vec::new() },
            call: call("date_time", json!({"operation": "add", "date": date.to_string(), "days": days})),
        },
        _ => {
            let day = weekday(date.weekday());
            let others = WEEKDAYS.iter().filter(|other| **other != day).map(|other| (*other).to_owned());
            Made {
                question: format!("Which day of the week was or is {date}?"),
                check: Check::Contains { any: vec![day.to_owned()], none: others.collect() },
                call: call("date_time", json!({"operation": "weekday", "date": date.to_string()})),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clock::Clock;
    use crate::tools::{CALL_TIMEOUT, Toolbox, calculate};

    /// What a tool says is worked out apart from what an item holds: where both agree, both are right.
    #[tokio::test]
    async fn each_item_is_answered_by_its_call() {
        let toolbox = Toolbox::new("/nonexistent".into(), Clock::wall());
        let items = items(200, 1);
        for ToolItem { item, call } in &items {
            let said = match call.name.as_str() {
                "calculate" => calculate::evaluate(call.arguments["expression"].as_str().unwrap()).unwrap(),
                name => toolbox.run(name, &call.arguments.to_string(), CALL_TIMEOUT).await.unwrap().text,
            };
            // The first number of a difference is what was asked for.
            let said = said.split_once(": ").map_or(said.as_str(), |(_, rest)| rest.split(" = ").next().unwrap());
            assert!(item.check.passes(said, &[]), "{}: {said} is not {:?}", item.messages[0].content, item.check);
        }
        let questions: BTreeSet<_> = items.iter().map(|made| &made.item.messages[0].content).collect();
        assert!(items.len() == 600 && questions.len() > 590, "{}", questions.len());
        assert_eq!(super::items(200, 1)[599].item.messages, items[599].item.messages, "a seed makes the same items");
    }

    #[test]
    fn decimals_have_no_zeros_at_their_end() {
        for (mantissa, scale, text) in [(250, 2, "2.5"), (-5, 2, "-0.05"), (300, 2, "3"), (7, 0, "7"), (0, 3, "0")] {
            assert_eq!(decimal(mantissa, scale), text);
        }
    }
}
