//! Which tables a model can use, and what to do about one that it cannot: a table holds the tokens of one tokenizer. The
//! same words in the log, in `chimere check`, `doctor` and `pipeline check`.

use super::file;
use super::learned::NAME;
use super::shelf::{Listed, Refused, Shelf};
use crate::pipeline::{Pipeline, PipelineSet};

/// Where a table comes from, and so what helps where it does not fit the served model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shipped,
    Learned,
    Own,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Shipped, Kind::Learned, Kind::Own];

    fn of(table: &Listed) -> Kind {
        match table.shipped {
            _ if is_learned(&table.name) => Kind::Learned,
            true => Kind::Shipped,
            false => Kind::Own,
        }
    }

    /// What helps these tables of one kind.
    fn way_out(self, names: &[&str]) -> String {
        let (name, them) = match names {
            [one] => (*one, "it"),
            _ => ("NAME", "them"),
        };
        let build =
            format!("`chimere engram build --name {name} --text FILE --model MODEL` makes one for the served model");
        match self {
            Kind::Learned => {
                format!("the job `engram_write` of the next night makes {them} anew for the served model")
            }
            Kind::Shipped => format!("the shipped tables are for nano; {build}"),
            Kind::Own => build,
        }
    }
}

/// What helps where a table was made for another tokenizer than the served one.
pub fn way_out(table: &Listed) -> String {
    Kind::of(table).way_out(&[&table.name])
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
pub fn is_learned(name: &str) -> bool {
    name == NAME || name.strip_prefix(NAME).is_some_and(|rest| rest.starts_with('-'))
}

/// What is wrong with the tables that a pipeline names, each with what helps. `tokenizer`: the served one's, if it is known.
pub fn complaints(pipeline: &Pipeline, shelf: &Shelf, tokenizer: Option<&str>) -> Vec<String> {
    let named = pipeline.engram.iter().flat_map(|engram| &engram.tables).filter(|name| !is_learned(name));
    let complaint = |name: &String| match shelf.tables.iter().find(|table| table.name == *name) {
        None => Some(absent(name, shelf)),
        Some(table) => tokenizer.and_then(|tokenizer| unfit(table, tokenizer)),
    };
    let of_route = |why: String| format!("the route `{}` answers without a table that it names: {why}", pipeline.name);
    named.filter_map(complaint).map(of_route).collect()
}

/// Why a table cannot be used by anybody: its file is refused, or there is none.
fn absent(name: &str, shelf: &Shelf) -> String {
    match shelf.refused(name) {
        Some(refused) => format!("the table `{name}` is refused, {}: {}", refused.path.display(), refused.message),
        None => format!(
            "there is no table `{name}`: `chimere engram build --name {name} --text FILE` makes it, `chimere engram list` \
             shows those that there are"
        ),
    }
}

/// A file that nobody is served from, with what helps.
pub fn not_used(refused: &Refused) -> String {
    let (shown, why) = (refused.path.display(), &refused.message);
    let Some(name) = file::name_of(&refused.path) else { return format!("no own table is used: {shown}: {why}") };
    let helps = match is_learned(name) {
        _ if file::is_packed(&refused.path) => "it came with the program: install this release again".to_owned(),
        true => "remove the file: the job `engram_write` of the next night makes it anew".to_owned(),
        false => format!("remove the file, or make it anew with `chimere engram build --name {name} --text FILE`"),
    };
    format!("the table `{name}` is refused, {shown}: {why}: {helps}")
}

/// The tables that a model can use, and those that it cannot. `Err`: a file is refused, or a pipeline names a table that
/// cannot be used. `None`: there are none.
pub fn told(shelf: &Shelf, tokenizer: &str, set: &PipelineSet) -> Option<Result<String, String>> {
    let wrong: Vec<String> = set.all().flat_map(|one| complaints(one, shelf, Some(tokenizer))).collect();
    // One that a route names is told with the route.
    let told = |path: &str| wrong.iter().any(|wrong| wrong.contains(path));
    let refused = shelf.refused.iter().filter(|refused| !told(&refused.path.display().to_string())).map(not_used);
    let wrong: Vec<String> = refused.chain(wrong.iter().cloned()).collect();
    if !wrong.is_empty() {
        return Some(Err(wrong.join("; ")));
    }
    if shelf.tables.is_empty() {
        return None;
    }
    let (fit, other): (Vec<_>, Vec<_>) = shelf.tables.iter().partition(|table| table.tokenizer == tokenizer);
    let mut said = match names(&fit).as_slice() {
        [] => "no table fits this model".to_owned(),
        fit => format!("this model can use {}", fit.join(", ")),
    };
    by_kind(&other).iter().for_each(|more| said += &format!("; {more}"));
    Some(Ok(said))
}

/// Of tables that a model cannot use, by their kind: what helps.
pub fn by_kind(unfit: &[&Listed]) -> Vec<String> {
    let told = |kind: Kind| {
        let of_kind: Vec<&Listed> = unfit.iter().filter(|table| Kind::of(table) == kind).copied().collect();
        let names = names(&of_kind);
        let hold = if names.len() == 1 { "holds" } else { "hold" };
        let what_helps = || format!("{} {hold} another tokenizer's tokens: {}", names.join(", "), kind.way_out(&names));
        (!names.is_empty()).then(what_helps)
    };
    Kind::ALL.into_iter().filter_map(told).collect()
}

fn names<'a>(tables: &[&'a Listed]) -> Vec<&'a str> {
    tables.iter().map(|table| table.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Sources;

    fn table(name: &str, tokenizer: &str, shipped: bool) -> Listed {
        Listed { name: name.into(), tokenizer: tokenizer.repeat(32), shipped, ..Listed::default() }
    }

    fn garden(tables: &str) -> PipelineSet {
        let folder = tempfile::tempdir().unwrap();
        let text =
            format!("name: garden\nversion: 1\nfollow_model: true\nengram: {{tables: [{tables}], lambda: 0.1}}\n");
        std::fs::write(folder.path().join("garden.yaml"), text).unwrap();
        PipelineSet::load(&Sources { shipped: None, overlay: Some(folder.path().to_owned()) }).unwrap()
    }

    #[test]
    fn tables_of_another_tokenizer_are_told_by_kind_with_what_helps_each() {
        let own = |name: &str| table(name, "aa", false);
        let with = |tables: Vec<Listed>| Shelf { tables, refused: Vec::new() };
        let said = |tables| told(&with(tables), &"bb".repeat(32), &garden("learned")).unwrap().unwrap();
        let all = vec![table("code", "aa", true), table("kine", "aa", true), own("learned"), own("mine")];
        assert_eq!(
            said([all.clone(), vec![table("fits", "bb", false)]].concat()),
            "this model can use fits; code, kine hold another tokenizer's tokens: the shipped tables are for nano; \
             `chimere engram build --name NAME --text FILE --model MODEL` makes one for the served model; \
             learned holds another tokenizer's tokens: the job `engram_write` of the next night makes it anew for the served \
             model; mine holds another tokenizer's tokens: `chimere engram build --name mine --text FILE --model MODEL` \
             makes one for the served model"
        );
        assert_eq!(
            said(vec![own("learned"), own("learned-a1")]),
            "no table fits this model; learned, learned-a1 hold another tokenizer's tokens: the job `engram_write` of the next \
             night makes them anew for the served model"
        );
        assert!(told(&with(all), &"aa".repeat(32), &garden("kine")).unwrap().is_ok());
        assert_eq!(told(&Shelf::default(), "aa", &garden("learned")), None);
    }

    #[test]
    fn a_pipeline_that_names_a_table_that_cannot_be_used_is_told_why() {
        let refused = Refused { path: "/state/engram/herbs.engr".into(), message: "it is not signed".into() };
        let shelf = Shelf { tables: vec![table("kine", "aa", true)], refused: vec![refused] };
        for (tables, words) in [
            (
                "kine",
                "the route `garden` answers without a table that it names: the table `kine` was made for the tokenizer",
            ),
            ("nowhere", "there is no table `nowhere`: `chimere engram build --name nowhere"),
            ("herbs", "the table `herbs` is refused, /state/engram/herbs.engr: it is not signed"),
        ] {
            let wrong = told(&shelf, &"bb".repeat(32), &garden(tables)).unwrap().unwrap_err();
            assert!(wrong.contains(words), "{wrong}");
        }
        // Nobody names it, and whoever made it believes that it is used.
        let wrong = told(&shelf, &"aa".repeat(32), &garden("kine")).unwrap().unwrap_err();
        let helps = "remove the file, or make it anew with `chimere engram build --name herbs --text FILE`";
        assert_eq!(wrong, format!("the table `herbs` is refused, /state/engram/herbs.engr: it is not signed: {helps}"));
    }
}
