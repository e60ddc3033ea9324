//! `chimere documents add | list | show | remove | search | share | status`: files that a running daemon reads from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chimere::config::Config;
use chimere::documents::{DEFAULT_COLLECTION, EVERYBODY, FILE_BYTES_MAX};
use chimere::plural::counted;
use clap::Subcommand;
use serde_json::{Value, json};

use super::client::{Client, Target, note_damage, printable};
use super::exit::{EX_DATAERR, EX_NOINPUT, coded, note, say};
use super::serve::Place;
use walk::Found;

mod walk;

/// Documents read at once.
const PAGE: usize = 500;
/// Characters of a passage that a search shows.
const SHOWN_CHARS: usize = 200;

/// Ids of documents begin with this.
const ID: &str = "document-";
const NONE: &str = "There are no documents. `chimere documents add PATH` adds one.";

fn none_in(collection: &str) -> String {
    format!(
        "There are no documents in `{collection}`. `chimere documents status` shows the collections that there are."
    )
}

/// Files to read from: add, list, show, remove, search, share, status
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Cmd,
}

#[derive(Subcommand)]
enum Cmd {
    /// Add files, and the files of folders; one of the same name is replaced
    Add {
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// A collection of one's own
        #[arg(long, value_name = "NAME")]
        collection: Option<String>,
        /// Take hidden files too, and folders that programs made, as node_modules
        #[arg(long)]
        all: bool,
    },
    /// Print one line a document
    List {
        /// Only this collection, by name or id
        #[arg(long, value_name = "NAME")]
        collection: Option<String>,
    },
    /// Print a document's passages
    Show {
        /// Its name, or its id
        document: String,
    },
    /// Remove a document for good, or a whole collection
    #[command(group = clap::ArgGroup::new("what").required(true).args(["document", "collection"]))]
    Remove {
        /// Its name, or its id
        document: Option<String>,
        /// A collection of one's own by its name, or any by its id
        #[arg(long, value_name = "NAME")]
        collection: Option<String>,
    },
    /// Print the passages that bear on a question
    Search {
        question: String,
        /// Only this collection; given twice or more, all of them
        #[arg(long, value_name = "NAME")]
        collection: Vec<String>,
        /// Passages
        #[arg(short, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100))]
        k: u64,
    },
    /// Say who else may read a collection; only the owner names others
    #[command(group = clap::ArgGroup::new("whom").required(true).multiple(true).args(["with", "without", "everybody", "private"]))]
    Share {
        /// One's own by its name, or any by its id
        collection: String,
        /// A key that may read it too; given twice or more, all of them
        #[arg(long, value_name = "NAME")]
        with: Vec<String>,
        /// A key that may not any more; given twice or more, all of them
        #[arg(long, value_name = "NAME")]
        without: Vec<String>,
        /// Everybody
        #[arg(long, conflicts_with_all = ["with", "without", "private"])]
        everybody: bool,
        /// Nobody else
        #[arg(long, conflicts_with_all = ["with", "without"])]
        private: bool,
    },
    /// Print the collections with their documents and passages
    Status,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = Config::load(&args.place.flags())?;
    let client = Client::new(&args.target.at, config.http.listen)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(execute(args.command, &client, args.target.json))
}

