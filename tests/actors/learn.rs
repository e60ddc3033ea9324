//! Nights that learn, with a scripted trainer and an engine for which the worth of an adapter is known. They show what
//! gets into a dataset, what becomes of it, and what a stop, a failure and forgetting do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use chimere::actors::memory::{Append, List};
use chimere::actors::scheduler::{ForgetPairs, ScheduleChanged};
use chimere::failpoint::{Failpoint, LEARNING};
use chimere::keys::KeyRing;
use chimere::night::dataset::{self, Row};
use chimere::night::inspect::hash_file;
use chimere::night::library::{Library, Status};
use chimere::night::phase::Job;
use chimere::service::{Forgetting, NightCommand, ReplyEvent, Scope, TurnFilter};
use chimere::store::new_turn_id;
use chimere::turn::{Feedback, Message, Role, Turn, Vote};
use serde_json::{Value, json};

use crate::inference::kill;
use crate::night_stage::{GOOD_ADAPTER, Made, NO_STAGES, NightStage, Options, folder, write_adapter};
use crate::stage::{PATIENCE, chat, collect, run};

impl NightStage {
    /// Confirmed turns of a principal, each with a question of its own, changed by `change`.
    pub(crate) async fn confirmed(
        &self,
        principal: &str,
        asked: impl IntoIterator<Item = String>,
        change: impl Fn(&mut Turn),
    ) {
        let replies = &self.stage.replies;
        let events = collect(replies.start(chat("hello")).await.unwrap()).await;
        assert!(matches!(events.last(), Some(ReplyEvent::Done { .. })));
        let model =
            replies.memory.send_within(List(TurnFilter::default()), PATIENCE).await.unwrap().unwrap().pop().unwrap();
        for question in asked {
            let time_ms = self.now.fetch_add(10, Ordering::Relaxed);
            let vote = Feedback {
                time_ms,
                principal: principal.to_owned(),
                vote: Some(Vote::Up),
                correction: None,
                judgement: None,
            };
            let mut turn = Turn {
                id: new_turn_id(time_ms),
                time_ms,
                principal: principal.to_owned(),
                verdict: Some(3),
                feedback: vec![vote],
                messages: vec![Message::new(Role::User, question)],
                judgement: None,
                ..model.clone()
            };
            change(&mut turn);
            replies.memory.send_within(Append(Box::new(turn)), PATIENCE).await.unwrap().unwrap();
        }
    }

    async fn begin_learning(&self) -> String {
        let command = NightCommand::RunNow { job: Job::Train, candidate: None, dry_run: false };
        self.tell(command).await.unwrap()["run"].as_str().unwrap().to_owned()
    }

    async fn learn(&self) -> Value {
        let id = self.begin_learning().await;
        self.report(&id).await
    }

    fn dataset(&self, report: &Value) -> Vec<Row> {
        let dir = self.path("runs").join(report["order"]["id"].as_str().unwrap());
        dataset::read(&dir).unwrap().unwrap().0
    }
}

fn questions(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    range.map(|n| format!("Why is the number {n} what it is?"))
}

fn taught(state: &Arc<tempfile::TempDir>, right: u32) {
    write_adapter(&state.path().join("learned.gguf"), &Made { right, ..GOOD_ADAPTER });
}

fn options() -> Options {
    Options { changes: vec![NO_STAGES], ..Options::default() }
}

