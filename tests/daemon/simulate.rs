//! Two short nights of a made-up week, whole: the command, its daemon, its users, its exams.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use chimere::eval::golden::read;
use serde_json::Value;

use crate::harness::{chimere, model};

/// Most pairs of one guest that a night may learn from.
const GUEST_PAIRS_MAX: usize = 20;
/// A few requests and two small exams, on a busy machine.
const SHORT: Duration = Duration::from_secs(180);
const NOW: Duration = Duration::ZERO;
/// What two nights may take on two cores, from the command to its end.
const WHOLE: Duration = Duration::from_secs(8 * 60);

/// What the week exam asks.
fn exam() -> BTreeSet<String> {
    let items = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("nano/golden/week.jsonl.gz")).unwrap();
    items.into_iter().map(|item| item.messages.last().unwrap().content.clone()).collect()
}

fn last_message(item: &Value) -> String {
    item["messages"].as_array().unwrap().last().unwrap()["content"].as_str().unwrap().to_owned()
}

/// The pairs of every night: (principal who vouches, question, whether an earlier night had it).
fn nights_pairs(state: &Path) -> Vec<Vec<(String, String, bool)>> {
    let read = |run: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(run.unwrap().path().join("pairs.jsonl")).ok()?;
        let pair = |line: &str| {
            let row: Value = serde_json::from_str(line).unwrap();
            let origin = &row["origin"];
            (origin["author"].as_str().unwrap().to_owned(), last_message(&row), origin["replayed"] == true)
        };
        Some(text.lines().map(pair).collect())
    };
    fs::read_dir(state.join("runs")).unwrap().filter_map(read).collect()
}

/// A simulation under test, its output in files; it is ended with the test.
struct Simulation {
    child: Child,
    folder: PathBuf,
}

impl Simulation {
    fn start(folder: &Path, args: &[&str]) -> Simulation {
        let file = |name: &str| fs::File::create(folder.join(name)).unwrap();
        let child = chimere()
            .arg("simulate")
            .args(args)
            .args(["--backend", "cpu"])
            .arg("--model")
            .arg(model())
            .arg("--state-dir")
            .arg(folder.join("house"))
            .arg("--json")
            .arg(folder.join("week.json"))
            .stdin(Stdio::null())
            .stdout(file("said"))
            .stderr(file("noted"))
            .spawn()
            .unwrap();
        Simulation { child, folder: folder.to_owned() }
    }

    /// Waits for its end; what it printed, or everything that it and its daemon said.
    fn end(&mut self, within: Duration) -> Result<String, String> {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if began.elapsed() > within => break None,
                None => sleep(Duration::from_millis(100)),
            }
        };
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        match status {
            Some(status) if status.success() => Ok(read("said")),
            status => {
                let how = status.map_or_else(|| format!("not through within {within:?}"), |status| status.to_string());
                Err(format!("{how}\n{}{}{}", read("said"), read("noted"), read("house/daemon.log")))
            }
        }
    }

    /// Waits until the week has a whole night; what is kept of it.
    fn a_night(&mut self) -> Value {
        let began = Instant::now();
        loop {
            let kept = fs::read(self.folder.join("house/simulation.json")).unwrap_or_default();
            let kept: Value = serde_json::from_slice(&kept).unwrap_or_default();
            if kept["nights"].get(0).is_some() {
                return kept["nights"][0].clone();
            }
            assert!(self.child.try_wait().unwrap().is_none() && began.elapsed() < SHORT, "{:?}", self.end(NOW));
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nobody holds the daemon's state folder.
    fn daemon_ends(&self) {
        let began = Instant::now();
        let lock = fs::File::open(self.folder.join("house/state/daemon.lock")).unwrap();
        while lock.try_lock().is_err() {
            assert!(began.elapsed() < SHORT, "the daemon outlives its simulation");
            sleep(Duration::from_millis(50));
        }
    }

    fn week(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.join("week.json")).unwrap()).unwrap()
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        // By its leave, so that its daemon ends too.
        if self.child.try_wait().unwrap().is_none() {
            signal(self.child.id(), "TERM");
            let _ = self.child.wait();
        }
    }
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A week in which nothing is learned: what is asked here is how it ends.
fn short(nights: &str) -> Vec<&str> {
    let sizes = ["--requests", "4", "--week-items", "7", "--flood-night", "0", "--poisoned-night", "0"];
    [&["--arm", "none", "--nights", nights][..], &sizes].concat()
}

