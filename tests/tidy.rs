//! The invariants of ARCHITECTURE.md that can be read off the source. Among them: who may import what, no
//! `unsafe` outside `ffi`, a header on every file, readable sizes, one reader of the environment.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/cases.rs"]
mod cases;
#[path = "tidy/pages.rs"]
mod pages;

/// A file longer than this is two files.
const LINES_MAX: usize = 500;

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Lines of code without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(n, l)| (n + 1, l)).filter(|(_, l)| !l.trim_start().starts_with("//"))
    }

    fn under(&self, prefixes: &[&str]) -> bool {
        prefixes.iter().any(|p| self.path.starts_with(p))
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_none_or(|n| n != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                found.push(Source { path: name, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    assert!(!found.is_empty(), "no sources under {folder}");
    found
}

/// The safe code: the daemon's and the core's.
fn safe() -> Vec<Source> {
    let mut files = sources("src");
    files.extend(sources("core/src"));
    files
}

/// True if `line` names the crate `name` as a path (`name::…` or `use name;`).
fn names_crate(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + name.len()..];
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '"') && after.starts_with("::")
    })
}

/// `crates` may be named only by files under `allowed`.
fn only(files: &[Source], crates: &[&str], allowed: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for file in files.iter().filter(|f| !f.under(allowed)) {
        for (n, line) in file.code() {
            if let Some(name) = crates.iter().find(|name| names_crate(line, name)) {
                wrong.push(format!("{}:{n}: `{name}` belongs to {allowed:?} alone", file.path));
            }
        }
    }
    wrong
}

fn check(wrong: Vec<String>) {
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn each_library_has_its_place() {
    let files = safe();
    let mut wrong = only(&files, &["actix", "actix_rt"], &["src/actors", "src/daemon"]);
    wrong.extend(only(&files, &["axum", "tower", "tower_http"], &["src/http"]));
    wrong.extend(only(&files, &["hyper", "hyper_util"], &["src/http", "src/web/wire.rs"]));
    wrong.extend(only(&files, &["tokio_rustls", "rustls_native_certs"], &["src/web/wire.rs", "src/web/tests.rs"]));
    wrong.extend(only(&files, &["sled"], &["src/store"]));
    wrong.extend(only(&files, &["cudarc", "llama_cpp_sys_2", "memmap2"], &[]));
    wrong.extend(only(&files, &["anyhow"], &["src/main.rs", "src/cli"]));
    check(wrong);
}

/// Cargo keeps the daemon's modules out of `chimere-core`; these are the names that its own dependencies would let in.
#[test]
fn the_core_knows_no_runtime_and_no_wall_clock() {
    let mut wrong = Vec::new();
    for file in sources("core/src") {
        for (n, line) in file.code() {
            for word in ["SystemTime", "Timestamp::now", "Zoned::now", "tokio::", "actix", "axum::"] {
                if line.contains(word) {
                    wrong.push(format!("{}:{n}: the core must not know {word}", file.path));
                }
            }
        }
    }
    check(wrong);
}

#[test]
fn unsafe_code_lives_in_ffi_alone() {
    let mut wrong = Vec::new();
    for top in ["core/src/lib.rs", "src/lib.rs", "src/main.rs"] {
        if !fs::read_to_string(root().join(top)).unwrap().contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("{top}: says #![forbid(unsafe_code)]"));
        }
    }
    for file in safe() {
        for (n, line) in file.code() {
            if line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl") {
                wrong.push(format!("{}:{n}: unsafe outside ffi", file.path));
            }
        }
    }
    check(wrong);
}

#[test]
fn every_file_opens_with_its_reason_and_fits() {
    let mut wrong = Vec::new();
    for file in safe().iter().chain(&sources("ffi")) {
        if !file.text.starts_with("//!") {
            wrong.push(format!("{}: starts with `//!` saying why it exists", file.path));
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            wrong.push(format!("{}: {lines} lines, more than {LINES_MAX}", file.path));
        }
    }
    check(wrong);
}

#[test]
fn one_reader_of_the_environment_and_no_silent_sends() {
    let mut wrong = Vec::new();
    for file in safe().iter().filter(|f| f.path != "src/config.rs" && !f.path.starts_with("src/config/")) {
        for (n, line) in file.code() {
            if line.contains("env::var") {
                wrong.push(format!("{}:{n}: only config reads the environment", file.path));
            }
            if line.contains(".do_send(") {
                wrong.push(format!("{}:{n}: do_send drops messages silently", file.path));
            }
        }
    }
    check(wrong);
}