#[test]
fn a_night_learns_from_what_was_confirmed_and_shows_it_again() {
    run(async {
        let state = folder();
        taught(&state, 75);
        let night = NightStage::new(&state, options()).await;
        night.confirmed("owner", questions(0..50), |_| {}).await;
        night.confirmed("owner", ["dinner 7".to_owned()], |_| {}).await;
        night.confirmed("owner", ["Is this a secret?".to_owned()], |turn| turn.consent = false).await;
        night.confirmed("owner", ["Is this unscored?".to_owned()], |turn| turn.verdict = None).await;
        let report = night.learn().await;
        assert_eq!(report["outcome"]["promoted"]["generation"], 1, "{report:#}");
        let selection = &report["selection"];
        assert_eq!((selection["new"].as_u64(), selection["replayed"].as_u64()), (Some(50), Some(0)), "{selection}");
        for reason in ["in_exam", "no_consent", "unscored"] {
            assert!(selection["refused"].as_array().unwrap().contains(&json!([reason, 1])), "{reason}: {selection}");
        }
        assert_eq!(report["training"]["curve"], json!([[1, 2.0], [2, 1.0]]));
        // The manifest says what it was learned from.
        let file = night.path("runs").join(report["order"]["id"].as_str().unwrap()).join(dataset::FILE);
        let manifest: Value =
            serde_json::from_slice(&std::fs::read(night.path("generations/1/manifest.json")).unwrap()).unwrap();
        assert_eq!(manifest["data_hash"], hash_file(&file).unwrap().0);
        assert_eq!(manifest["seeds"], json!([report["order"]["seed"]]));
        assert_eq!(manifest["metrics"]["loss_after"], 1.0);
        // The same turns teach nothing again.
        let again = night.learn().await;
        assert!(again["outcome"]["nothing"]["words"].as_str().unwrap().starts_with("nothing to learn"), "{again:#}");
        // A second night shows the first one's pairs again beside its own.
        taught(&state, 90);
        night.confirmed("owner", questions(100..145), |_| {}).await;
        let second = night.learn().await;
        assert_eq!(second["outcome"]["promoted"]["generation"], 2, "{second:#}");
        assert_eq!(
            (&second["selection"]["new"], &second["selection"]["replayed"]),
            (&json!(45), &json!(22)),
            "half as many earlier pairs as new ones"
        );
        assert_eq!(night.dataset(&second).iter().filter(|row| row.origin.replayed).count(), 22);
    });
}

#[test]
fn who_withdraws_consent_is_left_out_with_earlier_turns_and_with_pairs_of_earlier_nights() {
    run(async {
        let state = folder();
        taught(&state, 75);
        let now = jiff::Timestamp::UNIX_EPOCH;
        KeyRing::add(state.path(), "ann", &[Scope::Admin], true, now).unwrap();
        let night = NightStage::new(&state, options()).await;
        night.confirmed("owner", questions(0..40), |_| {}).await;
        night.confirmed("ann", questions(100..140), |_| {}).await;
        let first = night.learn().await;
        assert_eq!(first["outcome"]["promoted"]["generation"], 1, "{first:#}");
        assert_eq!(first["selection"]["new"], 80, "{first:#}");
        // More of both, kept while both consented.
        night.confirmed("owner", questions(200..280), |_| {}).await;
        night.confirmed("ann", questions(300..310), |_| {}).await;
        KeyRing::consent(state.path(), "ann", false).unwrap();
        taught(&state, 90);
        let second = night.learn().await;
        let selection = &second["selection"];
        assert_eq!((&selection["new"], &selection["replayed"]), (&json!(80), &json!(40)), "{selection}");
        assert!(selection["refused"].as_array().unwrap().contains(&json!(["no_consent", 50])), "{selection}");
        assert!(night.dataset(&second).iter().all(|row| row.origin.principal == "owner"));
    });
}

#[test]
fn a_poisoner_is_capped_and_a_refused_nights_pairs_are_tried_again_and_then_given_up() {
    run(async {
        let state = folder();
        // As good as the champion: no improvement, and no harm.
        taught(&state, 60);
        KeyRing::add(state.path(), "mallory", &[Scope::Chat], true, jiff::Timestamp::UNIX_EPOCH).unwrap();
        let night = NightStage::new(&state, options()).await;
        night.confirmed("owner", questions(0..40), |_| {}).await;
        night.confirmed("mallory", questions(1_000..1_120), |_| {}).await;
        night.confirmed("stranger", questions(2_000..2_010), |_| {}).await;
        for (new, retried) in [(60, 0), (0, 60), (0, 60)] {
            let report = night.learn().await;
            assert_eq!(report["outcome"]["rejected"]["rule"], "improvement", "{report:#}");
            let rows = night.dataset(&report);
            let of = |name: &str| rows.iter().filter(|row| row.origin.principal == name).count();
            assert!(of("mallory") <= 20 && of("stranger") == 0, "{} {}", of("mallory"), of("stranger"));
            let selection = &report["selection"];
            assert_eq!((&selection["new"], &selection["retried"]), (&json!(new), &json!(retried)), "{selection}");
        }
        // What was refused three times is not tried a fourth time.
        let library = Library::new(state.path()).load().unwrap();
        assert!(library.0.iter().any(|kept| kept.status == Status::Refused { nights: 3 }));
        assert_eq!(night.status().await["served"]["champion"], 0);
    });
}

