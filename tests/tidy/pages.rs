//! The pages that people read. No sentence is longer than a breath, no cell longer than two lines, and no link
//! leads nowhere. The files of the table "to change X, open Y" exist. Headers of modules keep to the same
//! sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{check, root};

const SENTENCE_WORDS_MAX: usize = 30;
const CELL_CHARS_MAX: usize = 160;
/// Rows of the table in ARCHITECTURE.md.
const TABLE_ROWS_MIN: usize = 100;
/// Folders that hold no page of ours.
const SKIPPED: [&str; 4] = ["target", "node_modules", "shared", "corpus"];
/// Endings of the files whose words for a reader may name a page.
const SOURCES: [&str; 8] = ["rs", "cu", "cuh", "toml", "yaml", "sh", "py", "mjs"];

/// A page, or a source that names one.
struct Page {
    /// From the root of the repository.
    path: String,
    text: String,
}

/// What a page consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Heading,
    Paragraph,
    Cell,
}

struct Block {
    line: usize,
    kind: Kind,
    text: String,
}

fn files(extensions: &[&str]) -> Vec<Page> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !SKIPPED.contains(&name.as_str()) && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| extensions.iter().any(|known| e == *known)) {
                let path = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
                // What is no text is no page.
                let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
                found.push(Page { path, text });
            }
        }
    }
    found
}

fn pages() -> Vec<Page> {
    let found = files(&["md"]);
    assert!(found.len() > 25, "{} pages found", found.len());
    found
}

/// The text of an item of a list, without its mark.
fn item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = match line.strip_prefix(['-', '*']) {
        Some(rest) => rest,
        None if digits > 0 => line[digits..].strip_prefix('.')?,
        None => return None,
    };
    rest.strip_prefix(' ')
}

/// The cells of a row; a bar behind a backslash is text.
fn cells(row: &str) -> Vec<String> {
    let (mut cells, mut cell, mut escaped) = (Vec::new(), String::new(), false);
    for c in row.trim().trim_start_matches('|').chars() {
        match c {
            '|' if !escaped => cells.push(std::mem::take(&mut cell)),
            _ => cell.push(c),
        }
        escaped = c == '\\';
    }
    cells
}

/// Code blocks are left out: fences, and lines that four spaces begin behind an empty one.
fn blocks(text: &str) -> Vec<Block> {
    let (mut out, mut fenced, mut indented, mut empty) = (Vec::new(), false, false, true);
    let mut open: Option<Block> = None;
    for (n, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line)) {
        let fence = line.trim_start().starts_with("```");
        indented = line.starts_with("    ") && (indented || empty) && item(line).is_none();
        let ends = fence || fenced || indented || line.trim().is_empty() || line.starts_with(['|', '#']);
        if ends || item(line).is_some() {
            out.extend(open.take());
        }
        empty = line.trim().is_empty();
        if fence {
            fenced = !fenced;
        } else if fenced || indented || empty {
        } else if line.starts_with('|') {
            out.extend(cells(line).into_iter().map(|text| Block { line: n, kind: Kind::Cell, text }));
        } else if let Some(heading) = line.strip_prefix('#') {
            let text = heading.trim_start_matches('#').trim().to_owned();
            out.push(Block { line: n, kind: Kind::Heading, text });
        } else if let Some(block) = &mut open {
            block.text.push(' ');
            block.text.push_str(line.trim());
        } else {
            let text = item(line).unwrap_or(line).trim().to_owned();
            open = Some(Block { line: n, kind: Kind::Paragraph, text });
        }
    }
    out.extend(open);
    out
}

/// Targets of the links and pictures, and the text as a reader sees it.
fn read_links(text: &str) -> (String, Vec<String>) {
    let (mut shown, mut targets, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, behind)) = after.split_once(')') else { break };
        let opened = before.rfind('[').unwrap_or(before.len());
        shown.push_str(before[..opened].trim_end_matches('!'));
        shown.push_str(before[opened..].trim_start_matches('['));
        targets.push(target.split(' ').next().unwrap_or_default().to_owned());
        rest = behind;
    }
    shown.push_str(rest);
    (shown, targets)
}

/// With a word in the place of each piece of code.
fn without_code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    // An odd mark at the end opens nothing.
    let whole = parts.len() % 2 == 1;
    let code = |i: usize| i % 2 == 1 && (whole || i + 1 < parts.len());
    parts.iter().enumerate().map(|(i, part)| if code(i) { "Code" } else { part }).collect()
}

