//! The slice exam with the learned tables and without, by an engine for which the worth of a table is known. The
//! tests see what is asked and reported. The tables stay written when the asking is stopped.

use chimere::night::phase::Job;
use chimere::service::NightCommand;
use serde_json::{Value, json};

use crate::fake::{TABLES_HITS, TABLES_RIGHT};
use crate::night_stage::{NightStage, Options, folder};
use crate::stage::run;

/// Tokens of the scripted engine's reply.
const REPLY_TOKENS: u64 = 3;

/// A night with one verified answer, long enough for a table.
async fn stage(changes: Vec<(&'static str, &'static str)>) -> NightStage {
    let night = NightStage::new(&folder(), Options { changes, ..Options::default() }).await;
    let long = |turn: &mut chimere::turn::Turn| turn.generations[0].reply_ids = (100..120).collect();
    night.confirmed("owner", ["Why is the sea salt?".to_owned()], long).await;
    night
}

impl NightStage {
    async fn begin_writing(&self, dry_run: bool) -> String {
        let command = NightCommand::RunNow { job: Job::EngramWrite, candidate: None, dry_run };
        self.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned()
    }

    async fn written(&self, dry_run: bool) -> Value {
        let id = self.begin_writing(dry_run).await;
        self.report(&id).await
    }
}

fn step<'a>(report: &'a Value, phase: &str) -> &'a str {
    let steps = report["steps"].as_array().unwrap();
    let step = steps.iter().find(|step| step["phase"] == phase).unwrap_or_else(|| panic!("{report:#}"));
    step["words"].as_str().unwrap()
}

/// Tables on the disk.
fn tables(night: &NightStage) -> usize {
    let files = std::fs::read_dir(night.path("engram")).into_iter().flatten();
    files.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "engr")).count()
}

#[test]
fn a_night_says_what_its_tables_know_and_what_they_are_worth() {
    run(async {
        let night = stage(Vec::new()).await;
        let dry = night.written(true).await;
        assert!(dry["outcome"]["would_change"].is_object() && dry["engram"]["effect"].is_null(), "{dry:#}");
        let page = |report: &Value| {
            let folder = night.path("runs").join(report["order"]["id"].as_str().unwrap());
            std::fs::read_to_string(folder.join("report.html")).unwrap()
        };
        let said = page(&dry);
        assert!(tables(&night) == 0 && !said.contains("were written anew"), "{said}");
        assert!(said.contains("WOULD CHANGE") && said.contains("because this was a dry run"), "{said}");
        let report = night.written(false).await;
        let effect = &report["engram"]["effect"];
        let number = |name: &str| effect[name].as_u64().unwrap_or_else(|| panic!("{name}: {report:#}"));
        let (with, without) = (number("right_with"), number("right_without"));
        assert_eq!((number("items"), number("failed")), (100, 0));
        // Sixty of a hundred items are right without tables, twenty more with them; which hundred is drawn.
        assert!((45..75).contains(&without) && with > without + u64::from(TABLES_RIGHT) / 2, "{effect:#}");
        assert_eq!(number("answers_changed"), with - without);
        let points = effect["difference"]["difference"].as_f64().unwrap();
        assert!((points - (with - without) as f64 / 100.0).abs() < 1e-9, "{effect:#}");
        assert!(effect["difference"]["low"].as_f64() > Some(0.0), "{effect:#}");
        assert_eq!((number("tokens"), number("hits")), (100 * REPLY_TOKENS, 100 * u64::from(TABLES_HITS)));
        assert!((effect["hit_rate"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9, "{effect:#}");
        let told = format!("100 items of the slice exam: {with} right with the tables, {without} without");
        assert!(step(&report, "weigh").starts_with(&told), "{report:#}");
        let page = page(&report);
        assert!(page.contains(&told) && page.contains("66.7 % (200 of 300)"), "{page}");
        assert!(page.contains("were written anew from 1 of "), "{page}");
    });
}

#[test]
fn none_is_asked_where_none_is_wanted_or_no_route_uses_the_tables() {
    run(async {
        let night = stage(vec![("items_max: 100\n", "items_max: 0\n")]).await;
        let report = night.written(false).await;
        assert!(report["outcome"]["done"].is_object() && report["engram"]["effect"].is_null(), "{report:#}");
        assert!(step(&report, "weigh").contains("engram.items_max"), "{report:#}");
        let night = stage(Vec::new()).await;
        // The items of this exam go the default route.
        let own = "name: default\nversion: 9\nthinking: {fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}\n";
        std::fs::write(night.path("pipelines/default.yaml"), own).unwrap();
        night.pipelines.reload().unwrap();
        let report = night.written(false).await;
        assert!(report["engram"]["effect"].is_null(), "{report:#}");
        assert!(step(&report, "weigh").contains("no route"), "{report:#}");
    });
}

#[test]
fn a_stop_ends_the_asking_and_the_tables_stay_written() {
    run(async {
        let night = stage(vec![("items_max: 100\n", "items_max: 210\n"), ("parallel: 4", "parallel: 1")]).await;
        let id = night.begin_writing(false).await;
        let asking =
            |status: &Value| status["run"]["phase"] == "weigh" && status["run"]["progress"]["done"].as_u64() > Some(0);
        let status = night.until(asking).await;
        assert_eq!(status["run"]["progress"]["total"], 420, "{status:#}");
        // A reply between the questions.
        assert_eq!(night.ask("a").await, 0);
        night.tell(NightCommand::Pause).await.unwrap();
        let report = night.report(&id).await;
        assert!(report["outcome"]["done"].is_object() && report["engram"]["effect"].is_null(), "{report:#}");
        assert_eq!(step(&report, "weigh"), "stopped in the phase `weigh`");
        assert_eq!(report["engram"]["counts"]["principals"], json!(1), "{report:#}");
        assert_eq!(tables(&night), 1);
    });
}