#[test]
fn what_a_clearly_harmful_night_brought_is_not_tried_again() {
    run(async {
        let state = folder();
        taught(&state, 20);
        let night = NightStage::new(&state, options()).await;
        night.confirmed("owner", questions(0..50), |_| {}).await;
        let report = night.learn().await;
        assert_eq!(report["outcome"]["rejected"]["rule"], "overall", "{report:#}");
        let report = night.learn().await;
        assert!(report["outcome"]["nothing"].is_object(), "{report:#}");
        let selection = &report["selection"];
        assert_eq!((&selection["new"], &selection["retried"]), (&json!(0), &json!(0)), "{selection}");
        assert_eq!(night.status().await["served"]["champion"], 0);
    });
}

#[test]
fn what_is_forgotten_is_not_learned_from_again() {
    run(async {
        let state = folder();
        taught(&state, 75);
        let night = NightStage::new(&state, options()).await;
        night.confirmed("owner", questions(0..50), |_| {}).await;
        let report = night.learn().await;
        let first = night.dataset(&report)[0].origin.turn.clone();
        let filter = TurnFilter { turn: Some(first.clone()), ..TurnFilter::default() };
        let filter = Forgetting { filter, ..Forgetting::default() };
        let gone = night.scheduler.send_within(ForgetPairs(filter), PATIENCE).await.unwrap().unwrap();
        assert_eq!(gone, 1, "one pair, whether it lies in the library, in the run's dataset or in both");
        assert!(night.dataset(&report).iter().all(|row| row.origin.turn != first));
        assert_eq!(Library::new(state.path()).load().unwrap().0.len(), 49);
    });
}

#[test]
fn a_stop_and_forgetting_end_the_trainer_and_a_failure_is_told() {
    run(async {
        let state = folder();
        taught(&state, 75);
        let night = NightStage::new(&state, options()).await;
        night.confirmed("owner", questions(0..50), |_| {}).await;
        std::fs::write(state.path().join("slow"), "").unwrap();
        let training = |status: &Value| status["run"]["progress"]["what"] == "training";
        let id = night.begin_learning().await;
        let halfway = |status: &Value| training(status) && status["run"]["progress"]["done"] == 1;
        assert_eq!(night.until(halfway).await["run"]["progress"]["total"], 2);
        night.tell(NightCommand::Pause).await.unwrap();
        assert!(night.report(&id).await["outcome"]["stopped"].is_object());
        night.tell(NightCommand::Resume).await.unwrap();
        // Whoever forgets a turn ends the training on it.
        let id = night.begin_learning().await;
        night.until(training).await;
        let mine = TurnFilter { principal: Some("owner".into()), ..TurnFilter::default() };
        let mine = Forgetting { filter: mine, ..Forgetting::default() };
        assert!(night.scheduler.send_within(ForgetPairs(mine), PATIENCE).await.unwrap().unwrap() >= 50);
        assert!(night.report(&id).await["outcome"]["stopped"].is_object());
        std::fs::remove_file(state.path().join("slow")).unwrap();
        std::fs::write(state.path().join("broken"), "").unwrap();
        let failed = night.learn().await;
        assert_eq!(failed["outcome"]["failed"]["phase"], "train", "{failed:#}");
        assert!(failed["outcome"]["failed"]["words"].as_str().unwrap().contains("the pairs are no good"));
        std::fs::remove_file(state.path().join("broken")).unwrap();
        assert!(night.learn().await["outcome"]["promoted"].is_object());
    });
}