/// One file dials out, for the search of the web that an owner configures; and only our own program is started.
#[test]
fn nothing_dials_out_and_nothing_else_is_started() {
    let mut wrong = Vec::new();
    let starters = [
        "src/cli/",
        "src/actors/inference/life.rs",
        "src/actors/trainer/child.rs",
        "src/documents/apart.rs",
        "src/store/salvage/apart.rs",
        "src/tools/calculate.rs",
        "core/src/engine/apart.rs",
    ];
    for file in sources("src").iter().chain(&sources("core")).filter(|f| !f.path.contains("tests")) {
        let code = file.code().take_while(|(_, line)| !line.contains("#[cfg(test)]"));
        for (n, line) in code {
            let dials = [
                "reqwest",
                "TcpStream::connect",
                "UdpSocket",
                "UnixStream::connect",
                "TcpSocket",
                "lookup_host",
                "hyper::client",
            ];
            let dialled = dials.iter().find(|word| line.contains(**word));
            // The command line dials its own daemon.
            if let Some(word) = dialled.filter(|_| !file.under(&["src/cli/", "src/web/net.rs", "src/web/wire.rs"])) {
                wrong.push(format!("{}:{n}: {word}: only `src/web/net.rs` and the command line dial", file.path));
            }
            let starts = line.contains("Command::new(") || line.contains("Process::new(");
            if starts && !file.under(&starters) {
                wrong.push(format!("{}:{n}: starts a program", file.path));
            }
        }
    }
    check(wrong);
}

