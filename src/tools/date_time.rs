//! `date_time`: what day and time it is somewhere, and the arithmetic of the calendar, by jiff.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Unit};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Tool, ToolError, Toolbox, read};

pub const TOOL: Tool = Tool {
    name: "date_time",
    description: "Says the date and time now, the time between two dates, a date some time before or after another, or \
                  the weekday of a date.",
    parameters,
    effects: false,
    taints: false,
    run: |toolbox, arguments| Box::pin(std::future::ready(run(toolbox, arguments))),
};

fn parameters() -> Value {
    let amount = |unit: &str| json!({"type": "integer", "description": format!("For add: {unit}, negative = before")});
    json!({
        "type": "object",
        "properties": {
            "operation": {
                "type": "string",
                "enum": ["now", "difference", "add", "weekday"],
                "description": "now; difference from date to until; add an amount to date; weekday of date",
            },
            "date": {"type": "string", "description": "YYYY-MM-DD or YYYY-MM-DDTHH:MM; without it now is meant"},
            "until": {"type": "string", "description": "For difference: the later date, in the same form"},
            "years": amount("years"),
            "months": amount("months"),
            "weeks": amount("weeks"),
            "days": amount("days"),
            "hours": amount("hours"),
            "minutes": amount("minutes"),
            "zone": {"type": "string", "description": "Time zone such as Europe/Paris or UTC; without it the machine's"},
        },
        "required": ["operation"],
        "additionalProperties": false,
    })
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Operation {
    Now,
    Difference,
    Add,
    Weekday,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    operation: Operation,
    date: Option<String>,
    until: Option<String>,
    years: Option<i64>,
    months: Option<i64>,
    weeks: Option<i64>,
    days: Option<i64>,
    hours: Option<i64>,
    minutes: Option<i64>,
    zone: Option<String>,
}

/// A point of the calendar: a day, or a time of a day.
#[derive(Clone, Copy)]
enum When {
    Day(Date),
    Time(DateTime),
}

impl When {
    fn time(self) -> DateTime {
        match self {
            When::Day(day) => day.to_datetime(jiff::civil::Time::midnight()),
            When::Time(time) => time,
        }
    }
}

fn run(toolbox: &Toolbox, arguments: Value) -> Result<String, ToolError> {
    let arguments: Arguments = read(arguments)?;
    let zone = zone(arguments.zone.as_deref())?;
    let now = Timestamp::from_millisecond(toolbox.clock.now_ms()).map_err(|e| ToolError::Failed(e.to_string()))?;
    let now = now.to_zoned(zone.clone());
    let unused = arguments.unused();
    if let Some(field) = unused {
        return Err(ToolError::Arguments(format!("`{field}` has no meaning in this operation")));
    }
    let of = |text: Option<&str>| text.map_or_else(|| Ok(When::Time(now.datetime())), parse);
    let date = arguments.date.as_deref();
    match arguments.operation {
        Operation::Now => Ok(now.strftime("%A, %Y-%m-%d %H:%M:%S, UTC%:z").to_string() + &in_zone(&zone)),
        Operation::Weekday => {
            let day = of(date)?.time().date();
            Ok(format!("{} is a {}.", day, day.strftime("%A")))
        }
        Operation::Add => add(date.map_or(Ok(When::Day(now.date())), parse)?, &arguments, &zone),
        Operation::Difference => {
            let until = arguments.until.as_deref();
            if date.is_none() && until.is_none() {
                return Err(ToolError::Arguments("a difference needs `date` or `until` or both".to_owned()));
            }
            // Beside a day, now is a day.
            let either = |text: Option<&str>| text.map_or(Ok(When::Day(now.date())), parse);
            difference(either(date)?, either(until)?, &zone)
        }
    }
}

impl Arguments {
    /// A field that was given and would be passed over in silence.
    fn unused(&self) -> Option<&'static str> {
        let amounts = [
            ("years", self.years),
            ("months", self.months),
            ("weeks", self.weeks),
            ("days", self.days),
            ("hours", self.hours),
            ("minutes", self.minutes),
        ];
        let amount = amounts.iter().find(|(_, given)| given.is_some_and(|n| n != 0)).map(|(name, _)| *name);
        let (date, until) = (self.date.as_ref().map(|_| "date"), self.until.as_ref().map(|_| "until"));
        match self.operation {
            Operation::Now => date.or(until).or(amount),
            Operation::Weekday => until.or(amount),
            Operation::Add => until,
            Operation::Difference => amount,
        }
    }

    fn span(&self) -> Result<Span, jiff::Error> {
        Span::new()
            .try_years(self.years.unwrap_or(0))?
            .try_months(self.months.unwrap_or(0))?
            .try_weeks(self.weeks.unwrap_or(0))?
            .try_days(self.days.unwrap_or(0))?
            .try_hours(self.hours.unwrap_or(0))?
            .try_minutes(self.minutes.unwrap_or(0))
    }

    fn of_a_day(&self) -> bool {
        self.hours.unwrap_or(0) != 0 || self.minutes.unwrap_or(0) != 0
    }
}

