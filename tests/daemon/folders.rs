//! Folders whose files are documents: what is saved, changed, renamed and deleted there is so in the collection, and what leads
//! out of the folder is not read. So it is after a kill, and beside answers that are shown the files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Daemon, PATIENCE, kill};
use crate::people::{key, told, toward};

const BOILER: &str = "# House\n\nThe code of the boiler is 4711.\n";

async fn follow(state: &Arc<tempfile::TempDir>, folders: &str) -> Daemon {
    let daemon = Daemon::launch_with(state.clone(), &[], &[("CHIMERE_DOCUMENTS_FOLDERS", folders)]);
    daemon.ready().await;
    daemon
}

/// The folder's line in the listing of collections, once nothing waits and it holds.
async fn seen(daemon: &Daemon, key: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let all: Value =
            serde_json::from_str(&told(daemon, &["documents", "status", "--json"], key)).unwrap_or_default();
        let one = all.as_array().and_then(|all| all.iter().find(|c| c["folder"].is_object())).cloned();
        if let Some(one) = one.filter(|c| c["folder"]["waiting"] == 0 && holds(c)) {
            return one;
        }
        assert!(began.elapsed() < PATIENCE, "{all}\n{}", daemon.log.lock().unwrap().join("\n"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The files that a search finds, best first.
fn found(daemon: &Daemon, key: &str, question: &str) -> Vec<String> {
    let told: Value = serde_json::from_str(&told(daemon, &["documents", "search", "--json", question], key)).unwrap();
    let with_words = told["data"].as_array().unwrap().iter().filter(|passage| passage["words"].is_object());
    with_words.map(|passage| passage["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_is_saved_changed_and_deleted_in_a_folder_is_so_in_its_collection() {
    let (state, home) = (Arc::new(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
    let root = home.path().join("papers");
    let write = |name: &str, text: &str| {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    // What lies outside, what waits for ever and what is no text are not documents.
    fs::write(home.path().join("secret.txt"), "The word is xylophone.").unwrap();
    write("house.md", BOILER);
    write("broken.txt", "\0\0\0");
    write("photo.png", "no text");
    symlink(home.path().join("secret.txt"), root.join("link.txt")).unwrap();
    symlink(home.path(), root.join("up")).unwrap();
    assert!(Command::new("mkfifo").arg(root.join("pipe.txt")).status().unwrap().success());
    let folders = format!("{{ papers = '{}' }}", root.display());
    let daemon = follow(&state, &folders).await;
    let first = seen(&daemon, "", |c| c["documents"] == 1 && c["folder"]["left_out_count"] == 1).await;
    assert_eq!((&first["name"], &first["folder"]["others"]), (&json!("papers"), &json!(1)), "{first}");
    assert!(first["folder"]["left_out"]["broken.txt"].as_str().unwrap().contains("not text"), "{first}");
    assert_eq!(found(&daemon, "", "code of the boiler"), ["house.md"]);
    assert!(found(&daemon, "", "xylophone").is_empty());
    let status = told(&daemon, &["documents", "status"], "");
    assert!(status.contains("2 files, 1 left out, 1 of other kinds\n  left out: broken.txt: "), "{status}");
    // A new folder with a file, a changed file, a mended one, a renamed one.
    write("garden/shed.md", "The shed stands behind the pear tree.");
    seen(&daemon, "", |c| c["documents"] == 2).await;
    assert_eq!(found(&daemon, "", "shed"), ["garden/shed.md"]);
    write("broken.txt", "The pump is blue.");
    write("house.md", "# House\n\nThe code of the boiler is 8150 now.\n");
    seen(&daemon, "", |_| found(&daemon, "", "8150") == ["house.md"] && found(&daemon, "", "pump") == ["broken.txt"])
        .await;
    assert!(found(&daemon, "", "4711").is_empty());
    fs::rename(root.join("house.md"), root.join("boiler.md")).unwrap();
    seen(&daemon, "", |_| found(&daemon, "", "8150") == ["boiler.md"]).await;
    // The folder alone is changed.
    let list: Value = serde_json::from_str(&told(&daemon, &["documents", "list", "--json"], "")).unwrap();
    let (id, file) = (list[0]["id"].as_str().unwrap(), root.join("boiler.md"));
    for (args, why) in [
        (vec!["add", file.to_str().unwrap(), "--collection", "papers"], "put the file there"),
        (vec!["remove", id], "remove the file there"),
        (vec!["remove", "--collection", "papers"], "take the folder out of `documents.folders`"),
    ] {
        let refused = toward(&daemon, "").arg("documents").args(&args).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{args:?}: {said}");
    }
    // Gone with its words, also from what an answer is shown.
    let asked = json!({"messages": [{"role": "user", "content": "Which code has the boiler?"}], "max_tokens": 4,
        "chimere": {"documents": true}});
    let (_, shown) = daemon.post("/v1/chat/completions", &asked).await;
    assert!(shown["x_chimere"]["sources"][0]["text"].as_str().is_some_and(|text| text.contains("8150")), "{shown}");
    fs::remove_file(file).unwrap();
    seen(&daemon, "", |c| c["documents"] == 2).await;
    let (_, shown) = daemon.post("/v1/chat/completions", &asked).await;
    assert_eq!(shown["x_chimere"]["sources"], json!([]), "{shown}");
    let left = fs::read_dir(state.path().join("documents")).unwrap();
    let holds = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).contains("8150");
    assert!(left.map(|entry| entry.unwrap().path()).all(|path| !holds(&path)));
}

#[tokio::test]
async fn a_folder_catches_up_after_a_kill_and_keeps_its_documents_while_it_is_away() {
    let (state, home) = (Arc::new(tempfile::tempdir().unwrap()), tempfile::tempdir().unwrap());
    let [root_key, ada] = [("root", "admin"), ("ada", "chat")].map(|(name, scope)| key(state.path(), name, scope));
    let root = home.path().join("notes");
    fs::create_dir(&root).unwrap();
    for (n, word) in ["apricot", "badger", "cedar", "dolphin", "ember", "falcon"].into_iter().enumerate() {
        fs::write(root.join(format!("thing{n}.txt")), format!("This is about a {word}.")).unwrap();
    }
    let folders = format!("{{ 'ada/notes' = '{}' }}", root.display());
    let mut daemon = follow(&state, &folders).await;
    seen(&daemon, &ada, |c| c["documents"].as_u64().is_some_and(|n| n > 0)).await;
    kill(daemon.pid());
    fs::write(root.join("thing0.txt"), "This is about granite.").unwrap();
    fs::remove_file(root.join("thing1.txt")).unwrap();
    drop(daemon);
    daemon = follow(&state, &folders).await;
    // A file rests for a second before it is read.
    let own = seen(&daemon, &ada, |c| c["documents"] == 5 && found(&daemon, &ada, "granite") == ["thing0.txt"]).await;
    assert!(found(&daemon, &ada, "apricot").is_empty() && found(&daemon, &ada, "badger").is_empty());
    // The owner of the house shares it by its id.
    assert!(found(&daemon, &root_key, "granite").is_empty());
    told(&daemon, &["documents", "share", own["id"].as_str().unwrap(), "--everybody"], &root_key);
    assert_eq!(found(&daemon, &root_key, "granite"), ["thing0.txt"]);
    // An unplugged disk empties nothing.
    let away = home.path().join("away");
    fs::rename(&root, &away).unwrap();
    let lost = seen(&daemon, &ada, |c| c["folder"]["state"] == "failed").await;
    assert_eq!((&lost["documents"], lost["folder"]["why"].is_string()), (&json!(5), true), "{lost}");
    fs::remove_file(away.join("thing2.txt")).unwrap();
    fs::rename(&away, &root).unwrap();
    seen(&daemon, &ada, |c| c["documents"] == 4 && c["folder"]["state"] == "followed").await;
}
