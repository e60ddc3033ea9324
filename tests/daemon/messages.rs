//! Messages of commands to somebody who made a mistake or does not know yet: what was meant is said, with what to do.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Daemon, chimere};
use crate::people::{told, toward};
use crate::tables::ran;

#[test]
fn a_model_that_does_not_exist_is_said_not_to() {
    let state = tempfile::tempdir().unwrap();
    let (code, _, said) = ran(chimere().args(["serve", "--model", "/nope.gguf", "--state-dir"]).arg(state.path()));
    let last = said.lines().last().unwrap();
    assert_eq!((code, last), (66, "chimere: there is no file /nope.gguf: name one with --model or model.path"));
}

#[test]
fn a_table_that_takes_anothers_place_says_so_and_lists_name_their_folders() {
    let state = tempfile::tempdir().unwrap();
    let text = state.path().join("t.txt");
    // Windows puts a mark before it.
    fs::write(&text, "\u{feff}the kneecap is the patella\0the kneecap is the patella\0the kneecap is the patella")
        .unwrap();
    let build = |name: &str| {
        let mut command = chimere();
        command.args(["engram", "build", "--name", name, "--count-min", "1", "--documents-min", "1", "--text"]);
        ran(command
            .arg(&text)
            .args(["--url", "127.0.0.1:9", "--model"])
            .arg(crate::harness::model())
            .arg("--state-dir")
            .arg(state.path()))
    };
    let (code, _, note) = build("kine");
    assert!(code == 0 && note.contains("`kine` takes the place of the shipped table of that name"), "{note}");
    let (_, _, note) = build("kine");
    assert!(note.contains("takes the place of your table of that name"), "{note}");
    let (code, _, note) = build("knees");
    assert!(code == 0 && !note.contains("takes the place"), "{note}");
    let (code, said, note) = ran(chimere().args(["engram", "list", "--state-dir"]).arg(state.path()));
    assert!(
        code == 0 && note.contains(&format!("Own tables lie in {}/engram; shipped ones in ", state.path().display())),
        "{note}"
    );
    let marked: Vec<&str> = said.lines().filter(|line| line.ends_with("in the place of the shipped one")).collect();
    assert!(marked.len() == 1 && marked[0].starts_with("kine "), "{said}");
    let (_, shown, _) =
        ran(chimere().args(["engram", "show", "kine", "--contexts", "50", "--state-dir"]).arg(state.path()));
    assert!(!shown.contains('\u{feff}'), "{shown}");
}

#[test]
fn the_consent_of_a_key_is_told_as_what_it_is() {
    let state = tempfile::tempdir().unwrap();
    let keys = |args: &[&str]| {
        let (code, _, note) = ran(chimere().arg("keys").args(args).arg("--state-dir").arg(state.path()));
        assert_eq!(code, 0, "{note}");
        note
    };
    // Nothing was given that could be taken back.
    let note = keys(&["add", "ann"]);
    assert!(note.contains("Nights learn nothing from what `ann` says, for nobody consented to it"), "{note}");
    assert!(!note.contains("From now on nights"), "{note}");
    // Who reads metrics says nothing.
    let note = keys(&["add", "graphs", "--scope", "metrics"]);
    assert!(!note.to_lowercase().contains("nights"), "{note}");
    let note = keys(&["renew", "graphs", "--keep", "--consent", "yes"]);
    assert!(note.contains("Consent means nothing for `graphs`"), "{note}");
    assert!(keys(&["renew", "ann", "--keep", "--consent", "yes"]).contains("Nights may learn from what `ann` says"));
    let note = keys(&["renew", "ann", "--keep", "--consent", "no"]);
    assert!(note.contains("From now on nights learn nothing from what `ann` says"), "{note}");
}

