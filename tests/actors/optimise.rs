//! The search for better prompts, with an engine for which some instructions are known to help and others to harm. What
//! helps is found and comes in as a file of the state folder. What only seems to help is refused by the held-out exam.

use std::fs;
use std::path::PathBuf;

use chimere::failpoint::Failpoint;
use chimere::night::phase::Job;
use chimere::pipeline::Pipeline;
use chimere::service::{NightCommand, ServiceError};
use serde_json::Value;

use crate::night_stage::{NightStage, Options, folder, write_items};
use crate::stage::run;

/// Small budgets, and one instruction of the owner's.
fn options(instruction: &'static str) -> Options {
    let changes = vec![
        ("instructions: []", instruction),
        ("trials: 24", "trials: 40"),
        ("batch: 40", "batch: 20"),
        ("proposals: 3", "proposals: 1"),
        ("sets: 5", "sets: 2"),
        ("parallel: 4", "parallel: 32"),
    ];
    Options { changes, ..Options::default() }
}

impl NightStage {
    async fn search(&self, dry_run: bool) -> Value {
        let command = NightCommand::RunNow { job: Job::OptimisePrompts, candidate: None, dry_run };
        let run = self.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned();
        self.report(&run).await
    }

    fn prompt(&self) -> Pipeline {
        self.pipelines.current().get("default").unwrap().clone()
    }

    fn file(&self) -> PathBuf {
        self.state.path().join("pipelines/default.yaml")
    }
}

fn route(report: &Value) -> &Value {
    let routes = report["optimised"]["routes"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    routes.iter().find(|r| r["route"] == "default").unwrap()
}

#[test]
fn an_instruction_that_helps_is_found_let_in_and_taken_back() {
    run(async {
        let night = NightStage::new(&folder(), options("instructions: [Answer with care.]")).await;
        let before = night.prompt();
        let report = night.search(true).await;
        assert_eq!(route(&report)["outcome"], "would_change", "{report:#}");
        assert!(report["outcome"]["would_change"].is_object(), "{report:#}");
        assert!(report["undo"].as_str().unwrap().contains("nothing was changed"), "{report:#}");
        assert!(!night.file().exists() && night.prompt() == before, "a dry run changes nothing");

        let report = night.search(false).await;
        let found = route(&report);
        assert_eq!(found["outcome"], "changed", "{report:#}");
        let gate = &found["gate"];
        // Sixty of a hundred items were right, ninety are.
        assert_eq!((gate["n"].as_u64(), gate["current"].as_f64()), (Some(210), Some(130.0 / 210.0)), "{gate}");
        assert!(gate["low"].as_f64() > Some(0.2) && gate["p"].as_f64() < Some(1e-6), "{gate}");
        let after = night.prompt();
        assert_eq!(after.system, "Answer with care.");
        let provenance = after.provenance.clone().unwrap();
        assert_eq!((provenance.parent.as_str(), provenance.model_hash.as_str()), (before.version.as_str(), "m"));
        assert_eq!(after.version, format!("{}+overlay.{}", before.version, provenance.run));
        assert!(report["undo"].as_str().unwrap().contains("chimere pipeline reset default"), "{}", report["undo"]);
        // Demonstrations, if any, are the model's own right answers to slice items; no other part changed.
        assert!(after.demonstrations.chunks(2).all(|pair| pair[1].content == "right"), "{:?}", after.demonstrations);
        assert!(provenance.demonstrations.iter().all(|item| item.starts_with("slice-")), "{provenance:?}");
        assert_eq!((&after.rules, &after.sampling, after.thinking), (&before.rules, &before.sampling, before.thinking));

        // Once more: nothing better is left, and the file stays as it is.
        let text = fs::read(night.file()).unwrap();
        let report = night.search(false).await;
        assert_ne!(route(&report)["outcome"], "changed", "{report:#}");
        assert_eq!(fs::read(night.file()).unwrap(), text);

        let reset = || night.tell(NightCommand::ResetPipeline { route: "default".to_owned() });
        let answer = reset().await.unwrap();
        assert_eq!((&answer["before"], &answer["version"]), (&after.version.into(), &before.version.clone().into()));
        assert!(night.prompt() == before && !night.file().exists());
        assert!(matches!(reset().await, Err(ServiceError::Invalid { .. })), "there is nothing to take back");
    });
}

#[test]
fn what_harms_is_never_let_in() {
    run(async {
        let night = NightStage::new(&folder(), options("instructions: [Answer carelessly.]")).await;
        let before = night.prompt();
        let report = night.search(false).await;
        assert_eq!(route(&report)["outcome"], "nothing_better", "{report:#}");
        assert!(!night.file().exists() && night.prompt() == before);
    });
}

#[test]
fn what_helps_on_the_slice_alone_is_refused_by_the_held_out_exam() {
    run(async {
        let state = folder();
        write_items(&state.path().join("golden.jsonl"), "golden", 1_000);
        let night = NightStage::new(&state, options("instructions: [Know them by heart.]")).await;
        let report = night.search(false).await;
        let found = route(&report);
        assert_eq!(found["outcome"], "refused", "{report:#}");
        assert!(found["search"]["difference"].as_f64() > Some(0.3), "{found:#}");
        assert!(found["gate"]["difference"].as_f64() < Some(-0.3), "{found:#}");
        assert!(!night.file().exists());
    });
}

#[test]
fn the_owners_own_file_and_a_full_disk_are_left_as_they_are() {
    run(async {
        let state = folder();
        fs::create_dir_all(state.path().join("pipelines")).unwrap();
        let file = state.path().join("pipelines/default.yaml");
        let own = "name: default\nversion: 9\nthinking: {fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}\n";
        fs::write(&file, own).unwrap();
        let night = NightStage::new(&state, options("instructions: [Answer with care.]")).await;
        let report = night.search(false).await;
        assert_eq!(
            (route(&report)["outcome"].as_str(), route(&report)["because"].as_str()),
            (Some("left_alone"), Some("its file is the owner's"))
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), own);

        let failpoint = Failpoint::parse("optimise.write=full");
        let night =
            NightStage::new(&folder(), Options { failpoint, ..options("instructions: [Answer with care.]") }).await;
        let report = night.search(false).await;
        assert!(report["outcome"]["failed"].is_object(), "{report:#}");
        assert!(!night.file().exists() && night.prompt().provenance.is_none());
    });
}

#[test]
fn a_run_that_fails_behind_a_change_says_that_it_made_it() {
    run(async {
        let failpoint = Failpoint::parse("optimise.written=full");
        let night =
            NightStage::new(&folder(), Options { failpoint, ..options("instructions: [Answer with care.]") }).await;
        let report = night.search(false).await;
        assert_eq!(report["outcome"]["failed"]["phase"], "optimise", "{report:#}");
        assert_eq!(
            (night.prompt().system.as_str(), &route(&report)["outcome"]),
            ("Answer with care.", &"changed".into())
        );
        assert!(report["undo"].as_str().unwrap().contains("chimere pipeline reset default"), "{}", report["undo"]);
    });
}