/// Without gradients the engine that serves is asked, and answers everybody else all the while.
#[test]
fn a_night_without_gradients_trains_on_the_engine_that_serves() {
    run(async {
        let state = folder();
        taught(&state, 75);
        let changes = vec![NO_STAGES, ("method: gradient", "method: population"), ("steps_max: 0 ", "steps_max: 1 ")];
        let night = NightStage::new(&state, Options { changes, ..Options::default() }).await;
        night.confirmed("owner", questions(0..50), |_| {}).await;
        let report = night.learn().await;
        assert_eq!(report["outcome"]["promoted"]["generation"], 1, "{report:#}");
        let trained = &report["training"];
        assert_eq!(
            (&trained["method"], &trained["steps"], &trained["held_out"]),
            (&json!("population"), &json!(1), &json!(2))
        );
        assert!(trained["loss_after"].as_f64() < trained["loss_before"].as_f64(), "{trained}");
        assert_eq!(night.ask("a").await, 1);
    });
}

#[test]
fn a_stop_a_dead_engine_and_a_short_night_leave_what_was() {
    run(async {
        let state = folder();
        taught(&state, 75);
        // Thousands of steps, each of a few milliseconds.
        let many = [("epochs: 2", "epochs: 100"), ("step_tokens: 1536", "step_tokens: 64")];
        let changes = [vec![NO_STAGES, ("method: gradient", "method: population")], many.to_vec()].concat();
        let night = NightStage::new(&state, Options { changes, ..Options::default() }).await;
        night.confirmed("owner", questions(0..50), |_| {}).await;
        let training = |status: &Value| {
            let progress = &status["run"]["progress"];
            progress["what"] == "training" && progress["done"].as_u64() > Some(1)
        };
        let id = night.begin_learning().await;
        let planned = night.until(training).await["run"]["progress"]["total"].as_u64().unwrap();
        // A reply between the steps.
        assert_eq!(night.ask("a").await, 0);
        night.tell(NightCommand::Pause).await.unwrap();
        assert!(night.report(&id).await["outcome"]["stopped"].is_object());
        night.tell(NightCommand::Resume).await.unwrap();
        // The engine takes its candidate with it; what serves is what served before.
        let id = night.begin_learning().await;
        night.until(training).await;
        kill(night.stage.board.engine_pid().unwrap());
        let failed = night.report(&id).await;
        assert_eq!(failed["outcome"]["failed"]["phase"], "train", "{failed:#}");
        assert!(!night.path("candidates").join(&id).join("adapter.gguf").exists());
        night.until(|status| status["served"]["ready"] == true).await;
        assert_eq!((night.ask("a").await, night.status().await["served"]["champion"].clone()), (0, json!(0)));
        // When its time is up a training keeps what it has learned.
        let yaml = night.path("pipelines/night.yaml");
        let text = std::fs::read_to_string(&yaml).unwrap();
        assert!(text.contains("  minutes_max: 120\n  memory_gib_max"));
        let text = text.replace("  minutes_max: 120\n  memory_gib_max", "  minutes_max: 0.05\n  memory_gib_max");
        std::fs::write(&yaml, text).unwrap();
        night.scheduler.send_within(ScheduleChanged, PATIENCE).await.unwrap();
        let short = night.learn().await;
        let steps = short["training"]["steps"].as_u64().unwrap_or_default();
        assert!(short["outcome"]["promoted"].is_object() && steps > 0 && steps < planned, "{planned}: {short:#}");
    });
}

/// T3 for the phases before the gate: the disk fills up at each point, and the next night is as good as any.
#[test]
fn a_full_disk_at_any_point_of_learning_changes_nothing_that_serves() {
    for point in LEARNING {
        run(async move {
            let state = folder();
            taught(&state, 75);
            let failpoint = Failpoint::parse(&format!("{point}=full"));
            let night = NightStage::new(&state, Options { failpoint, ..options() }).await;
            night.confirmed("owner", questions(0..50), |_| {}).await;
            let report = night.learn().await;
            assert!(report["outcome"]["failed"].is_object(), "{point}: {report:#}");
            assert_eq!(night.ask("a").await, 0);
            drop(night);
            // The turn log went with the stage.
            let night = NightStage::new(&state, options()).await;
            night.confirmed("owner", questions(0..50), |_| {}).await;
            let report = night.learn().await;
            assert_eq!(report["outcome"]["promoted"]["generation"], 1, "{point}: {report:#}");
        });
    }
}
