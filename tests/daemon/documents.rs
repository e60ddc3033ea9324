//! Documents through the daemon: files added by the command, found by their words and by vectors, shared by the owner, and
//! gone when they are removed. A kill loses none that was acknowledged.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::{Daemon, kill};
use crate::people::{again, key, told, toward, with_key};

const HOUSE: &str = "# House\n\n## Boiler\n\nThe code of the boiler is 4711. It was put in in 1987.\n\n## Garden\n\n\
    The shed stands behind the pear tree.\n";

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Places of what is found, best first.
fn found(daemon: &Daemon, key: &str, question: &str) -> Vec<String> {
    let told = json_of(&told(daemon, &["documents", "search", "--json", question], key));
    assert_eq!(told.get("no_vectors"), None, "{told}");
    let place = |passage: &Value| {
        assert!(passage["vectors"].is_object() || passage["words"].is_object(), "{passage}");
        format!("{}:{}", passage["name"].as_str().unwrap(), passage["line"])
    };
    told["data"].as_array().unwrap().iter().map(place).collect()
}

/// No file of the documents holds the word; `src/documents/tests.rs` looks into the index.
fn is_gone(folder: &Path, word: &str) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).all(|path| match path.is_dir() {
        true => is_gone(&path, word),
        false => !String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()).contains(word),
    })
}

#[tokio::test]
async fn each_key_reads_its_own_documents_and_what_the_owner_shares() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let papers = tempfile::tempdir().unwrap();
    let [root, ada, bob] =
        [("root", "admin"), ("ada", "chat"), ("bob", "chat")].map(|(name, scope)| key(state.path(), name, scope));
    let write = |name: &str, bytes: &[u8]| fs::write(papers.path().join(name), bytes).unwrap();
    write("house.md", HOUSE.as_bytes());
    write("people.csv", b"name;phone\nNoor, plumber;555-01\nIda, doctor;555-02\n");
    write(
        "page.html",
        b"<html><title>Pears</title><body><h1>Pears</h1><p>Prune them in <b>March</b>.</p></body></html>",
    );
    write("tool.rs", b"/// Opens the valve of the tank.\nfn open_valve() {}\n");
    write("photo.png", b"\x89PNG");
    std::os::unix::fs::symlink("/etc/passwd", papers.path().join("link.txt")).unwrap();
    let daemon = Daemon::launch(state.clone(), &[]);
    daemon.ready().await;
    let folder = papers.path().to_str().unwrap();
    let added = told(&daemon, &["documents", "add", folder, "--collection", "papers"], &ada);
    assert_eq!(added.lines().count(), 4, "{added}");
    assert_eq!(found(&daemon, &ada, "which code has the boiler")[0], "house.md:3");
    assert_eq!(found(&daemon, &ada, "phone number of the plumber")[0], "people.csv:1");
    assert_eq!(found(&daemon, &ada, "when are pear trees pruned")[0], "page.html:1");
    assert_eq!(found(&daemon, &ada, "valve tank")[0], "tool.rs:1");
    let shown = told(&daemon, &["documents", "search", "-k", "1", "boiler code"], &ada);
    assert!(shown.contains("house.md, lines 3 to 5, House > Boiler") && shown.contains("4711"), "{shown}");
    // A second time nothing changes; a changed file takes the place of the old one.
    let again_added = told(&daemon, &["documents", "add", folder, "--collection", "papers"], &ada);
    assert_eq!(again_added.matches("(as it was)").count(), 4, "{again_added}");
    write("tool.rs", b"fn close_hatch() {}\n");
    let path = papers.path().join("tool.rs");
    let replaced = told(&daemon, &["documents", "add", path.to_str().unwrap(), "--collection", "papers"], &ada);
    assert!(replaced.contains("(replaced)"), "{replaced}");
    assert!(is_gone(&state.path().join("documents"), "valve"));
    // What is another's is not there, until the owner shares it.
    let id = json_of(&told(&daemon, &["documents", "list", "--json"], &ada))[0]["id"].as_str().unwrap().to_owned();
    assert!(found(&daemon, &bob, "boiler").is_empty());
    for args in [["documents", "show", &id], ["documents", "remove", &id]] {
        let refused = toward(&daemon, &bob).args(args).output().unwrap();
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(65) && why.contains("there is no document"), "{why}");
    }
    let refused = toward(&daemon, &ada).args(["documents", "share", "papers", "--everybody"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("only the owner shares"), "{refused:?}");
    told(&daemon, &["documents", "add", path.to_str().unwrap()], &root);
    told(&daemon, &["documents", "share", "documents", "--with", "bob"], &root);
    assert_eq!(
        (found(&daemon, &bob, "hatch"), found(&daemon, &ada, "pear")[0].as_str()),
        (vec!["tool.rs:1".to_owned()], "page.html:1")
    );
    let shared = told(&daemon, &["documents", "share", "documents", "--with", "ada"], &root);
    assert!(shared.contains("read by ada, bob"), "{shared}");
    let shared = told(&daemon, &["documents", "share", "documents", "--without", "ada"], &root);
    assert!(shared.contains("read by bob") && !shared.contains("ada"), "{shared}");
    for (collection, name, why) in
        [("documents", "carol", "there is no key `carol`"), ("nosuch", "bob", "there is no collection nosuch")]
    {
        let refused = toward(&daemon, &root).args(["documents", "share", collection, "--with", name]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
    let status = told(&daemon, &["documents", "status"], &root);
    assert!(status.contains("papers  of ada  private  4 documents") && status.contains("read by bob"), "{status}");
    // Removed by its owner, or whole by the owner of the house.
    told(&daemon, &["documents", "remove", &id], &ada);
    assert!(
        is_gone(&state.path().join("documents"), "4711")
            && found(&daemon, &ada, "boiler code").iter().all(|p| !p.starts_with("house"))
    );
    let collections = json_of(&told(&daemon, &["documents", "status", "--json"], &root));
    let of_ada = collections.as_array().unwrap().iter().find(|c| c["principal"] == "ada").unwrap();
    let gone = told(&daemon, &["documents", "remove", "--collection", of_ada["id"].as_str().unwrap()], &root);
    assert!(gone.contains("with 3 documents") && is_gone(&state.path().join("documents"), "Noor"), "{gone}");
    let metrics = daemon.get("/v1/status").await;
    assert!(metrics.0 == 401 || metrics.0 == 403 || metrics.1["documents"]["documents"] == 1, "{metrics:?}");
}

#[tokio::test]
async fn what_is_no_document_is_refused_with_what_to_do() {
    let daemon = Daemon::start(&[]).await;
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes, said) in [
        ("a.png", &b"\x89PNG"[..], ".png` is no kind of file"),
        ("a.txt", b"PK\x03\x04\0\0", "is not text"),
        ("b.txt", b" \n", "has no text"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        let refused = toward(&daemon, "").args(["documents", "add"]).arg(&path).output().unwrap();
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(65) && why.contains(said), "{name}: {why}");
    }
    let form = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"n.md\"\r\n\r\n# Pump\n\nIt is blue.\r\n--x--\r\n";
    let client = reqwest::Client::new();
    let request =
        client.post(format!("{}/v1/documents", daemon.url)).header("content-type", "multipart/form-data; boundary=x");
    let told: Value = request.body(form).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&told["title"], &told["collection"], &told["passages"]),
        (&json!("Pump"), &json!("documents"), &json!(1))
    );
    assert_eq!(found(&daemon, "", "which colour has the pump"), ["n.md:1"]);
    let (status, error) = daemon.post("/v1/documents/search", &json!({"query": "x", "collections": ["none"]})).await;
    assert_eq!((status, error["error"]["message"].as_str()), (404, Some("there is no collection none")));
}

