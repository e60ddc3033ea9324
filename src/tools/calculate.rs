//! `calculate`: arithmetic and units, by fend-core. It checks between its steps whether it should stop, but some of its
//! steps are long, large or deep. So it works in a process of its own, which bounds its own memory and time.

use std::process::Stdio;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use regex::Regex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::{Tool, ToolError, Toolbox, read};

pub const TOOL: Tool = Tool {
    name: "calculate",
    description: "Calculates exactly: arithmetic, powers, roots, percentages, logarithms, trigonometry, and units with \
                  their conversion.",
    parameters,
    effects: false,
    taints: false,
    run: |toolbox, arguments| Box::pin(run(toolbox, arguments)),
};

/// Bytes of an expression.
pub const EXPRESSION_BYTES_MAX: usize = 1_024;
/// Bytes of a result: a larger number is of no use to a model.
const RESULT_BYTES_MAX: usize = 1_024;
/// Brackets in brackets.
const DEPTH_MAX: usize = 32;
/// Digits of one number as it is written, and of an exponent.
const DIGITS_MAX: usize = 200;
const EXPONENT_DIGITS_MAX: usize = 5;
/// Address space of the process: the program itself takes part of it.
pub const ADDRESS_SPACE_BYTES_MAX: u64 = 256 << 20;
/// What it may compute until it stops by itself, and until it is stopped.
const COMPUTE: Duration = Duration::from_secs(1);
pub const CPU_S_MAX: u64 = 2;
/// Stack of the calculation: what is read is read by recursion.
const STACK_BYTES: usize = 16 << 20;
/// Bytes of the process's answer that are read.
const ANSWER_BYTES_MAX: u64 = 4_096;

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {"expression": {
            "type": "string",
            "description": "For example 17% of 230, (3 + 4)^2 / 7, sqrt(2), 5 km in miles, 72 °F to °C, 90 minutes in hours",
            "minLength": 1,
            "maxLength": EXPRESSION_BYTES_MAX,
        }},
        "required": ["expression"],
        "additionalProperties": false,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    expression: String,
}

async fn run(toolbox: &Toolbox, arguments: Value) -> Result<String, ToolError> {
    let Arguments { expression } = read(arguments)?;
    check(&expression).map_err(ToolError::Arguments)?;
    let failed = |error: std::io::Error| ToolError::Failed(error.to_string());
    let _place = toolbox.processes.acquire().await.map_err(|error| ToolError::Failed(error.to_string()))?;
    let mut child = Command::new(&toolbox.program)
        .args(["tools", "calculate"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // It fits a pipe. A child that died is judged by its status.
        let _ = stdin.write_all(expression.as_bytes()).await;
    }
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut said).await.map_err(failed)?;
    }
    let status = child.wait().await.map_err(failed)?;
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    match status.code() {
        Some(0) => Ok(said),
        Some(1) if !said.is_empty() => Err(ToolError::Refused(said)),
        // Ended by its limits, or by what it calculated.
        _ => Err(ToolError::Refused(COSTLY.to_owned())),
    }
}

const COSTLY: &str = "this needs more time or memory than a calculation may take: ask for smaller numbers";

/// Refuses what is no calculation, or one that would only end at a limit.
fn check(expression: &str) -> Result<(), String> {
    static LONG_NUMBER: LazyLock<Option<Regex>> =
        LazyLock::new(|| Regex::new(&format!(r"[0-9][0-9_,.]{{{DIGITS_MAX},}}")).ok());
    static LONG_EXPONENT: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let digits = EXPONENT_DIGITS_MAX + 1;
        Regex::new(&format!(
            r"(?:\^|\*\*|<<|[0-9.][eE])\s*[-+(\s]*[0-9][0-9_,]{{{},}}|[0-9][0-9_,]{{{},}}\s*!",
            digits - 1,
            digits - 1
        ))
        .ok()
    });
    if expression.trim().is_empty() {
        return Err("`expression` is empty".to_owned());
    }
    if expression.len() > EXPRESSION_BYTES_MAX {
        return Err(format!(
            "`expression` is {} bytes long, but {EXPRESSION_BYTES_MAX} are the most",
            expression.len()
        ));
    }
    // What fend reads as definitions, functions, dates and statements is no calculation.
    let other =
        |c: char| c.is_control() && c != '\n' && c != '\t' || matches!(c, '\\' | '@' | ';' | '=' | '{' | '}' | '#');
    if let Some(c) = expression.chars().find(|c| other(*c)) {
        return Err(format!("`expression` has {c:?}, which is no part of a calculation"));
    }
    if expression.contains("//") {
        return Err("`expression` has `//`: a whole quotient is floor(a / b), a remainder a mod b".to_owned());
    }
    let (mut depth, mut deepest) = (0_usize, 0);
    for c in expression.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > DEPTH_MAX {
        return Err(format!("`expression` has brackets {deepest} deep, but {DEPTH_MAX} are the most"));
    }
    let matches = |pattern: &Option<Regex>| pattern.as_ref().is_none_or(|pattern| pattern.is_match(expression));
    if matches(&LONG_NUMBER) {
        return Err(format!("`expression` has a number of over {DIGITS_MAX} digits"));
    }
    if matches(&LONG_EXPONENT) {
        return Err(format!("`expression` has an exponent or factorial of over {EXPONENT_DIGITS_MAX} digits"));
    }
    Ok(())
}