#[test]
fn a_week_that_was_killed_goes_on_after_its_last_whole_night() {
    let folder = tempfile::tempdir().unwrap();
    let mut killed = Simulation::start(folder.path(), &short("2"));
    let night = killed.a_night();
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    killed.daemon_ends();
    let refused = Simulation::start(folder.path(), &short("2")).end(SHORT).unwrap_err();
    assert!(refused.contains("go on with --resume"), "{refused}");
    let mut other = Simulation::start(folder.path(), &[&short("3")[..], &["--resume"]].concat());
    let refused = other.end(SHORT).unwrap_err();
    assert!(refused.contains("other settings"), "{refused}");
    let mut resumed = Simulation::start(folder.path(), &[&short("2")[..], &["--resume"]].concat());
    resumed.end(SHORT).unwrap_or_else(|why| panic!("{why}"));
    let week = resumed.week();
    assert_eq!((&week["nights"][0], week["nights"].as_array().unwrap().len()), (&night, 2));
    let device = week["device"].as_str().unwrap();
    assert!(device.starts_with("cpu, ") && !device.contains("then"), "{device}");
    assert!(week["cut"].is_null() && week["compared"]["before"]["n"] == 7, "{week}");
}

#[test]
fn an_interrupted_week_tells_what_it_has_and_leaves_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let mut simulation = Simulation::start(folder.path(), &short("365"));
    let night = simulation.a_night();
    signal(simulation.child.id(), "INT");
    let said = simulation.end(SHORT).unwrap_err();
    assert!(said.contains("Cut off after ") && said.contains("interrupted: --resume goes on with it"), "{said}");
    simulation.daemon_ends();
    let week = simulation.week();
    assert!(week["nights"][0] == night && week["after"].is_null(), "{week}");
}

#[test]
fn two_nights_run_to_a_judgement_while_somebody_is_always_answered() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--nights", "2", "--requests", "42", "--seed", "3", "--first-day", "2026-02-03", "--arm", "full"];
    let sizes = ["--week-items", "21", "--gate-items", "28", "--gate-margin", "0.2"];
    let poison = ["--flood-night", "1", "--flood", "30", "--poisoned-night", "2"];
    let mut simulation = Simulation::start(folder.path(), &[&args[..], &sizes, &poison].concat());
    let began = Instant::now();
    let said = simulation.end(WHOLE).unwrap_or_else(|why| panic!("{why}"));
    println!("{said}\nTwo nights took {} s, and may take {}.", began.elapsed().as_secs(), WHOLE.as_secs());
    let week = simulation.week();
    let nights = week["nights"].as_array().unwrap();
    assert_eq!(nights.len(), 2);
    for night in nights {
        let requests = &night["requests"];
        assert_eq!((&requests["failed"], &requests["turns"]), (&0.into(), &requests["sent"]), "{requests}");
        assert_eq!(requests["judged"], requests["sent"], "every reply has its verdict: {requests}");
        let train = night["jobs"].as_array().unwrap().iter().find(|job| job["job"] == "train").unwrap();
        let outcome = &train["report"]["outcome"];
        assert!(outcome["promoted"].is_object() || outcome["rejected"].is_object(), "{outcome}");
    }
    assert_eq!((&nights[0]["requests"]["flood"], &nights[1]["requests"]["flood"]), (&30.into(), &0.into()));
    assert!(nights[1]["requests"]["lies"].as_u64() > Some(0) && said.contains("Poisoned night 2"), "{said}");
    // Nobody waited in vain, and the guest's flood was held to its share.
    assert_eq!(week["probes"]["failed"], 0, "{}", week["probes"]);
    assert!(week["probes"]["sent"].as_u64() > Some(10));
    let pairs = nights_pairs(&folder.path().join("house/state"));
    assert_eq!(pairs.len(), 2);
    for night in &pairs {
        let guests = night.iter().filter(|(author, _, replayed)| author == "guest" && !replayed).count();
        assert!(guests <= GUEST_PAIRS_MAX, "{guests} pairs of the guest in one night");
    }
    // The exam was asked before and after, and no night has seen it.
    let exam = exam();
    for (author, asked, _) in pairs.iter().flatten() {
        assert!(author != "examiner" && author != "prober" && !exam.contains(asked), "{author}: {asked}");
    }
    for opened in ["before", "after"] {
        assert_eq!((week[opened]["right"].as_array().unwrap().len(), &week[opened]["failed"]), (21, &0.into()));
    }
    assert_eq!(week["compared"]["before"]["n"], 21);
}
