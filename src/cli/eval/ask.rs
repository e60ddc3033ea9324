//! What commands that ask an exam have in common: which items, how they are asked, where the outcomes go.

use std::path::PathBuf;

use chimere::eval::golden::{self, Item};
use chimere::turn::Thinking;
use serde::Serialize;

use super::super::exit::cannot_write;

#[derive(clap::Args)]
pub(super) struct Ask {
    /// Exam file (JSONL, plain or gzip)
    #[arg(long, default_value = "nano/golden/golden.jsonl.gz")]
    pub(super) set: PathBuf,
    /// Ask only the first N items of each family
    #[arg(long, value_name = "N")]
    per_family: Option<usize>,
    /// Tokens of thought before `</think>` is forced; 0 = no thought
    #[arg(long, default_value_t = 192)]
    thinking: u32,
    /// Requests at a time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    parallel: u16,
    /// Write the result of every item to this file (JSONL)
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl Ask {
    /// The exam's items, of each family no more than asked for.
    pub(super) fn items(&self) -> anyhow::Result<Vec<Item>> {
        let mut items = golden::read(&self.set)?;
        if let Some(most) = self.per_family {
            let mut seen = std::collections::HashMap::<String, usize>::new();
            items.retain(|item| {
                let n = seen.entry(item.family.clone()).or_default();
                *n += 1;
                *n <= most
            });
        }
        Ok(items)
    }

    pub(super) fn thinking(&self) -> Thinking {
        match self.thinking {
            0 => Thinking::Off,
            budget_tokens => Thinking::On { budget_tokens },
        }
    }

    pub(super) fn parallel(&self) -> usize {
        usize::from(self.parallel)
    }

    /// Writes the outcomes where they were asked for.
    pub(super) fn keep<T: Serialize>(&self, outcomes: &[T]) -> anyhow::Result<()> {
        let Some(path) = &self.out else { return Ok(()) };
        let lines: Vec<String> = outcomes.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        std::fs::write(path, lines.join("\n") + "\n").map_err(cannot_write(path))
    }
}