fn zone(name: Option<&str>) -> Result<TimeZone, ToolError> {
    let Some(name) = name else { return Ok(TimeZone::system()) };
    if name.eq_ignore_ascii_case("utc") || name == "Z" {
        return Ok(TimeZone::UTC);
    }
    let unknown = || {
        let name: String = name.chars().take(64).collect();
        ToolError::Arguments(format!("the zone {name:?} is not known on this machine: say one such as Europe/Paris"))
    };
    TimeZone::get(name).map_err(|_| unknown())
}

fn in_zone(zone: &TimeZone) -> String {
    zone.iana_name().map_or_else(String::new, |name| format!(" ({name})"))
}

fn parse(text: &str) -> Result<When, ToolError> {
    let text = text.trim();
    if text.len() <= 10
        && let Ok(day) = text.parse::<Date>()
    {
        return Ok(When::Day(day));
    }
    let wrong = || {
        let shown: String = text.chars().take(40).collect();
        ToolError::Arguments(format!("{shown:?} is no date: write YYYY-MM-DD or YYYY-MM-DDTHH:MM"))
    };
    text.parse::<DateTime>().map(When::Time).map_err(|_| wrong())
}

fn add(when: When, arguments: &Arguments, zone: &TimeZone) -> Result<String, ToolError> {
    let beyond = |error: jiff::Error| ToolError::Arguments(format!("the date would be out of range: {error}"));
    let span = arguments.span().map_err(beyond)?;
    match when {
        When::Day(day) if !arguments.of_a_day() => {
            let day = day.checked_add(span).map_err(beyond)?;
            Ok(format!("{day} ({})", day.strftime("%A")))
        }
        when => {
            let start = when.time().to_zoned(zone.clone()).map_err(beyond)?;
            let end = start.checked_add(span).map_err(beyond)?;
            Ok(end.strftime("%Y-%m-%d %H:%M:%S (%A), UTC%:z").to_string() + &in_zone(zone))
        }
    }
}

fn difference(from: When, until: When, zone: &TimeZone) -> Result<String, ToolError> {
    let beyond = |error: jiff::Error| ToolError::Arguments(format!("the difference is out of range: {error}"));
    if let (When::Day(from), When::Day(until)) = (from, until) {
        let days = from.until((Unit::Day, until)).map_err(beyond)?;
        let parts = from.until((Unit::Year, until)).map_err(beyond)?;
        let words = units(&[
            (parts.get_years().into(), "year"),
            (parts.get_months().into(), "month"),
            (parts.get_days().into(), "day"),
        ]);
        let days = units(&[(days.get_days().into(), "day")]);
        let more = if words == days { String::new() } else { format!(" = {words}") };
        return Ok(format!("From {from} to {until}: {days}{more}"));
    }
    let start = from.time().to_zoned(zone.clone()).map_err(beyond)?;
    let end = until.time().to_zoned(zone.clone()).map_err(beyond)?;
    let minutes = start.until((Unit::Minute, &end)).map_err(beyond)?.get_minutes();
    let parts = [(minutes / 1_440, "day"), (minutes / 60 % 24, "hour"), (minutes % 60, "minute")];
    let (words, total) = (units(&parts), units(&[(minutes, "minute")]));
    let more = if words == total { String::new() } else { format!(" = {words} of 24 hours a day") };
    let shown = |time: DateTime| time.strftime("%Y-%m-%d %H:%M").to_string();
    Ok(format!("From {} to {}: {total}{more}", shown(from.time()), shown(until.time())))
}