fn sentences(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let (mut out, mut begin, mut i) = (Vec::new(), 0, 0);
    while i < chars.len() {
        if !matches!(chars[i], '.' | '!' | '?') {
            i += 1;
            continue;
        }
        let mut after = i + 1;
        while after < chars.len() && matches!(chars[after], '"' | '\'' | '”' | ')' | '*' | '_' | ']') {
            after += 1;
        }
        let bold = chars[i + 1..after].contains(&'*');
        let next = chars[after.min(chars.len())..].iter().find(|c| !c.is_whitespace());
        let gap = chars.get(after).is_none_or(|c| c.is_whitespace());
        if gap && (bold || next.is_none_or(|c| !c.is_lowercase())) {
            out.push(chars[begin..after].iter().collect());
            begin = after;
        }
        i = after;
    }
    out.push(chars[begin..].iter().collect());
    out
}

fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

/// What of a page is too long.
fn too_long(page: &Page) -> Vec<String> {
    let mut wrong = Vec::new();
    for block in blocks(&page.text) {
        let (shown, _) = read_links(&block.text);
        let at = format!("{}:{}", page.path, block.line);
        let chars = shown.trim().chars().count();
        if block.kind == Kind::Cell && chars > CELL_CHARS_MAX {
            wrong.push(format!("{at}: a cell of {chars} characters, more than {CELL_CHARS_MAX}: {shown}"));
        }
        for sentence in sentences(&without_code(&shown)) {
            let n = words(&sentence);
            if n > SENTENCE_WORDS_MAX {
                wrong.push(format!("{at}: a sentence of {n} words, more than {SENTENCE_WORDS_MAX}:{sentence}"));
            }
        }
    }
    wrong
}

/// The names that a page's headings can be linked by, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = blocks(text).into_iter().filter(|block| block.kind == Kind::Heading);
    let slug = |text: &str| -> String {
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        read_links(text).0.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings
        .map(|block| {
            let name = slug(&block.text);
            let times = seen.entry(name.clone()).or_default();
            *times += 1;
            if *times == 1 { name } else { format!("{name}-{}", *times - 1) }
        })
        .collect()
}

/// `path` as it lies in the repository, without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

/// Links of `page` that lead nowhere.
fn dead_links(page: &Page, anchors_of: impl Fn(&str) -> Option<BTreeSet<String>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for block in blocks(&page.text) {
        let without = without_code(&block.text);
        for target in read_links(&without).1.iter().filter(|target| !target.contains("://")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
            let to = if path.is_empty() { PathBuf::from(&page.path) } else { plain(&folder.join(path)) };
            let to = to.to_string_lossy();
            let at = format!("{}:{}: [{target}]", page.path, block.line);
            if !root().join(&*to).exists() {
                wrong.push(format!("{at}: there is no {to}"));
            } else if !anchor.is_empty() && anchors_of(&to).is_some_and(|known| !known.contains(anchor)) {
                wrong.push(format!("{at}: {to} has no heading #{anchor}"));
            }
        }
    }
    wrong
}

#[test]
fn sentences_fit_a_breath_and_cells_a_line() {
    let pages = pages();
    check(pages.iter().flat_map(too_long).collect());
}

/// The `//!` of a module as a page of its own.
fn header(source: &Page) -> Page {
    let lines = source.text.lines().map_while(|line| line.strip_prefix("//!"));
    let text = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
    Page { path: source.path.clone(), text }
}

/// Signs are no words: a sentence with a formula is left out.
#[test]
fn headers_of_modules_fit_a_breath() {
    let headers: Vec<Page> = files(&["rs"]).iter().map(header).collect();
    assert!(headers.iter().filter(|page| !page.text.is_empty()).count() > 400, "{} sources", headers.len());
    check(headers.iter().flat_map(too_long).filter(|wrong| !wrong.contains(['=', '←'])).collect());
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let known: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    check(pages.iter().flat_map(|page| dead_links(page, |to| known.get(to).cloned())).collect());
}

/// A source that sends its reader to a page of `docs` names one that is there.
#[test]
fn pages_that_sources_name_are_there() {
    let mut wrong = Vec::new();
    for source in files(&SOURCES).iter().filter(|source| source.path != "tests/tidy/pages.rs") {
        for (n, line) in source.text.lines().enumerate() {
            for (at, _) in line.match_indices("docs/") {
                let end = line[at..].find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '/' | '.' | '-' | '_'));
                let name = end.map_or(&line[at..], |end| &line[at..at + end]).trim_end_matches('.');
                if name.ends_with(".md") && !root().join(name).exists() {
                    wrong.push(format!("{}:{}: there is no {name}", source.path, n + 1));
                }
            }
        }
    }
    check(wrong);
}

