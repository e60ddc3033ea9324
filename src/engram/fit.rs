//! Which tables a model can use, and what to do about one that it cannot: a table holds the tokens of one tokenizer. The
//! same words in the log, in `chimere check`, `doctor` and `pipeline check`.

use super::learned::NAME;
use super::shelf::{Listed, Shelf};
use crate::pipeline::{Pipeline, PipelineSet};

/// What helps where a table was made for another tokenizer than the served one.
pub fn way_out(table: &Listed) -> String {
    let name = &table.name;
    if is_learned(name) {
        return "the job `engram_write` of the next night makes it anew for the served model".to_owned();
    }
    let own = if table.shipped { "the shipped tables are for nano; " } else { "" };
    format!("{own}`chimere engram build --name {name} --text FILE --model MODEL` makes one for the served model")
}

/// The beginning of a fingerprint, as `format::tokenizer_name` shows it.
fn short(fingerprint: &str) -> &str {
    fingerprint.get(..12).unwrap_or(fingerprint)
}

/// Why a table is not used with a model, and what helps; `None`: it is.
pub fn unfit(table: &Listed, tokenizer: &str) -> Option<String> {
    let (name, theirs, ours) = (&table.name, short(&table.tokenizer), short(tokenizer));
    let why = format!("the table `{name}` was made for the tokenizer {theirs}, but this model has {ours}");
    (table.tokenizer != tokenizer).then(|| format!("{why}: {}", way_out(table)))
}

/// A table that a night writes. Before the first night it is not there, and nobody need do anything.
fn is_learned(name: &str) -> bool {
    name == NAME || name.strip_prefix(NAME).is_some_and(|rest| rest.starts_with('-'))
}

/// What is wrong with the tables that a pipeline names, each with what helps. `tokenizer`: the served one's, if it is known.
pub fn complaints(pipeline: &Pipeline, shelf: &Shelf, tokenizer: Option<&str>) -> Vec<String> {
    let named = pipeline.engram.iter().flat_map(|engram| &engram.tables).filter(|name| !is_learned(name));
    let complaint = |name: &String| match shelf.tables.iter().find(|table| table.name == *name) {
        None => Some(format!(
            "there is no table `{name}`: `chimere engram build --name {name} --text FILE` makes it, `chimere engram list` \
             shows those that there are"
        )),
        Some(table) => tokenizer.and_then(|tokenizer| unfit(table, tokenizer)),
    };
    let of_route = |why: String| format!("the route `{}` answers without a table that it names: {why}", pipeline.name);
    named.filter_map(complaint).map(of_route).collect()
}

/// The tables that a model can use and those that it cannot. `Err`: a pipeline names one that it cannot use. `None`: there
/// are none.
pub fn told(shelf: &Shelf, tokenizer: &str, set: &PipelineSet) -> Option<Result<String, String>> {
    let wrong: Vec<String> = set.all().flat_map(|one| complaints(one, shelf, Some(tokenizer))).collect();
    if !wrong.is_empty() {
        return Some(Err(wrong.join("; ")));
    }
    let (fit, other): (Vec<_>, Vec<_>) = shelf.tables.iter().partition(|table| table.tokenizer == tokenizer);
    let names = |tables: &[&Listed]| tables.iter().map(|table| table.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut said = match fit.as_slice() {
        [] => "no table fits this model".to_owned(),
        fit => format!("this model can use {}", names(fit)),
    };
    if let [first, ..] = other.as_slice() {
        let rest = if other.len() > 1 { " (and so for the others)" } else { "" };
        said += &format!("; {} hold another tokenizer's tokens: {}{rest}", names(&other), way_out(first));
    }
    (!shelf.tables.is_empty()).then_some(Ok(said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Sources;

    fn table(name: &str, tokenizer: &str, shipped: bool) -> Listed {
        Listed { name: name.into(), tokenizer: tokenizer.repeat(32), shipped, ..Listed::default() }
    }

    #[test]
    fn a_table_of_another_tokenizer_is_told_with_what_helps_for_its_kind() {
        let shelf = Shelf {
            tables: vec![table("kine", "aa", true), table("learned", "aa", false), table("mine", "bb", false)],
            refused: Vec::new(),
        };
        let folder = tempfile::tempdir().unwrap();
        let set = |tables: &str| {
            let text =
                format!("name: garden\nversion: 1\nfollow_model: true\nengram: {{tables: [{tables}], lambda: 0.1}}\n");
            std::fs::write(folder.path().join("garden.yaml"), text).unwrap();
            PipelineSet::load(&Sources { shipped: None, overlay: Some(folder.path().to_owned()) }).unwrap()
        };
        let said = told(&shelf, &"bb".repeat(32), &set("mine, learned")).unwrap().unwrap();
        assert!(said.starts_with("this model can use mine; kine, learned hold another tokenizer's tokens"), "{said}");
        assert!(said.contains("the shipped tables are for nano; `chimere engram build --name kine"), "{said}");
        for (tables, words) in [
            (
                "kine",
                "the route `garden` answers without a table that it names: the table `kine` was made for the tokenizer",
            ),
            ("nowhere", "there is no table `nowhere`: `chimere engram build --name nowhere"),
        ] {
            let wrong = told(&shelf, &"bb".repeat(32), &set(tables)).unwrap().unwrap_err();
            assert!(wrong.contains(words), "{wrong}");
        }
        assert!(way_out(&shelf.tables[1]).contains("engram_write"));
        assert!(told(&shelf, &"aa".repeat(32), &set("kine")).unwrap().is_ok());
        assert_eq!(told(&Shelf::default(), "aa", &set("learned")), None);
    }
}
