//! `chimere eval scorer`: the model answers held-out items, the judge scores the answers, the exact checks say who was
//! right.

use std::process::ExitCode;

use chimere::eval::golden::Score;
use chimere::eval::scorer::{Agreement, agreement};
use chimere::scoring::measure::Auc;
use serde_json::json;

use super::super::exit::say;
use super::judge::{JudgeArgs, answered};

pub(super) fn run(args: JudgeArgs) -> anyhow::Result<ExitCode> {
    let (items, court) = (args.ask.items()?, args.open()?);
    let outcomes = court.answer(&items, &args.exam())?;
    let judged = court.judge(&answered(&items, &outcomes))?;
    args.ask.keep(&judged)?;
    let found = agreement(&judged);
    if args.ask.json {
        let unjudged = outcomes.len() - judged.len();
        say!(
            "{:#}",
            json!({ "model_hash": court.model_hash, "set": args.ask.set, "unjudged": unjudged, "agreement": found })
        );
    } else {
        print(&found, outcomes.len() - judged.len());
    }
    Ok(ExitCode::SUCCESS)
}

fn print(found: &Agreement, unjudged: usize) {
    let percent =
        |s: &Score| format!("{:5.1} %  [{:.1}, {:.1}]  n {}", s.rate * 100.0, s.low * 100.0, s.high * 100.0, s.n);
    let area = |a: &Option<Auc>| match a {
        Some(a) => format!("{:.3} [{:.3}, {:.3}]  {} right, {} wrong", a.auc, a.low, a.high, a.right, a.wrong),
        None => "too few of one kind".to_owned(),
    };
    say!("answers judged         {} ({unjudged} not)", found.n);
    say!("AUC                    {}", area(&found.auc));
    say!("calibration error      {:.3} (Brier {:.3})", found.calibration.ece, found.calibration.brier);
    say!("right answers passed   {}", percent(&found.right_passed));
    say!("wrong answers passed   {}", percent(&found.wrong_passed));
    for (verdict, score) in (1..).zip(&found.calibration.by_verdict) {
        say!("right at verdict {verdict}     {}", percent(score));
    }
    for (domain, auc) in &found.domains {
        say!("AUC {domain:<18} {}", area(auc));
    }
}