/// `1 year 2 days`: what is not zero.
fn units(parts: &[(i64, &str)]) -> String {
    let said = parts.iter().filter(|(n, _)| *n != 0);
    let said = said.map(|(n, unit)| format!("{n} {unit}{}", if n.abs() == 1 { "" } else { "s" }));
    let said: Vec<String> = said.collect();
    match (said.is_empty(), parts.last()) {
        (true, Some((_, unit))) => format!("0 {unit}s"),
        _ => said.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    /// Thursday, 2026-11-26 21:05:33 in UTC.
    fn said(arguments: Value) -> Result<String, String> {
        let toolbox = Toolbox::new("/nonexistent".into(), Clock::from_fn(|| 1_795_727_133_000));
        run(&toolbox, arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn dates_are_right() {
        for (arguments, result) in [
            (json!({"operation": "now", "zone": "UTC"}), "Thursday, 2026-11-26 21:05:33, UTC+00:00 (UTC)"),
            (
                json!({"operation": "now", "zone": "Asia/Kolkata"}),
                "Friday, 2026-11-27 02:35:33, UTC+05:30 (Asia/Kolkata)",
            ),
            (json!({"operation": "weekday", "date": "2024-02-29"}), "2024-02-29 is a Thursday."),
            (json!({"operation": "weekday", "zone": "UTC"}), "2026-11-26 is a Thursday."),
            (json!({"operation": "add", "date": "2024-01-31", "months": 1}), "2024-02-29 (Thursday)"),
            (json!({"operation": "add", "date": "2024-03-01", "days": -1}), "2024-02-29 (Thursday)"),
            (json!({"operation": "add", "date": "2024-03-01", "days": -1.0, "weeks": 0e0}), "2024-02-29 (Thursday)"),
            (json!({"operation": "add", "zone": "UTC", "weeks": 2, "days": 1}), "2026-12-11 (Friday)"),
            (
                json!({"operation": "add", "date": "2024-12-31T23:30", "minutes": 45, "zone": "UTC"}),
                "2025-01-01 00:15:00 (Wednesday), UTC+00:00 (UTC)",
            ),
            (
                json!({"operation": "difference", "date": "2024-02-10", "until": "2024-03-15"}),
                "From 2024-02-10 to 2024-03-15: 34 days = 1 month 5 days",
            ),
            (
                json!({"operation": "difference", "date": "2024-03-02", "until": "2024-03-01"}),
                "From 2024-03-02 to 2024-03-01: -1 day",
            ),
            (
                json!({"operation": "difference", "until": "2026-12-24", "zone": "UTC"}),
                "From 2026-11-26 to 2026-12-24: 28 days",
            ),
            (
                json!({"operation": "difference", "date": "2024-02-10", "until": "2024-02-10"}),
                "From 2024-02-10 to 2024-02-10: 0 days",
            ),
            (
                json!({"operation": "difference", "date": "2024-05-01T22:15", "until": "2024-05-03T06:00", "zone": "UTC"}),
                "From 2024-05-01 22:15 to 2024-05-03 06:00: 1905 minutes = 1 day 7 hours 45 minutes of 24 hours a day",
            ),
            // A day of 23 hours.
            (
                json!({"operation": "difference", "date": "2024-03-31T00:00", "until": "2024-04-01T00:00", "zone": "Europe/Paris"}),
                "From 2024-03-31 00:00 to 2024-04-01 00:00: 1380 minutes = 23 hours of 24 hours a day",
            ),
        ] {
            assert_eq!(said(arguments.clone()).as_deref(), Ok(result), "{arguments}");
        }
    }

    #[test]
    fn what_cannot_be_says_why() {
        for (arguments, words) in [
            (json!({"operation": "add", "days": 0.5}), "floating point `0.5`"),
            (json!({"operation": "weekday", "date": "2023-02-29"}), "\"2023-02-29\" is no date"),
            (json!({"operation": "weekday", "date": "tomorrow"}), "write YYYY-MM-DD"),
            (json!({"operation": "weekday", "date": "9".repeat(5_000)}), "is no date"),
            (json!({"operation": "weekday", "days": 3}), "`days` has no meaning"),
            (json!({"operation": "now", "date": "2024-01-01"}), "`date` has no meaning"),
            (json!({"operation": "now", "zone": "Europe/Atlantis"}), "\"Europe/Atlantis\" is not known"),
            (json!({"operation": "now", "zone": "../../etc/passwd"}), "is not known"),
            (json!({"operation": "difference"}), "`date` or `until`"),
            (json!({"operation": "add", "date": "9999-12-31", "days": 1}), "out of range"),
            (json!({"operation": "add", "days": i64::MAX}), "out of range"),
            (json!({"operation": "add", "hours": i64::MIN}), "out of range"),
            (json!({"operation": "add", "days": 1.5}), "days"),
        ] {
            let error = said(arguments.clone()).expect_err(&arguments.to_string());
            assert!(error.contains(words), "{arguments}: {error}");
        }
    }
}