#[test]
fn an_installer_without_its_archive_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let to = root.path().join("to");
    let (code, _, said) = ran(Command::new("bash").arg(source.join("deploy/install.sh")).arg("--destdir").arg(&to));
    assert!(code == 66 && said.contains("lacks: bin/chimere") && said.contains("`make archive`"), "{said}");
    assert!(!to.exists());
    // Elsewhere it is an archive that is not whole, or a program of another machine.
    let half = root.path().join("half");
    fs::create_dir_all(half.join("bin")).unwrap();
    fs::copy(source.join("deploy/install.sh"), half.join("install.sh")).unwrap();
    let install = || ran(Command::new("bash").arg(half.join("install.sh")).arg("--destdir").arg(&to));
    let (code, _, said) = install();
    assert!(code == 66 && said.contains("unpack the archive again"), "{said}");
    for folder in ["nano", "pipelines", "systemd"] {
        fs::create_dir_all(half.join("share/chimere").join(folder)).unwrap();
    }
    fs::create_dir_all(half.join("share/doc/chimere")).unwrap();
    for file in ["chimere.service", "chimere.sysusers", "config.toml"] {
        fs::copy(source.join("systemd").join(file), half.join("share/chimere/systemd").join(file)).unwrap();
    }
    fs::write(half.join("bin/chimere"), "no program").unwrap();
    let (code, _, said) = install();
    assert!(code == 66 && said.contains("does not run on this machine"), "{said}");
    assert!(!to.exists());
}

#[test]
fn a_mark_before_a_piped_text_is_no_part_of_it() {
    let mut child = chimere()
        .args(["chat", "--url", "127.0.0.1:9"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all("\u{feff}/new\n".as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(64) && said.contains("`/new` is a command of a conversation"), "{said}");
}

#[tokio::test]
async fn documents_are_named_as_people_know_them() {
    let daemon = Daemon::start(&[]).await;
    let of = |args: &[&str]| ran(toward(&daemon, "").arg("documents").args(args));
    let (code, said, note) = of(&["status"]);
    assert!(
        code == 0 && said.is_empty() && note.contains("There are no documents. `chimere documents add PATH`"),
        "{note}"
    );
    let home = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("boiler.md", "# Boiler\n\nIts code is 4711.\n"),
        (".git/notes.md", "x"),
        ("web/node_modules/left-pad/README.md", "# left-pad\n"),
        ("env/pyvenv.cfg", "home = /usr\n"),
        ("env/lib/LICENSE.txt", "x"),
    ] {
        let path = home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let folder = home.path().to_str().unwrap();
    let (code, said, note) = of(&["add", folder]);
    assert!(code == 0 && said.lines().count() == 1 && said.contains("boiler.md"), "{said}{note}");
    let passed = "Passed over: 1 hidden file or folder, 2 folders that programs made (env, node_modules); --all takes";
    assert!(note.contains(passed), "{note}");
    assert!(of(&["show", "boiler.md"]).1.contains("4711"));
    let (code, _, why) = of(&["show", "tank.md"]);
    assert!(code == 65 && why.contains("there is no document `tank.md`: `chimere documents list`"), "{why}");
    // Two of a name are told apart.
    of(&["add", home.path().join("boiler.md").to_str().unwrap(), "--collection", "papers"]);
    let (code, _, why) = of(&["remove", "boiler.md"]);
    assert!(code == 65 && why.contains("2 documents are called `boiler.md`: name one by its id"), "{why}");
    let id = why.split_whitespace().find(|word| word.starts_with("document-")).unwrap();
    told(&daemon, &["documents", "remove", id], "");
    let (code, said, _) = of(&["remove", "boiler.md"]);
    assert!(code == 0 && said.contains("is removed"), "{said}");
    let (code, said, note) = of(&["add", folder, "--all"]);
    assert!(code == 0 && said.lines().count() > 3 && !note.contains("--all takes"), "{said}{note}");
    let (_, _, note) = of(&["list", "--collection", "nowhere"]);
    assert!(note.contains("There are no documents in `nowhere`"), "{note}");
}
