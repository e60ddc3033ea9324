//! The command line against a running daemon and without one.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use serde_json::Value;

use crate::harness::{Daemon, chimere, model};

fn run(args: &[&str]) -> Output {
    chimere().args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn doctor_and_check_tell_what_is_good_and_what_is_not() {
    let state = tempfile::tempdir().unwrap();
    std::fs::set_permissions(state.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let state = state.path().to_str().unwrap();
    let model = model();
    let good = ["--state-dir", state, "--model", model.to_str().unwrap(), "--json"];
    let findings: Value = serde_json::from_str(&stdout(&run(&[&["doctor"], &good[..]].concat()))).unwrap();
    let whats: Vec<&str> = findings.as_array().unwrap().iter().map(|f| f["what"].as_str().unwrap()).collect();
    for what in ["processor", "memory", "config", "pipelines", "model", "state", "port"] {
        assert!(whats.contains(&what), "{whats:?}");
    }
    let state_finding = |args: &[&str]| {
        let said: Value = serde_json::from_slice(&run(args).stdout).unwrap();
        said.as_array().unwrap().iter().find(|f| f["what"] == "state").unwrap()["good"].clone()
    };
    // What is open to others, cannot be made or is no folder is told.
    let made = format!("{state}/made");
    assert_eq!(state_finding(&["doctor", "--state-dir", &format!("{made}/deeper"), "--json"]), true);
    std::fs::create_dir(&made).unwrap();
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(state_finding(&["doctor", "--state-dir", &made, "--json"]), false);
    std::fs::remove_dir(&made).unwrap();
    for nowhere in ["Cargo.toml", "Cargo.toml/none"] {
        assert_eq!(state_finding(&["doctor", "--state-dir", nowhere, "--json"]), false, "{nowhere}");
    }
    assert_eq!(std::fs::read_dir(state).unwrap().count(), 0, "whoever looks writes nothing");
    // A port of another program, a record of nights that cannot be read: with what to do.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    drop(std::thread::spawn(move || taken.incoming().for_each(drop)));
    std::fs::write(format!("{state}/night.json"), "{").unwrap();
    std::fs::write(format!("{state}/daemon.lock"), "1").unwrap();
    let said = run(&["doctor", "--state-dir", state, "--listen", &listen, "--json"]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    for (what, good, words) in
        [("port", false, "--listen"), ("nights", false, "move the file away"), ("daemon", true, "none runs")]
    {
        let found = said.as_array().unwrap().iter().find(|f| f["what"] == what).unwrap();
        assert!(found["good"] == good && found["message"].as_str().unwrap().contains(words), "{found}");
    }
    // Held by a process whose number nobody has here, as one in another container.
    std::fs::write(format!("{state}/daemon.lock"), "4194305").unwrap();
    let lock = std::fs::File::open(format!("{state}/daemon.lock")).unwrap();
    lock.lock().unwrap();
    let said = run(&["doctor", "--state-dir", state, "--listen", &listen, "--json"]);
    let said: Value = serde_json::from_slice(&said.stdout).unwrap();
    let found = said.as_array().unwrap().iter().find(|f| f["what"] == "daemon").unwrap();
    let words = found["message"].as_str().unwrap();
    assert!(found["good"] == false && words.contains("another container") && !words.contains("is gone:"), "{words}");
    let bad = run(&["check", "--state-dir", state, "--model", "Cargo.toml"]);
    assert!(!bad.status.success());
    let said = String::from_utf8_lossy(&bad.stdout);
    assert!(said.lines().any(|line| line.starts_with("BAD") && line.contains("Cargo.toml")), "{said}");
}

/// The shipped embedding model and judge are found wherever the served model lies.
#[test]
fn a_model_that_lies_elsewhere_has_the_shipped_embedder_and_judge() {
    let dir = tempfile::tempdir().unwrap();
    let (own, state) = (dir.path().join("own.gguf"), dir.path().join("state"));
    std::fs::copy(model(), &own).unwrap();
    let mut check = chimere();
    check.env("CHIMERE_SCORER_ENABLED", "true").env("CHIMERE_MODEL_PATH", &own).current_dir(dir.path());
    let said = check.args(["check", "--json", "--state-dir"]).arg(&state).output().unwrap();
    let said: Value = serde_json::from_str(&stdout(&said)).unwrap();
    let findings = said["findings"].as_array().or(said.as_array()).unwrap();
    for (what, file) in [("embedder", "nano-embed.gguf"), ("judge", "nano-prm.gguf")] {
        let found = findings.iter().find(|finding| finding["what"] == what).unwrap();
        assert!(found["good"] == true && found["message"].as_str().unwrap().contains(file), "{found}");
    }
}

/// A look makes nothing, and takes nothing away from a night that builds a generation.
#[test]
fn commands_that_look_leave_the_state_folder_as_it_is() {
    let state = tempfile::tempdir().unwrap();
    let half = state.path().join("generations/.new-7");
    std::fs::create_dir_all(&half).unwrap();
    let folder = state.path().to_str().unwrap();
    for command in ["check", "doctor", "engram list", "engram show kine", "keys list"] {
        let args: Vec<&str> = command.split(' ').chain(["--state-dir", folder]).collect();
        run(&args);
        let names: Vec<_> = std::fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names == ["generations"] && half.is_dir(), "{command}: {names:?}");
    }
}

#[test]
fn help_completions_and_wrong_arguments() {
    let help = stdout(&run(&["help"]));
    let library = cfg!(feature = "llama").then_some("quantize");
    let always = [
        "serve", "engine", "chat", "check", "bench", "eval", "doctor", "keys", "memory", "adapter", "engram", "night",
        "rollback", "train",
    ];
    for command in always.into_iter().chain(library) {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command} is missing:\n{help}");
    }
    assert!(stdout(&run(&["completions", "bash"])).contains("chimere"));
    let wrong = run(&["serve", "--port", "80"]);
    assert_eq!(wrong.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("--port"));
}

#[test]
fn adapters_are_made_shown_used_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (model, adapter, other, text) = (model(), path("a.gguf"), path("b.gguf"), path("text"));
    let model = model.to_str().unwrap();
    let random = ["adapter", "random", "--base", model, "--rank", "4", "--seed", "3"];
    stdout(&run(&[&random[..], &["--scale", "0.3", "--targets", "attn_q,ssm_out,ffn_up_shexp", &adapter]].concat()));
    let show = |file: &str| run(&["adapter", "show", "--base", model, "--json", file]);
    let shown: Value = serde_json::from_str(&stdout(&show(&adapter))).unwrap();
    assert_eq!(shown["facts"]["rank"], 4);
    assert!(shown["targets"]["ffn_up_shexp"].as_u64().unwrap() > shown["targets"]["attn_q"].as_u64().unwrap());

    std::fs::write(&text, "What is 17 + 25? The answer is 42, and a second line follows.").unwrap();
    let perplexity = |more: &[&str]| {
        let score = run(&[&["eval", "perplexity", "--json", "--model", model, "--text", &text], more].concat());
        serde_json::from_str::<Value>(&stdout(&score)).unwrap()["perplexity"].as_f64().unwrap()
    };
    let (plain, under) = (perplexity(&[]), perplexity(&["--adapter", &adapter]));
    assert!((plain / under - 1.0).abs() > 0.001, "{plain} {under}");
    stdout(&run(&[&random[..], &["--scale", "0", &other]].concat()));
    assert_eq!(perplexity(&["--adapter", &other]), plain, "nothing is added");

    let mut bytes = std::fs::read(&adapter).unwrap();
    *bytes.last_mut().unwrap() ^= 64;
    std::fs::write(&other, bytes).unwrap();
    let refused = show(&other);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("changed or damaged") || said.contains("is inf") || said.contains("is NaN"), "{said}");
    let unknown = run(&["adapter", "random", "--base", model, "--targets", "ffn_gate_inp", &other]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("no matrix that an adapter may change"));
}

