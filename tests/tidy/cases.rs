//! Each kind of fault that people met has a test, which the page of them names.

use std::fs;

use super::root;

/// Kinds of inputs on the page.
const KINDS_MIN: usize = 64;

#[test]
fn every_kind_of_fault_that_people_met_has_its_tests() {
    let page = fs::read_to_string(root().join("tests/cases.md")).unwrap();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with("- ")).collect();
    assert!(lines.len() >= KINDS_MIN, "{} kinds", lines.len());
    for line in lines {
        let named: Vec<(&str, &str)> = line.split('`').filter_map(|word| word.split_once(".rs::")).collect();
        assert!(!named.is_empty(), "no test: {line}");
        for (file, test) in named {
            let text = fs::read_to_string(root().join(format!("{file}.rs"))).unwrap_or_default();
            let at = text.find(&format!("fn {test}("));
            // Its attributes stand behind what ends before it.
            let before = at.map_or("", |at| &text[text[..at].rfind("}\n").unwrap_or(0)..at]);
            assert!(before.contains("test"), "{file}.rs::{test} is no test: {line}");
        }
    }
}
