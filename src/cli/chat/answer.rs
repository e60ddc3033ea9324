//! Prints one answer while it arrives: the thought dimmed, then the reply.

use std::io::Write;

use chimere::plural::counted;
use chimere::whole;
use serde_json::{Value, json};

use crate::cli::client::{Client, printable};

const DIM: &str = "\u{1b}[2m";
const PLAIN: &str = "\u{1b}[0m";
/// Of arguments and of a result in one line.
const CALL_CHARS_MAX: usize = 120;

/// What is left of an answer once it was printed.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Of the reply, as soon as its first event is there.
    pub id: Option<String>,
    pub text: String,
    pub finish_reason: Option<String>,
    /// Of the last event: usage, and where the answer came from.
    pub usage: Value,
    pub own: Value,
    pub elapsed_s: f64,
}

/// How an answer is shown.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Show the thought, dimmed: for a person at a terminal.
    pub thought: bool,
}

/// Asks, and prints the answer as it comes. Dropping the future stops it.
pub async fn ask(
    client: &Client,
    request: &Value,
    style: Style,
    answer: &mut Answer,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let started = std::time::Instant::now();
    let mut events = client.stream("/v1/chat/completions", request).await?;
    let mut printer = Printer { style, thinking: false, last: '\n' };
    let result = loop {
        match events.next().await {
            Ok(Some(event)) => {
                if let Err(error) = printer.show(&event, answer, out) {
                    break Err(error.into());
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    answer.elapsed_s = started.elapsed().as_secs_f64();
    printer.end(out)?;
    result
}

struct Printer {
    style: Style,
    thinking: bool,
    /// Last character printed.
    last: char,
}

impl Printer {
    fn show(&mut self, event: &Value, answer: &mut Answer, out: &mut impl Write) -> std::io::Result<()> {
        let step = &event["x_chimere"]["step"];
        if !step.is_null() {
            return self.step(step, out);
        }
        for field in ["usage", "x_chimere"] {
            let value = &event[field];
            if !value.is_null() {
                *(if field == "usage" { &mut answer.usage } else { &mut answer.own }) = value.clone();
            }
        }
        if let Some(id) = event["id"].as_str() {
            answer.id.get_or_insert_with(|| id.to_owned());
        }
        let choice = &event["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            answer.finish_reason = Some(reason.to_owned());
        }
        let delta = &choice["delta"];
        if let Some(thought) = delta["reasoning_content"].as_str()
            && self.style.thought
        {
            if !self.thinking {
                write!(out, "{DIM}")?;
                self.thinking = true;
            }
            self.put(thought, out)?;
        }
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            let text = if answer.text.is_empty() { text.trim_start() } else { text };
            answer.text.push_str(text);
            self.leave_thought(out)?;
            self.put(text, out)?;
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.leave_thought(out)?;
            if let Some(name) = call["function"]["name"].as_str() {
                self.put(&format!("[calls {name}] "), out)?;
            }
            self.put(call["function"]["arguments"].as_str().unwrap_or_default(), out)?;
        }
        out.flush()
    }

    /// A call that the daemon ran, in a line of its own: for a person.
    fn step(&mut self, step: &Value, out: &mut impl Write) -> std::io::Result<()> {
        if step["state"] != "called" || !self.style.thought {
            return Ok(());
        }
        self.leave_thought(out)?;
        if self.last != '\n' {
            writeln!(out)?;
        }
        writeln!(out, "{DIM}{}{PLAIN}", called(step))?;
        self.last = '\n';
        out.flush()
    }

    fn leave_thought(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        if std::mem::take(&mut self.thinking) {
            write!(out, "{PLAIN}")?;
            if self.last != '\n' {
                writeln!(out)?;
            }
            writeln!(out)?;
            self.last = '\n';
        }
        Ok(())
    }

    fn put(&mut self, text: &str, out: &mut impl Write) -> std::io::Result<()> {
        let text = printable(text);
        if let Some(last) = text.chars().next_back() {
            self.last = last;
        }
        out.write_all(text.as_bytes())
    }

    /// Leaves the terminal as it was found, at the start of a line.
    fn end(&mut self, out: &mut impl Write) -> std::io::Result<()> {
        if std::mem::take(&mut self.thinking) {
            write!(out, "{PLAIN}")?;
        }
        if self.last != '\n' {
            writeln!(out)?;
        }
        out.flush()
    }
}

/// A call and what came of it, in a line.
fn called(step: &Value) -> String {
    let name = printable(step["name"].as_str().unwrap_or("?"));
    let result = step["result"].as_str().unwrap_or_default();
    let short = |text: &str| {
        let line = text.lines().next().unwrap_or_default();
        let cut: String = line.chars().take(CALL_CHARS_MAX).collect();
        let more = if cut.len() < text.trim_end().len() { "…" } else { "" };
        printable(&format!("{cut}{more}"))
    };
    format!("[{name} {} → {}, {} ms]", short(&whole::written(&step["arguments"])), short(result), step["took_ms"])
}

impl Answer {
    /// It ended at its limit of tokens and not by itself.
    pub fn is_cut(&self) -> bool {
        self.finish_reason.as_deref() == Some("length")
    }

    /// How a cut answer was cut, without what to do.
    pub fn cut(&self) -> String {
        let at = self.usage["completion_tokens"]
            .as_u64()
            .map(|n| format!(" of {}", counted(n, "token", "tokens")))
            .unwrap_or_default();
        let what =
            if self.text.is_empty() { "the thought took the whole limit" } else { "the answer was cut at its limit" };
        format!("{what}{at}")
    }

    /// What is to be told of an answer that the daemon does not remember.
    pub fn lost(&self) -> Option<&'static str> {
        match &self.own["kept"] {
            Value::Bool(false) => Some(
                "this answer is not remembered: the daemon could not write it to its turn log. `chimere doctor` says why",
            ),
            Value::String(_) => Some(
                "whether this answer is remembered is not known: the turn log did not answer in time. `chimere doctor` \
                 says more",
            ),
            _ => None,
        }
    }

    /// The lessons that it was shown.
    pub fn lessons(&self) -> Option<String> {
        let ids: Vec<_> = self.own["lessons"].as_array()?.iter().filter_map(Value::as_str).map(printable).collect();
        (!ids.is_empty()).then(|| ids.join(", "))
    }

    /// The passages of documents and web pages that it was shown, a line each; `None`: none were looked for.
    pub fn sources(&self) -> Option<Vec<String>> {
        let sources = self.own["sources"].as_array()?;
        if sources.is_empty() {
            let web = self.own["trace"].as_array().into_iter().flatten().find(|step| step["kind"] == "web");
            return Some(vec![match web.map(|step| &step["outcome"]) {
                None => "nothing was found in the documents".to_owned(),
                Some(outcome) if outcome == "failed" => {
                    let why = web.and_then(|step| step["because"].as_str()).unwrap_or_default();
                    format!("the web could not be searched: {}", printable(why))
                }
                Some(_) => "nothing was found".to_owned(),
            }]);
        }
        let text = |value: &Value| printable(value.as_str().unwrap_or_default());
        let one = |source: &Value| {
            if source["document"].is_null() {
                return format!("[{}] {}, {}", source["number"], text(&source["title"]), text(&source["url"]));
            }
            let place = match (source["page"].as_u64(), source["row"].as_u64()) {
                (Some(page), _) => format!("page {page}"),
                (None, Some(row)) => format!("sheet {}, row {row}", text(&source["sheet"])),
                (None, None) => format!("line {}", source["line"]),
            };
            format!("[{}] {}, {place} ({})", source["number"], text(&source["title"]), text(&source["document"]))
        };
        Some(sources.iter().map(one).collect())
    }

    /// Takes the figures of an answer that was stopped from the turn that the daemon kept of it.
    pub fn take_turn(&mut self, turn: &Value) {
        let part = &turn["generations"][0];
        if part["usage"].is_null() {
            return;
        }
        let usage = &part["usage"];
        self.usage = json!({
            "prompt_tokens": usage["prompt_tokens"],
            "prompt_tokens_details": { "cached_tokens": usage["cached_tokens"] },
            "completion_tokens": usage["completion_tokens"],
            "completion_tokens_details": { "reasoning_tokens": usage["thinking_tokens"] },
        });
        self.own = json!({
            "timings": part["timings"],
            "route": turn["route"],
            "because": "as its turn says",
            "tier": turn["tier"],
            "pipeline_version": turn["pipeline_version"],
            "turn": turn["id"],
        });
        self.finish_reason = part["finish_reason"].as_str().map(str::to_owned);
    }

    /// The figures of `/stats`.
    pub fn stats(&self) -> String {
        if self.usage.is_null() {
            let turn = self.id.as_deref().map(|id| format!(" (turn {})", printable(id))).unwrap_or_default();
            return format!(
                "there are no figures: the answer ended after {:.2} s without them{turn}. /stats a moment later may find \
                 those of its turn",
                self.elapsed_s
            );
        }
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let completion = number(&self.usage["completion_tokens"]);
        let timings = &self.own["timings"];
        let decode_s = number(&timings["decode_ms"]) / 1e3;
        // The first token comes with the prompt.
        let rate = if decode_s > 0.0 { (completion - 1.0).max(0.0) / decode_s } else { 0.0 };
        let text = |value: &Value| printable(value.as_str().unwrap_or("?"));
        format!(
            "tokens   prompt {} (cached {}), completion {completion} (thought {})\n\
             time     queue {:.0} ms, prefill {:.0} ms, decode {:.0} ms, {rate:.1} tokens/s; {:.2} s in all\n\
             route    {} ({}), tier {}, pipeline {}\n\
             turn     {}, finish {}",
            number(&self.usage["prompt_tokens"]),
            number(&self.usage["prompt_tokens_details"]["cached_tokens"]),
            number(&self.usage["completion_tokens_details"]["reasoning_tokens"]),
            number(&timings["queued_ms"]),
            number(&timings["prefill_ms"]),
            number(&timings["decode_ms"]),
            self.elapsed_s,
            text(&self.own["route"]),
            text(&self.own["because"]),
            text(&self.own["tier"]),
            text(&self.own["pipeline_version"]),
            text(&self.own["turn"]),
            self.finish_reason.as_deref().unwrap_or("none"),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cut_answer_says_where() {
        let whole = Answer { finish_reason: Some("stop".to_owned()), ..Answer::default() };
        let cut = |text: &str, usage| {
            let finish_reason = Some("length".to_owned());
            Answer { text: text.to_owned(), finish_reason, usage, ..Answer::default() }
        };
        let spoken = cut("The answer", json!({"completion_tokens": 3}));
        assert!(!whole.is_cut() && spoken.is_cut());
        assert_eq!(spoken.cut(), "the answer was cut at its limit of 3 tokens");
        assert_eq!(cut("", json!({"completion_tokens": 3})).cut(), "the thought took the whole limit of 3 tokens");
        assert_eq!(cut("The", json!(null)).cut(), "the answer was cut at its limit");
    }

    #[test]
    fn a_stopped_answer_has_the_figures_of_its_turn_or_says_that_there_are_none() {
        let mut stopped = Answer { id: Some("turn-1".to_owned()), elapsed_s: 1.5, ..Answer::default() };
        let said = stopped.stats();
        assert!(said.contains("there are no figures") && said.contains("1.50 s") && !said.contains(" 0 "), "{said}");
        stopped.take_turn(&json!(null));
        assert!(stopped.usage.is_null());
        let part = json!({"usage": {"prompt_tokens": 12, "completion_tokens": 7}, "timings": {"decode_ms": 60.0},
            "finish_reason": "aborted"});
        stopped.take_turn(&json!({"id": "turn-1", "route": "code", "tier": "fast", "generations": [part]}));
        let said = stopped.stats();
        assert!(said.contains("prompt 12 (cached 0), completion 7") && said.contains("100.0 tokens/s"), "{said}");
        assert!(said.contains("route    code") && said.contains("turn     turn-1, finish aborted"), "{said}");
    }

    #[test]
    fn a_call_is_a_line_and_long_ones_are_folded() {
        let step = json!({"state": "called", "name": "calculate", "arguments": {"expression": "17% of 230"},
            "result": "39.1", "took_ms": 12});
        assert_eq!(called(&step), "[calculate {\"expression\":\"17% of 230\"} → 39.1, 12 ms]");
        let long = json!({"name": "a\u{1b}[2J", "arguments": {}, "result": format!("one\ntwo{}", "x".repeat(500))});
        let line = called(&long);
        assert!(line.contains("→ one…,") && !line.contains('\u{1b}') && line.len() < 300, "{line}");
    }
}