/// `--out NAME`, without a folder, is a file in the one that one stands in.
#[test]
fn a_table_is_written_under_a_bare_name() {
    let dir = tempfile::tempdir().unwrap();
    let table = model().with_file_name("engram").join("kine.engr.gz");
    let mut merge = chimere();
    merge.current_dir(dir.path()).args(["engram", "merge", table.to_str().unwrap(), "--state-dir", "state"]);
    stdout(&merge.args(["--name", "mine", "--out", "mine.engr"]).output().unwrap());
    assert!(dir.path().join("mine.engr").is_file());
    let packed = run(&["engram", "merge", table.to_str().unwrap(), "--name", "mine", "--out", "mine.engr.gz"]);
    let said = String::from_utf8_lossy(&packed.stderr).into_owned();
    assert!(!packed.status.success() && said.contains("let --out end with `.engr`"), "{said}");
    let show = run(&["engram", "show", "--json", dir.path().join("mine.engr").to_str().unwrap()]);
    assert_eq!(serde_json::from_str::<Value>(&stdout(&show)).unwrap()["name"], "mine");
    // In words, of the configured model where nobody names another.
    let words = stdout(&run(&["engram", "show", "kine", "--contexts", "1"]));
    assert!(words.contains(r#"{"context":[" the"," gall"]"#), "{words}");
}

#[tokio::test]
async fn chat_answers_and_memory_lists_exports_and_forgets() {
    let daemon = Daemon::start(&[]).await;
    let ask = ["chat", "--url", &daemon.url, "What is 17 + 25?"];
    assert!(stdout(&run(&ask)).contains("42"));
    let state = daemon.state.path().to_str().unwrap();
    let listen = daemon.url.trim_start_matches("http://");
    let place = ["--state-dir", state, "--listen", listen];
    let exported = stdout(&run(&[&["memory"], &place[..], &["export"]].concat()));
    let turn: Value = serde_json::from_str(exported.lines().next().unwrap()).unwrap();
    let id = turn["id"].as_str().unwrap();
    assert!(stdout(&run(&[&["memory"], &place[..], &["list"]].concat())).contains(id));
    // What was said is for nobody else on this machine, also where a file of that name lay open.
    let file = daemon.state.path().join("export.jsonl");
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    stdout(&run(&[&["memory"], &place[..], &["export", "--out", file.to_str().unwrap()]].concat()));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), exported);
    // A daemon that is named is asked, whatever the state folder of this machine holds.
    let elsewhere = tempfile::tempdir().unwrap();
    let elsewhere = elsewhere.path().to_str().unwrap();
    let named = run(&["memory", "list", "--json", "--url", &daemon.url, "--state-dir", elsewhere]);
    assert!(stdout(&named).contains(id));
    // The newest is what somebody looks for, and that there are others is said.
    assert!(!String::from_utf8_lossy(&named.stderr).contains("older"));
    assert!(stdout(&run(&ask)).contains("42"));
    let newest = run(&[&["memory"], &place[..], &["list", "--limit", "1"]].concat());
    let said = String::from_utf8_lossy(&newest.stderr).into_owned();
    assert!(said.contains("older turns than this one") && said.contains("--limit"), "{said}");
    let both = stdout(&run(&[&["memory"], &place[..], &["list"]].concat()));
    let lines: Vec<&str> = both.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with(id) && stdout(&newest).trim() == lines[1], "{both}");
    for wrong in [&["export", "--turn", "zz"][..], &["list", "--turn", "zz"], &["forget", "--turn", "zz"]] {
        let refused = run(&[&["memory"], &place[..], wrong].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(65) && said.contains("no turn `zz`"), "{wrong:?}: {said}");
    }
    let nowhere = run(&[&["memory"], &place[..], &["export", "--out", "/nonexistent/x"]].concat());
    assert_eq!(nowhere.status.code(), Some(73), "{nowhere:?}");
    stdout(&run(&[&["memory"], &place[..], &["forget", "--turn", id]].concat()));
    stdout(&run(&[&["memory"], &place[..], &["forget", "--all", "--yes"]].concat()));
    assert_eq!(stdout(&run(&[&["memory"], &place[..], &["export"]].concat())), "");
}

