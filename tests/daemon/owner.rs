//! Who is the owner while there is no key: the daemon's own user, not every account of the machine.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use serde_json::json;

use crate::harness::{Daemon, chimere};
use crate::people::{done, key, told};

/// An account without rights, on every Linux.
const NOBODY: u32 = 65_534;

/// Asks as a user; what is said is a status line. bash speaks TCP by itself.
fn asked_as(uid: Option<u32>, daemon: &Daemon) -> String {
    let port = daemon.url.rsplit(':').next().unwrap();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /v1/status HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3"
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).current_dir("/");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_account_of_the_machine_is_not_the_owner() {
    let daemon = Daemon::start(&[]).await;
    assert!(asked_as(None, &daemon).starts_with("HTTP/1.1 200"));
    // Only root can be somebody else here; without it the table of sockets is tested beside its reader.
    let root = std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap() == 0;
    if root {
        let said = asked_as(Some(NOBODY), &daemon);
        assert!(said.starts_with("HTTP/1.1 401") && said.contains("chimere keys add"), "{said}");
        assert!(said.contains("its own user (uid 0)") && said.contains("of uid 65534"), "{said}");
    }
    for (rule, own, other) in [("anyone", 200, 200), ("never", 401, 401)] {
        let state = Arc::new(tempfile::tempdir().unwrap());
        let daemon = Daemon::launch_with(state, &[], &[("CHIMERE_HTTP_LOOPBACK_OWNER", rule)]);
        daemon.ready().await;
        assert!(asked_as(None, &daemon).starts_with(&format!("HTTP/1.1 {own}")), "{rule}");
        if root {
            assert!(asked_as(Some(NOBODY), &daemon).starts_with(&format!("HTTP/1.1 {other}")), "{rule}");
        }
    }
}

/// The first key takes nothing away from who makes it, and a key that was revoked opens nothing from that moment on.
#[tokio::test]
async fn the_owners_key_keeps_the_sessions_and_a_revoked_key_ends_at_once() {
    let daemon = Daemon::start(&[]).await;
    let messages = json!([{ "role": "user", "content": "My dog is Rex." }]);
    let body = json!({ "messages": messages, "max_tokens": 4, "chimere": { "session": "s9" } });
    assert_eq!(daemon.post("/v1/chat/completions", &body).await.0, 200);
    let state = daemon.state.path();
    let own = key(state, "owner", "admin");
    assert!(told(&daemon, &["session", "list"], &own).starts_with("s9 "));
    let others = key(state, "me", "admin");
    assert_eq!(told(&daemon, &["session", "list"], &others), "");
    let status = async || {
        let request = reqwest::Client::new().get(format!("{}/v1/models", daemon.url)).bearer_auth(&others);
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(status().await, 200);
    done(chimere().args(["keys", "revoke", "me", "--state-dir"]).arg(state).output().unwrap());
    assert_eq!(status().await, 401);
    let again = chimere().args(["keys", "add", "me", "--state-dir"]).arg(state).output().unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(65) && said.contains("was revoked, and its name stays taken"), "{said}");
}