/// Stops a calculation once this process has computed for long enough, whatever else the machine does.
struct Computed(Duration);

impl fend_core::Interrupt for Computed {
    fn should_interrupt(&self) -> bool {
        chimere_ffi::limits::cpu_time() > self.0
    }
}

/// Calculates in this process, which has bounded itself.
pub fn evaluate(expression: &str) -> Result<String, String> {
    check(expression)?;
    let (expression, until) = (expression.to_owned(), Computed(chimere_ffi::limits::cpu_time() + COMPUTE));
    let work = move || {
        let mut context = fend_core::Context::new();
        let result = fend_core::evaluate_with_interrupt(&expression, &mut context, &until)?;
        Ok(result.get_main_result().to_owned())
    };
    let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(work).map_err(|error| error.to_string())?;
    let result: Result<String, String> = thread.join().unwrap_or_else(|_| Err("this cannot be calculated".to_owned()));
    match result {
        Ok(text) if text.trim().is_empty() => Err("this has no result".to_owned()),
        Ok(text) if text.len() > RESULT_BYTES_MAX => {
            Err(format!("the result is {} characters long: ask for a part of it, or for its logarithm", text.len()))
        }
        Err(words) if words == "interrupted" => Err(COSTLY.to_owned()),
        Err(words) => Err(words.chars().take(300).collect()),
        ok => ok,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calculations_are_right() {
        for (expression, result) in [
            ("2 + 3 * 4", "14"),
            ("(3 + 4)^2 / 7", "7"),
            ("17% of 230", "39.1"),
            ("0.1 + 0.2", "0.3"),
            ("1,000 + 5", "1005"),
            ("3 × 4 ÷ 2 − 1", "5"),
            ("sqrt(2)^2", "2"),
            ("1/3", "approx. 0.3333333333"),
            ("17 mod 5", "2"),
            ("floor(17 / 5)", "3"),
            ("20!", "2432902008176640000"),
            ("1234567 * 7654321", "9449772114007"),
            ("10 km in miles", "approx. 6.2137119224 miles"),
            ("72 °F to °C", "approx. 22.2222222222 °C"),
            ("5 feet 3 inches in cm", "160.02 cm"),
            ("90 minutes in hours", "1.5 hours"),
        ] {
            assert_eq!(evaluate(expression).as_deref(), Ok(result), "{expression}");
        }
    }

    #[test]
    fn what_has_no_result_says_why() {
        let deep = format!("{}1{}", "(".repeat(33), ")".repeat(33));
        let long = "1".repeat(EXPRESSION_BYTES_MAX + 1);
        let digits = "1".repeat(DIGITS_MAX + 1);
        for (expression, words) in [
            ("1 / 0", "division by zero"),
            ("3 kg + 2 m", "incompatible"),
            ("5 eur in usd", "exchange rates are not available"),
            ("roll d6", "random numbers are not available"),
            ("seven plus", "unknown identifier"),
            ("2 +", "expected"),
            ("", "is empty"),
            (" \n", "is empty"),
            ("17 // 5", "floor(a / b)"),
            ("x = 3", "no part of a calculation"),
            ("\\x. x", "no part of a calculation"),
            ("1; 2", "no part of a calculation"),
            (&deep, "33 deep"),
            (&long, "1025 bytes"),
            (&digits, "over 200 digits"),
            ("2^1000000", "over 5 digits"),
            ("2 ** (1000000)", "over 5 digits"),
            ("1e-1000000000", "over 5 digits"),
            ("1 << 10000000", "over 5 digits"),
            ("1000000!", "over 5 digits"),
            ("9^9^9^9", "more time or memory"),
            ("2^10000", "characters long"),
        ] {
            let error = evaluate(expression).expect_err(expression);
            assert!(error.contains(words), "{expression}: {error}");
        }
    }
}