/// The page of promises and attacks names the tests of each.
#[test]
fn every_promise_and_every_attack_has_its_test() {
    let page = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let (mut wrong, mut named) = (Vec::new(), 0);
    for section in page.split("\n### ").skip(1) {
        let title = section.lines().next().unwrap_or_default();
        let tests: Vec<&str> = section.lines().filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`')).collect();
        if tests.is_empty() {
            wrong.push(format!("no test: {title}"));
        }
        for test in tests {
            named += 1;
            let Some((path, name)) = test.split_once("::") else {
                wrong.push(format!("`{test}` is no `file::test`"));
                continue;
            };
            let text = fs::read_to_string(root().join(path)).unwrap_or_default();
            if !text.contains(&format!("fn {name}(")) && !text.contains(&format!("test('{name}")) {
                wrong.push(format!("{path} has no test {name}"));
            }
        }
    }
    assert!(named > 80 && page.matches("\n### ").count() >= 28, "{named} tests named");
    check(wrong);
}

/// The codes of errors: those that the door gives, those in the documentation and those that a test sees through a socket.
#[test]
fn every_code_of_an_error_is_documented_and_seen_by_a_test() {
    let quoted = |text: &str, before: &str| -> std::collections::BTreeSet<String> {
        text.split(before).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
    };
    let code: String = sources("src/http").iter().map(|file| file.text.as_str()).collect();
    let mut given = quoted(&code, "code(\"");
    // What hyper refuses by itself has its codes in a table.
    let bare = sources("src/http").into_iter().find(|file| file.path.ends_with("/bare.rs"));
    given.extend(bare.iter().flat_map(|file| quoted(&file.text, "=> (\"")));
    assert!(given.len() > 25, "{given:?}");
    let documented = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let (table, _) = documented.split_once("## Routes").unwrap();
    let rows: Vec<&str> = table.lines().filter(|l| l.starts_with("| 4") || l.starts_with("| 5")).collect();
    let words = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2));
    let listed: std::collections::BTreeSet<String> =
        words.filter(|w| w.contains('_') || given.contains(*w)).map(str::to_owned).collect();
    let types =
        ["invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"];
    let mut wrong: Vec<String> = given.difference(&listed).map(|code| format!("docs/api.md lacks {code}")).collect();
    let unknown = listed.difference(&given).filter(|word| !types.contains(&word.as_str()));
    wrong.extend(unknown.map(|word| format!("docs/api.md: nothing gives {word}")));
    let tests: String =
        [sources("tests/http"), sources("tests/daemon")].iter().flatten().map(|file| file.text.as_str()).collect();
    wrong.extend(given.iter().filter(|c| !tests.contains(&format!("\"{c}\""))).map(|c| format!("no test sees {c}")));
    check(wrong);
}

/// The names of metrics in a text.
fn metrics(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("\"chimere_").map(|(at, _)| {
        let rest = &text[at + 1..];
        &rest[..rest.find('"').unwrap_or(0)]
    })
}

#[test]
fn every_metric_has_a_unit_a_sentence_and_a_line_in_the_documentation() {
    let documented = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let mut wrong = Vec::new();
    let mut found = 0;
    // The command line reads metrics and makes none.
    for file in sources("src").iter().filter(|f| !f.under(&["src/cli"])) {
        let (code, _) = file.text.split_once("#[cfg(test)]").unwrap_or((&file.text, ""));
        let consts: Vec<(&str, &str)> = code
            .lines()
            .filter_map(|l| l.strip_prefix("const ")?.split_once(": &str = \"chimere_"))
            .map(|(constant, rest)| (constant, rest.trim_end_matches("\";")))
            .collect();
        let flat = code.split_whitespace().collect::<Vec<_>>().join(" ");
        for name in metrics(code).collect::<std::collections::BTreeSet<_>>() {
            found += 1;
            let constant = consts.iter().find(|(_, rest)| name.ends_with(rest)).map(|(constant, _)| *constant);
            let describes = |kind: &str| {
                let called = constant.map_or(format!("\"{name}\""), str::to_owned);
                let spaced = flat.replace("!( ", "!(");
                spaced.split_once(&format!("describe_{kind}!({called}, Unit::")).is_some_and(|(_, rest)| {
                    rest.split_once(')').is_some_and(|(told, _)| told.trim_end().ends_with(".\""))
                })
            };
            let kind = ["counter", "gauge", "histogram"].into_iter().find(|kind| describes(kind));
            match kind {
                None => wrong.push(format!("{}: {name} is described with its unit and a sentence", file.path)),
                Some(kind) => {
                    let suffix = (name.ends_with("_total"), name.ends_with("_seconds"));
                    if suffix != (kind == "counter", kind == "histogram") {
                        wrong.push(format!("{}: {name} is a {kind}", file.path));
                    }
                }
            }
            if !documented.contains(&format!("`{name}`")) {
                wrong.push(format!("docs/api.md: {name} is missing"));
            }
        }
    }
    assert!(found > 20, "{found} metrics found");
    check(wrong);
}

#[test]
fn the_dashboard_shows_metrics_and_labels_that_there_are() {
    let documented = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let code: String = sources("src").iter().map(|file| file.text.as_str()).collect();
    let text = fs::read_to_string(root().join("deploy/grafana.json")).unwrap();
    let board: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut wrong = Vec::new();
    let mut shown = std::collections::BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(panel["description"].as_str().is_some_and(|told| told.ends_with('.')), "{title} is described");
        for target in panel["targets"].as_array().unwrap() {
            let (expr, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
            for (at, _) in expr.match_indices("chimere_") {
                let name = expr[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
                let family = name.trim_end_matches("_bucket");
                shown.insert(family.to_owned());
                if !documented.contains(&format!("`{family}`")) {
                    wrong.push(format!("{title}: there is no {family}"));
                }
            }
            let grouped = expr.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
            let labels = grouped.flat_map(|list| list.split(", ")).map(str::to_owned);
            let told = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()).map(str::to_owned);
            for label in labels.chain(told).filter(|label| label != "le") {
                if !code.contains(&format!("\"{label}\" =>")) {
                    wrong.push(format!("{title}: no metric has the label {label}"));
                }
            }
        }
    }
    let all = documented.lines().filter_map(|line| line.strip_prefix("| `chimere_")?.split('`').next());
    wrong
        .extend(all.filter(|name| !shown.contains(&format!("chimere_{name}"))).map(|name| format!("{name}: no panel")));
    check(wrong);
}

/// `println!` and `eprintln!` panic when nobody reads: `cli::exit` has the words that do not.
#[test]
fn a_reader_that_left_panics_nobody() {
    let mut wrong = Vec::new();
    for folder in ["src", "core/src", "ffi/src"] {
        for file in sources(folder).iter().filter(|f| !f.path.ends_with("tests.rs")) {
            let code = file.code().take_while(|(_, line)| !line.contains("#[cfg(test)]"));
            for (n, line) in code.filter(|(_, line)| line.contains("println!(") || line.contains("print!(")) {
                wrong.push(format!("{}:{n}: {}", file.path, line.trim()));
            }
        }
    }
    check(wrong);
}

#[test]
fn nothing_is_marked_unfinished_and_no_path_of_a_builder_is_left() {
    let mut wrong = Vec::new();
    let home = Path::new("/").join("work").join("");
    for file in safe().iter().chain(&sources("ffi")) {
        for (n, line) in file.text.lines().enumerate() {
            for word in ["TODO", "FIXME", "XXX", "todo!(", "unimplemented!(", home.to_str().unwrap()] {
                if line.contains(word) {
                    wrong.push(format!("{}:{}: contains {word}", file.path, n + 1));
                }
            }
        }
    }
    check(wrong);
}

#[test]
fn names_crate_sees_paths_and_not_parts_of_words() {
    assert!(names_crate("use axum::Router;", "axum"));
    assert!(names_crate("    let x = sled::open(p)?;", "sled"));
    assert!(!names_crate("use my_axum::Router;", "axum"));
    assert!(!names_crate("let axum = 1;", "axum"));
}