/// What cannot be measured is refused, not ignored.
#[test]
fn bench_measures_forms_and_finds_documents_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("forms.jsonl");
    let schema = r#"{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}"#;
    let bench = |documents: &str| {
        std::fs::write(&file, format!("{{\"schema\": {schema}, \"documents\": {documents}}}\n")).unwrap();
        let model = model().display().to_string();
        run(&["bench", "--forms", &file.display().to_string(), "--model", &model, "--json"])
    };
    let output = bench(r#"[{"a": 1}, {"a": -77}]"#);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["forms"], &report["documents"]), (&1.into(), &2.into()), "{report}");
    for times in ["mask_us", "compile_us", "examined_us", "kept_us"] {
        let of = |what: &str| report[times][what].as_f64().unwrap();
        assert!(of("p50") > 0.0 && of("p50") <= of("p99") && of("p99") <= of("max"), "{report}");
    }
    for (documents, why) in [
        (r#"[{"a": "x"}]"#, "does not allow"),
        (r#"[{"a": 1, "b": 2}]"#, "does not allow"),
        ("[]", "no form with a document"),
    ] {
        let output = bench(documents);
        assert!(!output.status.success(), "{documents}");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn bench_refuses_what_its_measurement_of_streams_does_not_read() {
    for flag in [["--backend", "cpu"], ["--prompt", "64"], ["--depth", "64"], ["--context", "512"], ["--adapter", "x"]]
    {
        let output = run(&[&["bench", "--http"], &flag[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(64) && said.contains(flag[0]), "{flag:?}: {said}");
    }
}

/// Of many changes of the keys at once none is lost.
#[test]
fn keys_are_added_and_revoked_at_the_same_time() {
    let state = tempfile::tempdir().unwrap();
    let place = ["--state-dir", state.path().to_str().unwrap()];
    let keys = |args: &[&str]| stdout(&run(&[&["keys"], &place[..], args].concat()));
    (0..6).for_each(|n| drop(keys(&["add", &format!("old-{n}")])));
    std::thread::scope(|scope| {
        for n in 0..6 {
            let keys = &keys;
            scope.spawn(move || keys(&["add", &format!("new-{n}")]));
            scope.spawn(move || keys(&["revoke", &format!("old-{n}")]));
        }
    });
    let list: serde_json::Value = serde_json::from_str(&keys(&["list", "--json"])).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!((list.len(), list.iter().filter(|key| key["revoked"].is_string()).count()), (12, 6));
}

/// Every refusal is one line that names what was wrong and what to do.
#[test]
fn what_was_wrong_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let schedule = file("ours.yaml", include_str!("../../pipelines/night.yaml"));
    let night = file("night.yaml", "version: 1");
    let (empty, none) = (file("empty.txt", ""), folder.path().join("none"));
    let (model, none) = (model().to_str().unwrap().to_owned(), none.to_str().unwrap());
    let out = folder.path().join("out.gguf").to_str().unwrap().to_owned();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let serve =
        |state| ["serve", "--model", &model, "--state-dir", state, "--listen", &listen].map(str::to_owned).to_vec();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (args, code, said) in [
        (serve(&empty), 74, vec![empty.as_str(), "it is a file, not a folder", "--state-dir"]),
        (serve("/proc/nowhere"), 74, vec!["/proc/nowhere", "--state-dir"]),
        (serve(none), 69, vec![listen.as_str(), "--listen"]),
        (words("serve --model /proc"), 66, vec!["there is no file /proc/*.gguf", "--model"]),
        (words("memory list --state-dir /proc/nowhere"), 66, vec!["/proc/nowhere", "--state-dir"]),
        (words("memory list --since yesterday"), 64, vec!["2026-01-31"]),
        (words("night run"), 64, vec!["`chimere night run --now`", "`chimere night status`"]),
        (words("night run --now --candidate /nowhere"), 66, vec!["--candidate /nowhere: No such file"]),
        (words("engram show"), 64, vec!["name a table, or its file: there are ", "kine"]),
        (
            words(&format!("keys renew ann --scope admin --state-dir {none}")),
            64,
            vec!["`chimere keys add NAME --scope admin`"],
        ),
        (words(&format!("pipeline check {schedule}")), 65, vec!["is no route, but a schedule of nights", "night.yaml"]),
        (words(&format!("pipeline check {night}")), 65, vec!["night.yaml", "missing field `jobs`"]),
        (words("night status --url http://[::1"), 64, vec!["http://[::1 is no address", "HOST:PORT"]),
        (words(&format!("eval perplexity --model {model} --text {empty}")), 65, vec!["empty.txt has fewer than two"]),
        (words(&format!("eval logits --model {model} --tokens {empty} --out {out}")), 65, vec!["no list of ids"]),
        (
            words(&format!("train --model {model} --pairs {empty} --out {out}")),
            65,
            vec!["0 usable pairs", "at least 8"],
        ),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = run(&args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
        let last = told.lines().rfind(|line| line.contains("chimere: ") || line.contains("error: "));
        let last = last.unwrap_or_else(|| panic!("{args:?}: {told}"));
        assert!(said.iter().all(|part| last.contains(part)), "{args:?}: {last}");
    }
    assert!(!std::path::Path::new(&out).exists(), "nothing is written on the way to a refusal");
}

/// A reader that leaves early (`| head`) is no reason to complain.
#[tokio::test]
async fn output_ends_quietly_when_its_reader_leaves_and_errors_have_their_codes() {
    let daemon = Daemon::start(&[]).await;
    let (pairs, out) = (daemon.state.path().join("pairs.jsonl"), daemon.state.path().join("a.gguf"));
    std::fs::write(&pairs, crate::train::pairs(30)).unwrap();
    let train = format!(
        "train --json --step-tokens 300 --model {} --pairs {} --out {}",
        model().display(),
        pairs.display(),
        out.display()
    );
    let chat = format!("chat --json --url {} hello", daemon.url);
    for command in ["completions bash", "check", &chat, "bench --help", &train] {
        let line = format!("{} {command} | true; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_chimere"));
        let output =
            std::process::Command::new("bash").args(["-c", &line]).env("XDG_CONFIG_HOME", "/nonexistent").output();
        let output = output.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{command}: {output:?}");
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panic"), "{command}: {output:?}");
    }
    let state = daemon.state.path().to_str().unwrap();
    for (args, code) in [
        (&["chat", "--url", "http://127.0.0.1:9", "hello"][..], 69),
        (&["eval", "perplexity", "--text", "/nowhere"], 66),
        (&["eval", "golden", "--model", "/nowhere.gguf"], 66),
        (&["bench", "--model", "Cargo.toml"], 65),
        (&["serve", "--config", "/nowhere.toml"], 78),
        (&["serve", "--state-dir", state], 75),
        (&["memory", "forget", "--url", &daemon.url], 64),
        (&["keys", "--state-dir", state, "revoke", "nobody"], 65),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.starts_with("chimere: ") && said.lines().count() == 1, "{args:?}: {said}");
    }
}

#[tokio::test]
async fn top_shows_what_the_daemon_is_doing() {
    let daemon = Daemon::start(&[]).await;
    let url = daemon.url.clone();
    // One look while a reply is under way, and one in words.
    let watching = tokio::task::spawn_blocking(move || {
        let json = stdout(&run(&["top", "--url", &url, "--once", "--interval", "12", "--json"]));
        (
            serde_json::from_str::<Value>(&json).unwrap(),
            stdout(&run(&["top", "--url", &url, "--once", "--interval", "0.1"])),
        )
    });
    while !watching.is_finished() {
        daemon.chat("What is 17 + 25?").await;
    }
    let (seen, text) = watching.await.unwrap();
    assert!(seen["tokens_per_s"]["generated"].as_f64().unwrap() > 0.0, "{seen}");
    assert!(seen["first_token"]["count"].as_u64().unwrap() > 0 && seen["first_token"]["p99_s"].is_number(), "{seen}");
    assert!(seen["next_token"]["count"].as_u64().unwrap() > 0, "{seen}");
    assert_eq!((&seen["engine"]["state"], &seen["model"]), (&"ready".into(), &"nano".into()));
    for line in ["engine       ready", "first token", "actors       all running"] {
        assert!(text.contains(line), "{text}");
    }
    let nowhere = run(&["top", "--url", "127.0.0.1:9", "--once"]);
    assert_eq!(nowhere.status.code(), Some(69), "{}", String::from_utf8_lossy(&nowhere.stderr));
}

/// `make run` says why a daemon that ended did so, with the end of its log.
#[test]
fn a_daemon_that_ends_before_it_is_ready_is_told_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("daemon");
    for (does, said) in [
        ("echo the table is torn; exit 3", &["the table is torn", "before it was ready: exit status 3"][..]),
        ("echo the last words; kill -KILL $$", &["the last words", "killed by SIGKILL"]),
        ("echo Address already in use; exit 1", &["another program listens", "LISTEN=HOST:PORT"]),
    ] {
        std::fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/run.sh");
        let run = std::process::Command::new(script).arg(&program).arg("127.0.0.1:9").output().unwrap();
        let told = String::from_utf8_lossy(&run.stderr);
        assert!(!run.status.success() && said.iter().all(|words| told.contains(words)), "{told}");
    }
}