/// The variants of the enum that `derive`s subcommands in a file of `src/cli`, as the command line spells them.
fn subcommands(name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(format!("src/cli/{name}.rs"))).unwrap_or_default();
    let Some((_, body)) = text.split_once("Subcommand)]\n") else { return BTreeSet::new() };
    let variants = body.lines().take_while(|line| *line != "}").filter_map(|line| {
        let name = line.strip_prefix("    ")?;
        let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
        name.starts_with(|c: char| c.is_ascii_uppercase()).then(|| name[..end].to_lowercase())
    });
    variants.collect()
}

/// The commands named in a text that do not exist: `chimere WORD`, and `chimere WORD WORD` where the first has some.
fn unknown_commands(text: &str) -> Vec<String> {
    let commands = subcommands("mod");
    assert!(commands.len() > 15, "{commands:?}");
    let named = text.split("`chimere ").skip(1).filter_map(|rest| rest.split_once('`'));
    named
        .map(|(command, _)| command)
        .filter(|command| {
            let mut words = command.split_whitespace();
            let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
            let Some(first) = words.next().filter(plain) else { return false };
            let inner = subcommands(first);
            let second = words.next().filter(plain);
            !matches!(first, "help" | "serve") && !commands.contains(first)
                || second.is_some_and(|word| !inner.is_empty() && !inner.contains(word))
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn commands_that_pages_and_messages_name_exist() {
    let mut wrong = Vec::new();
    for source in files(&["md", "rs", "yaml", "toml"]).iter().filter(|source| source.path != "tests/tidy/pages.rs") {
        wrong.extend(unknown_commands(&source.text).iter().map(|name| format!("{}: `chimere {name}`", source.path)));
    }
    check(wrong);
    assert_eq!(
        unknown_commands("`chimere engram sign` `chimere night run --now` `chimere chat hello` `chimere no`"),
        ["engram sign", "no"]
    );
}

#[test]
fn the_table_of_changes_names_files_that_are_there() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let (_, table) = page.split_once("## To change X, open Y").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains("| `"));
    let (mut wrong, mut counted) = (Vec::new(), 0);
    for row in rows {
        counted += 1;
        for path in cells(row)[1].split('`').skip(1).step_by(2).filter(|word| word.contains('/')) {
            if !root().join(path).is_file() {
                wrong.push(format!("ARCHITECTURE.md: there is no {path}: {row}"));
            }
        }
    }
    assert!(counted >= TABLE_ROWS_MIN, "{counted} rows");
    check(wrong);
}

#[test]
fn what_is_too_long_or_leads_nowhere_is_seen() {
    let long = "word ".repeat(31);
    let page = |text: String| Page { path: "docs/page.md".to_owned(), text };
    for text in [format!("{long}."), format!("- {long}\n"), format!("| a | {long}|\n"), format!("# {long}")] {
        assert_eq!(too_long(&page(text.clone())).len(), 1, "{text}");
    }
    assert_eq!(too_long(&page(format!("| {} |", "x".repeat(161)))).len(), 1);
    assert_eq!(too_long(&header(&page(format!("//! {long}\n//! {long}\nuse x;\n//! {long}")))).len(), 1);
    assert_eq!(header(&page("//! One.\n//!\n//! Two.\nfn x() {}".to_owned())).text, "One.\n\nTwo.");
    let good = [
        format!("```\n{long}\n```\n\n    {long}\n\n`{long}`"),
        format!("{}. {}", "word ".repeat(20), "More ".repeat(20)),
        format!("**{}.** {}", "Word ".repeat(20), "more ".repeat(20)),
        format!("- {}\n- {}", "word ".repeat(20), "more ".repeat(20)),
        format!("| [x](https://example.org/{}) |", "x".repeat(200)),
    ];
    for text in good {
        assert_eq!(too_long(&page(text.clone())), Vec::<String>::new(), "{text}");
    }
    let links = |text: &str| dead_links(&page(text.to_owned()), |_| Some(["there".to_owned()].into())).len();
    assert_eq!(links("[a](../README.md), [b](../README.md#there), [c](https://x.org), `[d](no)`"), 0);
    assert_eq!(links("[a](no.md) and ![b](no.png)"), 2);
    assert_eq!(links("[a](../README.md#nowhere)"), 1);
    assert_eq!(
        anchors("# One `two`, three\n\n## A\n\n## A\n"),
        ["a", "a-1", "one-two-three"].map(str::to_owned).into()
    );
}
