//! The rules of a metrics page: the exposition format, a sentence of help for every family, units in the names.

use std::collections::{BTreeMap, BTreeSet};

/// Samples of a page by family; panics where a rule of the exposition format or of naming is broken.
pub fn lint(page: &str) -> BTreeMap<String, usize> {
    assert!(page.ends_with('\n'));
    let (mut help, mut kinds, mut seen) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
    let mut families = BTreeMap::new();
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
            assert!(help.insert(name.to_owned()), "second HELP of {name}");
            assert!(text.ends_with('.'), "the help of {name} is a sentence: {text:?}");
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "second TYPE of {name}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(seen.insert(series.to_owned()), "{series} twice");
        let name = series.split('{').next().unwrap();
        let base =
            ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).filter(|b| kinds.contains_key(*b));
        let family = base.unwrap_or(name);
        let kind = kinds.get(family).unwrap_or_else(|| panic!("{name} has no TYPE before it"));
        assert!(help.contains(family), "{family} has no HELP");
        assert!(family.starts_with("chimere_"), "{family}");
        assert_eq!(kind == "counter", family.ends_with("_total"), "{family} is a {kind}");
        assert_eq!(kind == "histogram", family.ends_with("_seconds"), "{family} is a {kind}: a duration has buckets");
        assert_ne!(kind, "untyped");
        *families.entry(family.to_owned()).or_insert(0) += 1;
    }
    families
}
