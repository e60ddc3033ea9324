//! `chimere chat` and `chimere pipeline` as processes, against the door.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::{PATIENCE, server};

async fn chat(url: &str, arguments: &[&str], input: Option<&str>) -> Output {
    chimere("chat", url, arguments, input).await
}

async fn chimere(what: &str, url: &str, arguments: &[&str], input: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chimere"));
    command.arg(what).args(["--url", url]).args(arguments).env_remove("CHIMERE_KEY").env_remove("CHIMERE_URL");
    // No configuration of the developer's own may reach a test.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A client that refuses its input does not read all of it.
    let _ = stdin.write_all(input.unwrap_or_default().as_bytes()).await;
    drop(stdin);
    tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("the client did not end").unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_from_an_argument_and_from_standard_input() {
    let server = server().await;
    let url = server.url("");
    let typed = chat(&url, &["hello", "there"], None).await;
    assert_eq!((text(&typed.stdout), typed.status.code()), ("you said hello there\n", Some(0)), "{typed:?}");
    let piped = chat(&url, &[], Some("from a pipe")).await;
    assert_eq!(text(&piped.stdout), "you said from a pipe\n");
    let thought = chat(&url, &["think"], None).await;
    assert_eq!(text(&thought.stdout), "forty two\n", "a thought is for terminals");
    let json_form = chat(&url, &["--json", "--seed", "5", "--temperature", "0", "--think", "off", "hello"], None).await;
    let reply: Value = serde_json::from_slice(&json_form.stdout).unwrap();
    assert_eq!(reply["choices"][0]["message"]["content"], "you said hello");
    let request = server.fake.requests.lock().unwrap().pop().unwrap();
    assert_eq!((request.sampling.seed, request.sampling.temperature), (Some(5), Some(0.0)));
    assert_eq!(request.thinking, Some(chimere::turn::Thinking::Off));
    let cut = chat(&url, &["--max-tokens", "2", "fast 9"], None).await;
    assert_eq!(text(&cut.stdout), "tok0 tok1 \n");
    assert!(text(&cut.stderr).contains("cut at its limit"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_file_is_checked_and_its_route_is_asked() {
    let server = server().await;
    let url = server.url("");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("garden.yaml");
    let path = file.to_str().unwrap();
    let check = async |body: &str| {
        std::fs::write(&file, format!("name: garden\nversion: 1\nfollow_model: true\n{body}")).unwrap();
        chimere("pipeline", &url, &["check", path], None).await
    };
    let branch = "{branch: {name: fork, when: {tiers: [ultra]}, steps: [{generate: {max_tokens: 5}}]}}";
    let steps = format!(
        "steps: [{{generate: {{name: plan, max_tokens: 90}}}}, {branch}, {{generate: {{}}}}, {{judge: {{}}}}]\n"
    );
    let good = check(&steps).await;
    let said = text(&good.stdout);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    for words in [
        "garden: version 1, 4 steps",
        "generate, hidden, at most 90 tokens",
        "branch: where the tier is ultra\n    then\n      fork_1",
        "at most 95 hidden tokens",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let reads = check("steps: [{retrieve: {k: 3}}, {generate: {}}]\n").await;
    assert!(text(&reads.stdout).contains("retrieve, at most 3 passages of documents"), "{reads:?}");
    let web = check("steps: [{web: {k: 2}}, {generate: {}}]\n").await;
    assert!(text(&web.stdout).contains("web, at most 2 passages of web pages"), "{web:?}");
    let bad = check("steps: [{tree_search: {}}, {generate: {}}]\n").await;
    assert_eq!(bad.status.code(), Some(65), "{bad:?}");
    assert!(text(&bad.stderr).contains("steps [0] is `tree_search`, which needs forks"), "{bad:?}");
    assert_eq!(chimere("pipeline", &url, &["check", "nowhere.yaml"], None).await.status.code(), Some(66));
    let schema: Value = serde_json::from_slice(&chimere("pipeline", &url, &["schema"], None).await.stdout).unwrap();
    assert!(schema["properties"]["steps"].is_object());
    let asked = chimere("pipeline", &url, &["run", "code", "hello", "--trace"], None).await;
    let said = text(&asked.stdout);
    assert!(said.starts_with("you said hello\n") && said.contains("answer           generate  done"), "{said}");
    assert_eq!(server.fake.requests.lock().unwrap().pop().unwrap().route.as_deref(), Some("code"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_one_clear_line_and_a_failure() {
    let server = server().await;
    let url = server.url("");
    for (arguments, said, code) in [
        (&["busy"][..], "busy", 75),
        (&["fail-early"], "do not fit the context of 4096", 65),
        (&["fail-late"], "the engine stopped", 70),
        (&["--key", "nonsense", "hello"], "CHIMERE_KEY", 77),
        (&["--model", "other", "hello"], "`other` is not served", 65),
        (&["--json"], "empty", 64),
        (&[" "], "the question is empty", 64),
    ] {
        let output = chat(&url, arguments, None).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {output:?}");
        let errors = text(&output.stderr);
        assert!(errors.contains(said) && errors.lines().count() == 1, "{arguments:?}: {errors}");
    }
    // A question that is too long is refused and not cut.
    let asked = server.fake.requests.lock().unwrap().len();
    let long = chat(&url, &[], Some(&"long ".repeat(2 << 20))).await;
    assert_eq!(
        (long.status.code(), server.fake.requests.lock().unwrap().len()),
        (Some(65), asked),
        "{}",
        text(&long.stderr)
    );
    let nobody = chat("http://127.0.0.1:9", &["hello"], None).await;
    assert!(text(&nobody.stderr).contains("start one with `chimere serve`"), "{nobody:?}");
    assert_eq!(nobody.status.code(), Some(69));
    let usage = chat(&url, &["--think", "hard", "hello"], None).await;
    assert_eq!(usage.status.code(), Some(64));
}

/// A proxy answers in words of its own where the daemon behind it does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_without_its_daemon_is_told_as_such() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4_096]).await;
            let page = "<html>Bad Gateway</html>";
            let head = format!("HTTP/1.1 502 Bad Gateway\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            let _ = stream.write_all(head.as_bytes()).await;
            // Not closed before it was read.
            tokio::time::sleep(PATIENCE).await;
        }
    });
    let said = chat(&url, &["hello"], None).await;
    let words = text(&said.stderr);
    assert!(words.contains("a proxy at") && words.contains("502") && words.contains("start that daemon"), "{words}");
    assert!(!words.contains("no daemon of ours") && said.status.code() == Some(69), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_client_cancels_its_reply() {
    let server = server().await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_chimere"))
        .args(["chat", "--url", &server.url(""), "slow 100000"])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let started = async {
        while server.fake.requests.lock().unwrap().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, started).await.expect("the question did not arrive");
    child.kill().await.unwrap();
    crate::stream::wait_for_cancelled_count(&server.fake, 1).await;
    assert_eq!(server.chat("hello", json!({})).await.status, 200);
}
