//! An update by `install.sh` under load. Program, weights, kernels and pipelines are replaced under a daemon that runs.
//! Then its engines are killed, and then it is restarted. No reply breaks but those of the killed engine; swap, judge and
//! night work each time. The old daemon stays on its own version until it is restarted.

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::harness::{Daemon, free_port, kill, model};
use crate::model::{changed, until};
use crate::night;

/// Bytes behind a program that say of which release it is.
const SIGN_BYTES: usize = 16;

fn sign(version: &str) -> String {
    format!("{version:>SIGN_BYTES$}")
}

/// A release as it lies unpacked; its weights are called `name`. Its program, kernels and pipelines say `version`.
fn release(folder: &Path, name: &str, version: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let share = folder.join("share/chimere");
    for part in
        ["bin", "share/doc/chimere", "share/chimere/nano/golden", "share/chimere/pipelines", "share/chimere/systemd"]
    {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    let program = folder.join("bin/chimere");
    fs::copy(env!("CARGO_BIN_EXE_chimere"), &program).unwrap();
    let mut program = fs::OpenOptions::new().append(true).open(program).unwrap();
    program.write_all(sign(version).as_bytes()).unwrap();
    fs::create_dir_all(share.join("kernels")).unwrap();
    fs::write(share.join("kernels/release"), version).unwrap();
    fs::copy(root.join("deploy/install.sh"), folder.join("install.sh")).unwrap();
    fs::write(folder.join("share/doc/chimere/LICENSE"), "").unwrap();
    for file in ["nano-prm.gguf", "nano-embed.gguf"] {
        fs::copy(root.join("nano").join(file), share.join("nano").join(file)).unwrap();
    }
    changed(&share.join("nano/nano.gguf"), "general.name", "nano", name);
    for entry in fs::read_dir(root.join("pipelines")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Examples of the routes.
            let copied = Command::new("cp").arg("-r").arg(&path).arg(share.join("pipelines")).status().unwrap();
            assert!(copied.success());
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().map(|line| match line.starts_with("version:") && path.ends_with("default.yaml") {
            true => format!("version: {version}\n"),
            false => format!("{line}\n"),
        });
        fs::write(share.join("pipelines").join(path.file_name().unwrap()), lines.collect::<String>()).unwrap();
    }
    for file in ["chimere.service", "chimere.sysusers", "config.toml"] {
        fs::copy(root.join("systemd").join(file), share.join("systemd").join(file)).unwrap();
    }
    folder.to_owned()
}

fn install(release: &Path, root: &Path) {
    let done = Command::new("bash").arg(release.join("install.sh")).arg("--destdir").arg(root).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The installed daemon, started by the name that the unit starts it by.
fn start(root: &Path, state: &Arc<tempfile::TempDir>, port: u16) -> Daemon {
    let listen = format!("127.0.0.1:{port}");
    let mut command = Command::new(root.join("usr/local/bin/chimere"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CHIMERE_")) {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").current_dir("/");
    command.env("CHIMERE_REPLIES_START_TIMEOUT_MS", "300000").env("CHIMERE_DAEMON_DRAIN_TIMEOUT_MS", "300000");
    command.args(["serve", "--listen", &listen, "--state-dir"]).arg(state.path());
    command.arg("--config").arg(state.path().join("night-test.toml"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let (lines, sink) = (BufReader::new(child.stderr.take().unwrap()), Arc::clone(&log));
    std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(|line| sink.lock().unwrap().push(line)));
    Daemon { child, url: format!("http://{listen}"), state: state.clone(), log }
}

/// What the clients saw.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    /// The daemon is being restarted: it may be away, or answer that it stops.
    restart: AtomicBool,
    whole: AtomicUsize,
    broken: AtomicUsize,
    refused: AtomicUsize,
}

/// Streams one reply after another. One that breaks must say so, and the next must be answered. At a restart a request may
/// be refused, but what was begun comes to its end.
async fn client(url: String, n: usize, load: Arc<Load>) {
    let body = json!({
        "messages": [{ "role": "user", "content": format!("What is {n} + 5?") }], "stream": true, "max_tokens": 24,
    });
    let client = reqwest::Client::new();
    while !load.stop.load(Ordering::SeqCst) {
        let restart = load.restart.load(Ordering::SeqCst);
        let answer = client.post(format!("{url}/v1/chat/completions")).json(&body).send().await;
        let restart = restart || load.restart.load(Ordering::SeqCst);
        let answer = match answer {
            Ok(answer) if !restart || answer.status().as_u16() != 503 => answer,
            Err(error) if !restart => panic!("{error}"),
            _ => {
                load.refused.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        let whole = status == 200 && text.contains("[DONE]");
        assert!(whole || text.contains("the engine stopped in the middle"), "{status} {text}");
        (if whole { &load.whole } else { &load.broken }).fetch_add(1, Ordering::SeqCst);
    }
}

async fn served(daemon: &Daemon) -> String {
    daemon.get("/v1/models").await.1["data"][0]["id"].as_str().unwrap().to_owned()
}

async fn pipeline(daemon: &Daemon) -> String {
    daemon.chat("What is 1 + 2?").await["x_chimere"]["pipeline_version"].as_str().unwrap().to_owned()
}

/// Verdicts that were written since the daemon started.
async fn verdicts(daemon: &Daemon) -> u64 {
    daemon.get("/v1/status").await.1["actors"]["scorer"]["scored"].as_u64().unwrap()
}

/// Swap and back, a verdict, a night that promotes. The verdict is that of any turn: under load one turn's own comes
/// when all before it have theirs, and a judge that leaves the processor to replies falls behind them.
async fn everything_works(daemon: &Daemon, other: &Path, seed: u64) {
    let own = served(daemon).await;
    for (body, name) in [(json!({ "path": other }), "mini"), (json!({ "before": true }), own.as_str())] {
        let (status, answer) = daemon.post("/v1/admin/model", &body).await;
        assert_eq!((status, answer["model"].as_str()), (200, Some(name)), "{answer}");
    }
    let before = verdicts(daemon).await;
    daemon.chat("What is 17 + 25?").await;
    until("a verdict", async || verdicts(daemon).await > before).await;
    let run = night::begin_seeded(daemon, &daemon.state.path().join("candidate.gguf"), seed).await;
    let ended = night::until(daemon, |status| status["run"].is_null() && status["last"]["id"] == run.as_str()).await;
    assert!(ended["last"]["outcome"]["promoted"].is_object(), "{ended:#}");
}

fn program_of(pid: u32) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/exe")).unwrap()
}

/// Of which release a process is: by its program, and by the kernels that an engine was given.
fn release_of(pid: u32) -> [String; 2] {
    let mut program = fs::File::open(format!("/proc/{pid}/exe")).unwrap();
    program.seek(SeekFrom::End(-(SIGN_BYTES as i64))).unwrap();
    let mut sign = String::new();
    program.read_to_string(&mut sign).unwrap();
    let arguments = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    let mut arguments = arguments.split('\0').skip_while(|argument| *argument != "--shipped-kernels");
    let kernels = Path::new(arguments.nth(1).expect("an engine is told of the kernels")).join("release");
    [sign.trim().to_owned(), fs::read_to_string(kernels).unwrap()]
}

/// The engine and the judge's are of this release.
async fn engines_are_of(daemon: &Daemon, version: &str) {
    until("a judge", async || !daemon.judges().is_empty()).await;
    for pid in [daemon.engines(), daemon.judges()].concat() {
        assert_eq!(release_of(pid), [version, version], "process {pid}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "an update under load, three nights and six swaps: minutes"]
async fn an_update_under_load_breaks_no_reply_and_each_daemon_keeps_to_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let old = release(&folder.path().join("one"), "nano", "1");
    let new = release(&folder.path().join("two"), "next", "2");
    let other = changed(&folder.path().join("mini.gguf"), "general.name", "nano", "mini");
    install(&old, &root);
    let state = night::folder();
    // The judge's adapter names its weights by their hash, and the new weights have another name in their header.
    let config = state.path().join("night-test.toml");
    let judge = format!("[scorer]\nmodel = {:?}\n", model());
    fs::write(&config, fs::read_to_string(&config).unwrap() + &judge).unwrap();
    let port = free_port();
    let mut daemon = start(&root, &state, port);
    daemon.ready().await;
    assert_eq!((served(&daemon).await, pipeline(&daemon).await), ("nano".to_owned(), "1".to_owned()));

    let load = Arc::new(Load::default());
    let clients: Vec<_> = (0..4).map(|n| tokio::spawn(client(daemon.url.clone(), n, load.clone()))).collect();
    until("a reply", async || load.whole.load(Ordering::SeqCst) > 0).await;
    // Under the running daemon.
    install(&new, &root);
    everything_works(&daemon, &other, 1).await;
    engines_are_of(&daemon, "1").await;
    assert_eq!(load.broken.load(Ordering::SeqCst), 0, "no reply breaks by an update");
    assert_eq!(pipeline(&daemon).await, "1");
    // With its engines killed: what it starts is its own version.
    let running = program_of(daemon.pid());
    for pid in [daemon.engines(), daemon.judges()].concat() {
        kill(pid);
    }
    until("another engine", async || daemon.engines().len() == 1 && daemon.get("/health").await.0 == 200).await;
    assert_eq!(program_of(daemon.engines()[0]), running);
    everything_works(&daemon, &other, 2).await;
    engines_are_of(&daemon, "1").await;
    assert_eq!((served(&daemon).await, pipeline(&daemon).await), ("nano".to_owned(), "1".to_owned()));
    let broken = load.broken.load(Ordering::SeqCst);
    assert!(broken <= 4, "{broken} replies broke, and four were under way at the kill");

    // After a restart, which the clients live through.
    load.restart.store(true, Ordering::SeqCst);
    Command::new("kill").arg(daemon.pid().to_string()).status().unwrap();
    assert!(daemon.child.wait().unwrap().success());
    let daemon = start(&root, &state, port);
    daemon.ready().await;
    load.restart.store(false, Ordering::SeqCst);
    let before = load.whole.load(Ordering::SeqCst);
    assert_ne!(program_of(daemon.pid()), running);
    assert_eq!((served(&daemon).await, pipeline(&daemon).await), ("next".to_owned(), "2".to_owned()));
    everything_works(&daemon, &other, 3).await;
    engines_are_of(&daemon, "2").await;
    load.stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let [whole, after, refused] = [&load.whole, &load.broken, &load.refused].map(|count| count.load(Ordering::SeqCst));
    println!("{whole} replies whole, {broken} broken by the kill of their engine, {refused} refused at the restart");
    assert!(whole > before && after == broken, "{whole} replies of which {before} before the restart, {after} broken");
    // A release that nobody runs any more goes with the next installation.
    install(&new, &root);
    let left = fs::read_dir(root.join("usr/local/lib/chimere")).unwrap().count();
    assert_eq!(left, 3, "`current`, the release before and this one");
}

#[test]
fn a_release_stays_while_it_runs_however_many_come_after_it() {
    let (folder, project) = (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")));
    // Of these releases only the program counts.
    let (release, root) = (folder.path().join("release"), folder.path().join("root"));
    for part in ["bin", "share/doc/chimere", "share/chimere/systemd", "share/chimere/nano", "share/chimere/pipelines"] {
        fs::create_dir_all(release.join(part)).unwrap();
    }
    symlink(env!("CARGO_BIN_EXE_chimere"), release.join("bin/chimere")).unwrap();
    fs::copy(project.join("deploy/install.sh"), release.join("install.sh")).unwrap();
    for file in ["chimere.service", "chimere.sysusers", "config.toml"] {
        fs::copy(project.join("systemd").join(file), release.join("share/chimere/systemd").join(file)).unwrap();
    }
    let releases = || fs::read_dir(root.join("usr/local/lib/chimere")).unwrap().count();
    install(&release, &root);
    let own = fs::canonicalize(root.join("usr/local/bin/chimere")).unwrap();
    // It waits for a template on its standard input.
    let mut command = Command::new(&own);
    let mut running = command.args(["engine", "--vet"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    install(&release, &root);
    install(&release, &root);
    let (there, left) = (own.exists(), releases());
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(there, "{} was taken away under its process", own.display());
    assert_eq!(left, 4, "`current`, the one that runs, the one before and the last");
    install(&release, &root);
    assert!(!own.exists() && releases() == 3, "nobody runs it any more");
}
