//! `chimere bench --http --mixed` as its user meets it. In place of llama.cpp's server another daemon answers, behind a
//! script that takes the same command line. So it is known beforehand what the comparison must say of two equal
//! servers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::harness::{chimere, model};

fn bench(args: &[&str]) -> Output {
    chimere().args(["bench", "--http", "--mixed", "--threads", "2"]).args(args).output().unwrap()
}

/// A server that is started as `llama-server` is; its chats have this system message.
fn peer(folder: &Path, system: &str) -> PathBuf {
    let state = folder.join("state");
    fs::create_dir_all(state.join("pipelines")).unwrap();
    fs::set_permissions(&state, fs::Permissions::from_mode(0o700)).unwrap();
    let route = format!(
        "name: bench\nversion: 1\nsystem: '{system}'\nthinking: {{fast_tokens: 0, quality_tokens: 0, ultra_tokens: 0}}\n"
    );
    fs::write(state.join("pipelines/bench.yaml"), route).unwrap();
    let (script, state) = (folder.join("llama-server"), state.display());
    let text = format!(
        "#!/bin/sh\nset -eu\n\
         [ \"$1 $3 $5 $7 $9 ${{11}}\" = '--model --threads --parallel --ctx-size --host --port' ]\n\
         [ \"$8\" = $(($6 * 2048)) ]\n\
         export CHIMERE_ENGINE_THREADS=$4 CHIMERE_ENGINE_SEQUENCES=$6 CHIMERE_SCORER_ENABLED=false\n\
         exec {} serve --model \"$2\" --listen \"${{10}}:${{12}}\" --state-dir {state}\n",
        env!("CARGO_BIN_EXE_chimere")
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[test]
fn two_equal_servers_write_the_same_and_the_second_turn_begins_sooner() {
    let (folder, model) = (tempfile::tempdir().unwrap(), model());
    let (peer, model) = (peer(folder.path(), ""), model.to_str().unwrap());
    let output =
        bench(&["--model", model, "--batch", "2", "--rounds", "2", "--json", "--peer-server", peer.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &report["rows"][0];
    assert_eq!((&row["streams"], &row["requests"], &row["same_texts"]), (&2.into(), &5.into(), &10.into()), "{row}");
    assert!(row["prompt_tokens"].as_u64().unwrap() > 1_000 && row["reply_tokens"].as_u64().unwrap() > 5 * 16, "{row}");
    for figure in ["tokens_per_s", "busy_tokens_per_s", "first_ms_p50", "first_ms_p99", "gap_ms_p50", "gap_ms_p99"] {
        for side in ["chimere", "peer", "ratio"] {
            let told = &row[side][figure];
            let of = |name: &str| told[name].as_f64().unwrap_or_else(|| panic!("{side}.{figure}.{name}: {told}"));
            // Two tokens that are read at once have no gap.
            let possible = if figure.starts_with("gap") { of("least") >= 0.0 } else { of("least") > 0.0 };
            assert!(possible && of("least") <= of("median") && of("median") <= of("most"), "{figure}: {told}");
            assert!(of("low") <= of("mean") && of("mean") <= of("high"), "{told}");
        }
    }
    for side in ["turns", "peer_turns"] {
        let turns = &report[side];
        let tokens = |at: &Value| at.as_u64().unwrap();
        let [first, second] = [0, 1].map(|at| tokens(&turns["prompt_tokens"][at]));
        assert!((1_400..1_700).contains(&first) && second > first + 64, "{turns}");
        assert!(tokens(&turns["cached_tokens"]) > first - 16, "{turns}");
        assert!(turns["share"]["median"].as_f64().unwrap() < 0.5, "{turns}");
    }
}

#[test]
fn what_cannot_be_measured_or_compared_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = model();
    let model = model.to_str().unwrap();
    let refused = |args: &[&str], code: i32, part: &str| {
        let output = bench(&[&["--model", model, "--batch", "1", "--rounds", "1"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(part), "{args:?}: {:?} {said}", output.status);
    };
    refused(&["--tokens", "64"], 64, "--tokens");
    refused(&["--peer-server", "/nowhere/llama-server"], 66, "cannot start /nowhere/llama-server --model");
    refused(&["--peer-server", "/bin/false"], 69, "says why when started by hand: /bin/false --model");
    let other = peer(folder.path(), "You like long prompts.");
    refused(&["--peer-server", other.to_str().unwrap()], 65, "the servers read different prompts");
    for args in [&["--mixed"][..], &["--http", "--peer-server", "x"]] {
        let output = chimere().arg("bench").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(64) && said.contains("required"), "{args:?}: {said}");
    }
}