#[tokio::test]
async fn a_kill_loses_no_document_that_was_acknowledged_and_leaves_no_half() {
    let mut daemon = Daemon::start(&[]).await;
    let mut acknowledged = Vec::new();
    for life in 0..3 {
        let (url, first) = (daemon.url.clone(), acknowledged.len());
        let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let adding = tokio::spawn(async move {
            for n in 0.. {
                let name = format!("thing{life}x{n}.txt");
                let text = format!("The word of it is word{life}x{n}. ").repeat(60);
                let body = json!({"name": name, "text": text});
                let post = reqwest::Client::new().post(format!("{url}/v1/documents")).json(&body).send().await;
                let Ok(answer) = post else { return };
                let Ok(document) = answer.json::<Value>().await else { return };
                let _ = told.send(document["name"].as_str().unwrap().to_owned());
            }
        });
        while acknowledged.len() < first + 4 + life {
            acknowledged.push(heard.recv().await.unwrap());
        }
        kill(daemon.pid());
        adding.await.unwrap();
        while let Some(name) = heard.recv().await {
            acknowledged.push(name);
        }
        let state = daemon.state.clone();
        drop(daemon);
        daemon = again(&state, &[]).await;
    }
    let list = json_of(&told(&daemon, &["documents", "list", "--json"], ""));
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|document| document["name"].as_str().unwrap()).collect();
    assert!(acknowledged.iter().all(|name| names.contains(&name.as_str())), "{acknowledged:?} {names:?}");
    // Each that is there is whole: its text, its words and its vectors.
    for document in list.as_array().unwrap() {
        let name = document["name"].as_str().unwrap();
        let word = name.trim_end_matches(".txt").replacen("thing", "word", 1);
        let all = json_of(&told(&daemon, &["documents", "search", "--json", &word], ""));
        let own = |passage: &&Value| passage["name"] == name && passage["words"].is_object();
        let passage = all["data"].as_array().unwrap().iter().find(own).unwrap_or_else(|| panic!("{name} is not found"));
        assert!(passage["text"].as_str().unwrap().contains(&word), "{passage}");
    }
    let left = fs::read_dir(daemon.state.path().join("documents")).unwrap();
    let halves = left.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count();
    assert_eq!(halves, 0);
}