async fn execute(command: Cmd, client: &Client, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Cmd::Add { paths, collection, all } => {
            let mut found = Found::default();
            paths.iter().try_for_each(|path| found.add(path, all))?;
            return add(client, &found, collection.as_deref(), json).await;
        }
        Cmd::List { collection } => {
            let documents = all(client, collection.as_deref()).await?;
            if documents.is_empty() {
                note!("{}", collection.map_or_else(|| NONE.to_owned(), |name| none_in(&name)));
            }
            match json {
                true => say!("{}", serde_json::to_string_pretty(&documents)?),
                false => documents.iter().for_each(|document| say!("{}", line(document))),
            }
        }
        Cmd::Show { document } => show(client, &named(client, &document).await?, json).await?,
        Cmd::Remove { document, collection } => {
            let path = match (&document, &collection) {
                (Some(document), _) => address(&["v1", "documents", &named(client, document).await?])?,
                (None, name) => address(&["v1", "collections", name.as_deref().unwrap_or_default()])?,
            };
            let gone = client.delete(&path).await?;
            match (json, gone["documents"].as_u64()) {
                (true, _) => say!("{gone}"),
                (false, Some(documents)) => say!("{} is removed, with {documents} documents", text(&gone["id"])),
                (false, None) => say!("{} is removed", text(&gone["id"])),
            }
        }
        Cmd::Search { question, collection, k } => {
            let mut body = json!({"query": question, "k": k});
            if !collection.is_empty() {
                body["collections"] = json!(collection);
            }
            let found = client.post("/v1/documents/search", &body).await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&found)?);
                return Ok(ExitCode::SUCCESS);
            }
            note_damage(&found);
            if let Some(why) = found["no_vectors"].as_str() {
                note!("Found by words alone: {}", printable(why));
            }
            let passages = found["data"].as_array().map(Vec::as_slice).unwrap_or_default();
            if passages.is_empty() {
                note!("Nothing was found.");
            }
            for (n, passage) in passages.iter().enumerate() {
                say!("{}. {}  {}", n + 1, place(passage), text(&passage["document"]));
                say!("   {}", short(&passage["text"], SHOWN_CHARS));
            }
        }
        Cmd::Share { collection, with, without, everybody, private } => {
            let readers = match (everybody, private) {
                (true, _) => vec![EVERYBODY.to_owned()],
                (_, true) => Vec::new(),
                _ => {
                    let mut readers = readers(client, &collection).await?;
                    readers.retain(|reader| !without.contains(reader));
                    readers.extend(with);
                    readers
                }
            };
            let shared = client.post("/v1/collections", &json!({"name": collection, "readers": readers})).await?;
            match json {
                true => say!("{shared}"),
                false => say!("{}", collection_line(&shared)),
            }
        }
        Cmd::Status => {
            let told = client.get("/v1/collections").await?;
            note_damage(&told);
            if told["data"].as_array().is_none_or(Vec::is_empty) {
                note!("{NONE}");
            }
            match json {
                true => say!("{}", serde_json::to_string_pretty(&told["data"])?),
                false => told["data"].as_array().into_iter().flatten().for_each(|collection| {
                    say!("{}", collection_line(collection));
                    folder_lines(&collection["folder"]).iter().for_each(|line| say!("  {line}"));
                }),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds what it can, and says at the end which files it could not.
async fn add(client: &Client, found: &Found, collection: Option<&str>, json: bool) -> anyhow::Result<ExitCode> {
    let (files, mut refused) = (&found.files, 0);
    if let Some(passed) = found.passed_over() {
        note!("{passed}");
    }
    if files.is_empty() {
        return Err(coded(
            EX_NOINPUT,
            "there is no file of a known kind in it: `chimere documents add FILE` names them",
        ));
    }
    for (path, name) in files {
        let sent = match body(path, name, collection) {
            Ok(body) => client.post("/v1/documents", &body).await,
            Err(error) => Err(error),
        };
        match sent {
            Ok(document) if json => say!("{document}"),
            Ok(document) => {
                let what = match (document["unchanged"] == true, document["replaced"].is_string()) {
                    (true, _) => "  (as it was)",
                    (_, true) => "  (replaced)",
                    _ => "",
                };
                say!("{}{what}", line(&document));
            }
            // Of one file that is the answer; of many the others are added all the same.
            Err(error) if files.len() == 1 => return Err(error),
            Err(error) => {
                refused += 1;
                note!("{}: {error:#}", printable(&path.display().to_string()));
            }
        }
    }
    if refused == files.len() {
        return Err(coded(EX_DATAERR, "none of the files was added"));
    }
    Ok(if refused > 0 { ExitCode::from(EX_DATAERR) } else { ExitCode::SUCCESS })
}

fn body(path: &Path, name: &str, collection: Option<&str>) -> anyhow::Result<Value> {
    let missing = |error: std::io::Error| coded(EX_NOINPUT, format!("cannot read {}: {error}", path.display()));
    let found = fs::metadata(path).map_err(missing)?;
    if !found.is_file() {
        return Err(coded(EX_NOINPUT, format!("{} is no plain file", path.display())));
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(coded(EX_DATAERR, format!("{} is larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    let mut body = json!({"name": name, "base64": STANDARD.encode(fs::read(path).map_err(missing)?)});
    if let Some(collection) = collection {
        body["collection"] = json!(collection);
    }
    Ok(body)
}

/// The id of the document that was named, by its id or by its name.
async fn named(client: &Client, given: &str) -> anyhow::Result<String> {
    // A name ends as a file does.
    if given.starts_with(ID) && !given.contains('.') {
        return Ok(given.to_owned());
    }
    let documents = all(client, None).await?;
    let called: Vec<&Value> = documents.iter().filter(|document| document["name"] == given).collect();
    match called.as_slice() {
        [one] => Ok(text(&one["id"])),
        [] => {
            let message = format!("there is no document `{given}`: `chimere documents list` shows names and ids");
            Err(coded(EX_DATAERR, message))
        }
        several => {
            let lines: Vec<String> = several.iter().map(|document| line(document)).collect();
            let message =
                format!("{} documents are called `{given}`: name one by its id\n{}", lines.len(), lines.join("\n"));
            Err(coded(EX_DATAERR, message))
        }
    }
}

async fn show(client: &Client, id: &str, json: bool) -> anyhow::Result<()> {
    let (path, mut from) = (address(&["v1", "documents", id])?, 0);
    loop {
        let page = client.get(&format!("{path}?from={from}&limit={PAGE}")).await?;
        let passages = page["data"].as_array().map(Vec::as_slice).unwrap_or_default();
        match json {
            true => say!("{}", serde_json::to_string_pretty(&page)?),
            false => {
                if from == 0 {
                    say!("{}", line(&page));
                }
                passages.iter().for_each(|passage| say!("\n[{}]\n{}", spot(passage), text(&passage["text"])));
            }
        }
        from += passages.len();
        if page["has_more"] != true || passages.is_empty() {
            return Ok(());
        }
    }
}

/// Every document that the daemon tells, page by page.
async fn all(client: &Client, collection: Option<&str>) -> anyhow::Result<Vec<Value>> {
    let mut documents: Vec<Value> = Vec::new();
    loop {
        let mut url = reqwest::Url::parse("http://daemon/v1/documents")?;
        url.query_pairs_mut().append_pair("limit", &PAGE.to_string());
        if let Some(collection) = collection {
            url.query_pairs_mut().append_pair("collection", collection);
        }
        if let Some(last) = documents.last() {
            url.query_pairs_mut().append_pair("after", text(&last["id"]).as_str());
        }
        let mut page = client.get(&format!("{}?{}", url.path(), url.query().unwrap_or_default())).await?;
        let Value::Array(data) = page["data"].take() else { anyhow::bail!("the daemon told no list") };
        documents.extend(data);
        if page["has_more"] != true {
            note_damage(&page);
            return Ok(documents);
        }
    }
}

/// Who reads a collection now: one's own of this name, or any of this id.
async fn readers(client: &Client, collection: &str) -> anyhow::Result<Vec<String>> {
    let told = client.get("/v1/collections").await?;
    let is_meant = |c: &&Value| c["own"] == true && c["name"] == collection || c["id"] == collection;
    let Some(found) = told["data"].as_array().into_iter().flatten().find(is_meant) else {
        let message =
            format!("there is no collection {}: `chimere documents status` lists them", printable(collection));
        return Err(coded(EX_DATAERR, message));
    };
    Ok(found["readers"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// An address of these parts.
fn address(parts: &[&str]) -> anyhow::Result<String> {
    let mut url = reqwest::Url::parse("http://daemon")?;
    url.path_segments_mut().ok().context("an address has a path")?.extend(parts);
    Ok(url.path().to_owned())
}

fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or_default())
}

/// The beginning of a text, in one line.
fn short(value: &Value, chars_max: usize) -> String {
    let text = text(value).split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn line(document: &Value) -> String {
    let whose = document["principal"].as_str().map(|name| format!("{}  ", printable(name))).unwrap_or_default();
    let unread = match &document["unread_pages"] {
        Value::Array(pages) => {
            format!(
                "  (without page {}: unreadable)",
                pages.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
            )
        }
        _ => String::new(),
    };
    format!(
        "{}  {whose}{}  {}  {} passages{unread}",
        text(&document["id"]),
        text(&document["collection"]),
        text(&document["name"]),
        document["passages"],
    )
}

/// Where a passage stands.
fn spot(passage: &Value) -> String {
    let row = |name: &str| passage[name].as_u64();
    let place = match row("page") {
        Some(page) => format!("page {page}"),
        None if row("row").is_some() && row("row") == row("row_end") => {
            format!("sheet {}, row {}", text(&passage["sheet"]), passage["row"])
        }
        None if row("row").is_some() => {
            format!("sheet {}, rows {} to {}", text(&passage["sheet"]), passage["row"], passage["row_end"])
        }
        None if passage["line"] == passage["line_end"] => format!("line {}", passage["line"]),
        None => format!("lines {} to {}", passage["line"], passage["line_end"]),
    };
    match text(&passage["heading"]) {
        heading if heading.is_empty() => place,
        heading => format!("{place}, {heading}"),
    }
}

fn place(passage: &Value) -> String {
    format!("{}, {}", text(&passage["name"]), spot(passage))
}

fn collection_line(collection: &Value) -> String {
    let whose = match (collection["own"] == true, collection["principal"].as_str()) {
        (true, _) => "own".to_owned(),
        (false, Some(name)) => format!("of {}", printable(name)),
        (false, None) => "shared".to_owned(),
    };
    let readers: Vec<String> = collection["readers"].as_array().into_iter().flatten().map(text).collect();
    let readers = match (collection["readers"].is_array(), readers.is_empty()) {
        (false, _) => String::new(),
        (true, true) => "  private".to_owned(),
        (true, false) => format!("  read by {}", readers.join(", ")),
    };
    let counts = match (collection["documents"].as_u64(), collection["passages"].as_u64()) {
        (Some(documents), Some(passages)) => format!("  {documents} documents, {passages} passages"),
        _ => String::new(),
    };
    let name = collection["name"].as_str().map_or_else(|| DEFAULT_COLLECTION.to_owned(), printable);
    format!("{}  {name}  {whose}{readers}{counts}", text(&collection["id"]))
}

/// The folder whose files a collection has, and which of them are no documents.
fn folder_lines(folder: &Value) -> Vec<String> {
    let Some(path) = folder["path"].as_str() else { return Vec::new() };
    let of = |name: &str| folder[name].as_u64().unwrap_or_default() as usize;
    let mut line = format!("files of {}: {}", printable(path), counted(of("files"), "file", "files"));
    for (name, said) in [("waiting", "to be read"), ("left_out_count", "left out"), ("others", "of other kinds")] {
        if of(name) > 0 {
            line += &format!(", {} {said}", of(name));
        }
    }
    let mut lines = vec![line];
    lines.extend(folder["why"].as_str().map(|why| format!("not followed now: {}", printable(why))));
    let out = folder["left_out"].as_object().into_iter().flatten();
    lines.extend(out.map(|(name, why)| format!("left out: {}: {}", printable(name), text(why))));
    lines
}