/// A chat that may read documents.
fn asking(question: &str, documents: Value) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24,
        "chimere": {"documents": documents}})
}

#[tokio::test]
async fn an_answer_is_shown_the_passages_that_its_key_may_read_and_says_which() {
    let state = Arc::new(tempfile::tempdir().unwrap());
    let [ada, bob] = ["ada", "bob"].map(|name| key(state.path(), name, "chat"));
    fs::create_dir_all(state.path().join("pipelines")).unwrap();
    let house = "name: house\nversion: 1\nfollow_model: true\nsteps: [{retrieve: {k: 2}}, {generate: {}}]\n";
    fs::write(state.path().join("pipelines/house.yaml"), house).unwrap();
    let daemon = again(&state, &[]).await;
    let body = json!({"name": "house.md", "text": HOUSE, "media_type": "text/markdown"});
    let id = with_key(&daemon, &ada, "/v1/documents", &body).await["id"].clone();
    let question = "What is the code of the boiler?";
    let ask = async |key: &str, body: &Value| with_key(&daemon, key, "/v1/chat/completions", body).await;
    let plain = ask(&ada, &asking(question, json!(false))).await;
    let reply = ask(&ada, &asking(question, json!(true))).await;
    let (own, source) = (&reply["x_chimere"], &reply["x_chimere"]["sources"][0]);
    assert!(source["text"].as_str().unwrap().contains("4711") && source["number"] == 1, "{own}");
    assert_eq!(
        (&source["document"], &source["url"]),
        (&id, &json!(format!("/v1/documents/{}#L3", id.as_str().unwrap())))
    );
    assert_eq!((&own["trace"][0]["kind"], &own["trace"][1]["kind"]), (&json!("retrieve"), &json!("generate")));
    let tokens = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&reply) > tokens(&plain) + 30 && plain["x_chimere"].get("sources").is_none());
    for citation in own["citations"].as_array().into_iter().flatten() {
        assert!(HOUSE.contains(citation["quote"]["text"].as_str().unwrap_or_default()), "{citation}");
    }
    // The Turn keeps where the passages stand, and none of their words; it teaches nothing.
    let turn = own["turn"].as_str().unwrap();
    let kept = json_of(told(&daemon, &["memory", "list", "--json", "--turn", turn], &ada).trim());
    assert_eq!((&kept["taint"], &kept["prompt_ids"]), (&json!(true), &json!([])), "{kept}");
    assert_eq!(kept["steps"][0]["passages"][0]["document"], id);
    assert!(!kept["steps"].to_string().contains("1987") && !kept["messages"].to_string().contains("1987"), "{kept}");
    let corrected = with_key(&daemon, &ada, "/v1/feedback", &json!({"turn": turn, "correction": "4711"})).await;
    assert!(corrected["no_lesson"].is_string(), "{corrected}");
    // What is another's is not there: the model is told that nothing was found, and so is the client.
    let nothing = ask(&bob, &asking(question, json!(true))).await;
    assert_eq!(
        (&nothing["x_chimere"]["sources"], &nothing["x_chimere"]["trace"][0]["decided"]),
        (&json!([]), &json!("nothing was found"))
    );
    let unknown = reqwest::Client::new().post(format!("{}/v1/chat/completions", daemon.url)).bearer_auth(&bob);
    let unknown = unknown.json(&asking(question, json!({"collections": ["papers"]}))).send().await.unwrap();
    assert_eq!(unknown.status(), 404);
    // A pipeline's step does the same, and a request may leave it out.
    let mut routed =
        json!({"messages": [{"role": "user", "content": question}], "max_tokens": 4, "chimere": {"route": "house"}});
    assert_eq!(ask(&ada, &routed).await["x_chimere"]["sources"][0]["document"], id);
    routed["chimere"]["documents"] = json!(false);
    assert_eq!(ask(&ada, &routed).await["x_chimere"].get("sources"), None);
    let shown = toward(&daemon, &ada).args(["chat", "--documents", question]).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stderr).contains("[1] House, line 3"), "{shown:?}");
    told(&daemon, &["documents", "remove", id.as_str().unwrap()], &ada);
    assert_eq!(ask(&ada, &asking(question, json!(true))).await["x_chimere"]["sources"], json!([]));
}
