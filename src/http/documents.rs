//! Documents: files that a key gave the daemon, and the passages found in them. A key reads its own collections and those
//! that are shared with it, and changes its own; the admin scope reaches everybody's.

use std::convert::Infallible;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use hyper::header::CONTENT_TYPE;
use multer::Multipart;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::body;
use super::error::ApiError;
use super::lessons::with_damage;
use super::routes::Call;
use super::table::{Name, Param, Rule, Shape, TEXT, Table};
use super::{query, reply};
use crate::documents::place::Place;
use crate::documents::{
    COLLECTION_CHARS_MAX, Chunk, Collection, DEFAULT_COLLECTION, DOCUMENT_CHUNKS_MAX, DocumentId, Found, K_MAX,
    NAME_CHARS_MAX, QUERY_CHARS_MAX, READERS_MAX, Rank,
};
use crate::service::{DocumentAnswer, DocumentCommand, ListedCollection, NewDocument, Scope, Shelved, Taught};

/// Documents in one page of the listing, and passages of a document, unless the client asks for fewer.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;
const K_DEFAULT: usize = 8;
/// Bytes of a form beside its file.
const FORM_BYTES: usize = 64 << 10;

const NAME: Shape = Shape::Text { min: 1, max: NAME_CHARS_MAX };
const COLLECTION: Shape = Shape::Text { min: 1, max: COLLECTION_CHARS_MAX };
const BASE64: Name = Name {
    pattern: "^[A-Za-z0-9+/]*={0,2}$",
    max: 512 << 20,
    says: "the bytes of a file in base64, without line ends",
};
const LIMIT: Shape = Shape::Whole { min: 1, max: PAGE_MAX as i128 };

pub(super) const LIST: Table = Table::new(
    "",
    "",
    &[&[
        Param::new("collection", COLLECTION, "Name or id of a collection."),
        Param::new("principal", TEXT, "Collections of another than oneself need the scope `admin`."),
        Param::new("after", TEXT, "The last document of the page before."),
        Param::new("limit", LIMIT, "Documents of a page.").default("100"),
    ]],
);
pub(super) const ADD: Table = Table {
    rules: &[Rule::ExactlyOne(&["text", "base64"])],
    ..Table::new(
        "AddDocumentRequest",
        "A file. The same as a form (`multipart/form-data`): `file`, `collection`, `title`.",
        &[&[
            Param::new("name", NAME, "Of the file. A document of this name in the collection is replaced.").required(),
            Param::new("text", TEXT, "The file, where it is text."),
            Param::new("base64", Shape::Name(&BASE64), "The file, as bytes in base64."),
            Param::new("media_type", NAME, "What it is. Absent: by the end of its name."),
            Param::new("title", NAME, "Absent: the one in the file, else its name."),
            Param::new("collection", COLLECTION, "One of the key's own; made where there is none.")
                .default("\"documents\""),
        ]],
    )
};
pub(super) const SHOW: Table = Table::new(
    "",
    "",
    &[&[
        Param::new("from", Shape::Whole { min: 0, max: DOCUMENT_CHUNKS_MAX as i128 }, "First passage, from 0.")
            .default("0"),
        Param::new("limit", LIMIT, "Passages of a page.").default("100"),
    ]],
);
pub(super) const SEARCH: Table = Table::new(
    "SearchDocumentsRequest",
    "A question.",
    &[&[
        Param::new("query", Shape::Text { min: 1, max: QUERY_CHARS_MAX }, "What is looked for.").required(),
        Param::new(
            "collections",
            Shape::List { of: &COLLECTION, min: 1, max: 64 },
            "Names or ids. Absent: all that the key may read.",
        ),
        Param::new("k", Shape::Whole { min: 1, max: K_MAX as i128 }, "Passages.").default("8"),
    ]],
);
pub(super) const SHARE: Table = Table::new(
    "ShareCollectionRequest",
    "A collection of the key's own, and who may read it beside the key.",
    &[&[
        Param::new(
            "name",
            COLLECTION,
            "It is made where there is none. With the scope `admin` also the id of anybody's.",
        )
        .required(),
        Param::new(
            "readers",
            Shape::List { of: &NAME, min: 0, max: READERS_MAX },
            "Names of keys, or `*` for everybody; only the scope `admin` shares. Empty: nobody.",
        )
        .default("[]"),
    ]],
);

#[derive(Deserialize)]
struct Wanted {
    name: String,
    text: Option<String>,
    base64: Option<String>,
    media_type: Option<String>,
    title: Option<String>,
    collection: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    collection: Option<String>,
    principal: Option<String>,
    after: Option<DocumentId>,
    from: Option<usize>,
    limit: Option<usize>,
}

/// Where a passage stands in its document.
fn passage(id: &DocumentId, number: usize, chunk: &Chunk, text: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("passage".to_owned(), json!(number));
    object.insert("heading".to_owned(), json!(chunk.heading));
    object.insert("line".to_owned(), json!(chunk.line));
    object.insert("line_end".to_owned(), json!(chunk.line_end));
    object.extend(Place::from(chunk).fields());
    object.extend(chunk.row_end.map(|row| ("row_end".to_owned(), json!(row))));
    object.insert("start".to_owned(), json!(chunk.start));
    object.insert("end".to_owned(), json!(chunk.end));
    object.insert("url".to_owned(), json!(Place::from(chunk).url(&id.0)));
    object.insert("text".to_owned(), json!(text));
    object
}

fn object(call: &Call, (document, collection): &Shelved) -> Value {
    let mut object = json!({
        "object": "document",
        "id": document.id,
        "name": document.name,
        "title": document.title,
        "media_type": document.media_type,
        "bytes": document.bytes,
        "text_bytes": document.text_bytes,
        "sha256": document.sha256,
        "language": document.language,
        "collection": collection.name,
        "collection_id": collection.id,
        "passages": document.chunks.len(),
        "created_ms": document.created_ms,
    });
    if !document.unread_pages.is_empty() {
        object["unread_pages"] = json!(document.unread_pages);
    }
    object["own"] = json!(collection.principal == call.principal.name);
    if call.principal.may(Scope::Admin) {
        object["principal"] = json!(collection.principal);
    }
    object
}

/// A collection. Who else reads it is told to whom it belongs.
fn shown(call: &Call, collection: &Collection) -> Value {
    let own = collection.principal == call.principal.name;
    let mut object = json!({
        "object": "collection",
        "id": collection.id,
        "name": collection.name,
        "own": own,
        "created_ms": collection.created_ms,
    });
    if own || call.principal.may(Scope::Admin) {
        object["principal"] = json!(collection.principal);
        object["readers"] = json!(collection.readers);
    }
    object
}

async fn ask(call: &Call, command: DocumentCommand) -> Result<DocumentAnswer, ApiError> {
    Ok(call.door.service.documents(call.principal.clone(), command).await?)
}

fn strange() -> ApiError {
    ApiError::internal("the daemon answered something else than was asked")
}

fn id(call: &Call) -> String {
    call.id.clone().unwrap_or_default()
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let page: Page = body::typed(Value::Object(query::read(&call.uri, &LIST)?))?;
    let own = &call.principal.name;
    if page.principal.as_ref().is_some_and(|other| other != own) && !call.principal.may(Scope::Admin) {
        return Err(ApiError::forbidden_scope(own, Scope::Admin));
    }
    let limit = page.limit.unwrap_or(PAGE_DEFAULT);
    let after = page.after.filter(|id| !id.0.is_empty());
    // One more than asked tells whether there is more.
    let command =
        DocumentCommand::List { collection: page.collection, principal: page.principal, after, limit: limit + 1 };
    let DocumentAnswer::List(mut found) = ask(&call, command).await? else { return Err(strange()) };
    let has_more = found.len() > limit;
    found.truncate(limit);
    let data: Vec<Value> = found.iter().map(|shelved| object(&call, shelved)).collect();
    let list = json!({"object": "list", "data": data, "has_more": has_more});
    Ok(reply::json(&with_damage(&call, Taught::Documents, list)))
}

pub(crate) async fn add(call: Call) -> Result<Response, ApiError> {
    let kind = call.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let new = match multer::parse_boundary(kind) {
        Ok(boundary) => form(Bytes::copy_from_slice(&call.body), boundary).await?,
        Err(_) => written(&call)?,
    };
    if new.bytes.len() > call.limits.file_bytes_max {
        return Err(body::too_large_file(&call.limits));
    }
    let answer = ask(&call, DocumentCommand::Add(new)).await?;
    let DocumentAnswer::Added { document, replaced, unchanged } = answer else { return Err(strange()) };
    let mut object = object(&call, &document);
    object["unchanged"] = json!(unchanged);
    if let Some(replaced) = replaced {
        object["replaced"] = json!(replaced);
    }
    Ok(reply::json(&object))
}

/// A file in a JSON body.
fn written(call: &Call) -> Result<NewDocument, ApiError> {
    let (map, _) = body::checked(&call.body, &ADD, &call.limits)?;
    let Wanted { name, text, base64, media_type, title, collection } = body::typed(Value::Object(map))?;
    let (bytes, media_type) = match (text, base64) {
        // What is sent as text is text, whatever its name is.
        (Some(text), _) => (text.into_bytes(), media_type.or_else(|| Some("text/plain".to_owned()))),
        (None, base64) => {
            let bytes = STANDARD.decode(base64.unwrap_or_default());
            (bytes.map_err(|error| ApiError::param("base64", format!("`base64` is no base64: {error}")))?, media_type)
        }
    };
    Ok(NewDocument { name, title, collection, media_type, bytes })
}

/// A file in a form.
async fn form(body: Bytes, boundary: String) -> Result<NewDocument, ApiError> {
    let bad = |error: multer::Error| ApiError::invalid(format!("the form cannot be read: {error}")).code("bad_body");
    let mut parts = Multipart::new(stream::iter([Ok::<_, Infallible>(body)]), boundary);
    let (mut new, mut file) = (NewDocument::default(), false);
    while let Some(part) = parts.next_field().await.map_err(bad)? {
        let name = part.name().unwrap_or_default().to_owned();
        if name == "file" {
            if std::mem::replace(&mut file, true) {
                return Err(ApiError::param("file", "the form has two files: send one request for each"));
            }
            new.media_type = part.content_type().map(|kind| kind.essence_str().to_owned());
            if new.name.is_empty() {
                new.name = part.file_name().unwrap_or_default().to_owned();
            }
            new.bytes = part.bytes().await.map_err(bad)?.to_vec();
            continue;
        }
        let text = part.bytes().await.map_err(bad)?;
        if text.len() > FORM_BYTES {
            return Err(ApiError::param(name, "this part of the form is too long"));
        }
        let text = String::from_utf8(text.to_vec()).map_err(|_| ApiError::param(name.clone(), "it is not UTF-8"))?;
        match name.as_str() {
            "name" => new.name = text,
            "title" => new.title = Some(text).filter(|text| !text.is_empty()),
            "collection" => new.collection = Some(text).filter(|text| !text.is_empty()),
            other => {
                let other: String = other.chars().take(80).collect();
                let message =
                    format!("unknown part `{other}` of the form: it has `file`, `name`, `title`, `collection`");
                return Err(ApiError::param(other, message).code("unknown_parameter"));
            }
        }
    }
    let chars = |text: &str| text.chars().count();
    if !file {
        return Err(ApiError::param("file", "the form has no part `file`").code("missing_parameter"));
    }
    if new.name.is_empty() || chars(&new.name) > NAME_CHARS_MAX {
        return Err(ApiError::param("name", format!("a file has a name of 1 to {NAME_CHARS_MAX} characters")));
    }
    if new.title.as_deref().is_some_and(|title| chars(title) > NAME_CHARS_MAX) {
        return Err(ApiError::param("title", format!("a title has at most {NAME_CHARS_MAX} characters")));
    }
    Ok(new)
}

pub(crate) async fn get(call: Call) -> Result<Response, ApiError> {
    let page: Page = body::typed(Value::Object(query::read(&call.uri, &SHOW)?))?;
    let (from, limit) = (page.from.unwrap_or(0), page.limit.unwrap_or(PAGE_DEFAULT));
    let answer = ask(&call, DocumentCommand::Show { id: DocumentId(id(&call)), from, limit }).await?;
    let DocumentAnswer::Shown { document, from, texts } = answer else { return Err(strange()) };
    let mut object = object(&call, &document);
    let document = &document.0;
    let chunks = (from..).zip(document.chunks.iter().skip(from)).zip(&texts);
    let data: Vec<Value> =
        chunks.map(|((number, chunk), text)| Value::Object(passage(&document.id, number, chunk, text))).collect();
    object["has_more"] = json!(from + data.len() < document.chunks.len());
    object["data"] = Value::Array(data);
    Ok(reply::json(&object))
}

pub(crate) async fn remove(call: Call) -> Result<Response, ApiError> {
    let id = DocumentId(id(&call));
    let DocumentAnswer::Removed { .. } = ask(&call, DocumentCommand::Remove(id.clone())).await? else {
        return Err(strange());
    };
    Ok(reply::json(&json!({"object": "document.deleted", "id": id, "deleted": true})))
}

pub(crate) async fn search(call: Call) -> Result<Response, ApiError> {
    #[derive(Deserialize)]
    struct Asked {
        query: String,
        collections: Option<Vec<String>>,
        k: Option<usize>,
    }
    let (map, _) = body::checked(&call.body, &SEARCH, &call.limits)?;
    let Asked { query, collections, k } = body::typed(Value::Object(map))?;
    let answer = ask(&call, DocumentCommand::Search { query, collections, k: k.unwrap_or(K_DEFAULT) }).await?;
    let DocumentAnswer::Found { passages, no_vectors } = answer else { return Err(strange()) };
    let data: Vec<Value> = passages.iter().map(found).collect();
    let mut object = json!({"object": "list", "data": data});
    if let Some(why) = no_vectors {
        object["no_vectors"] = json!(why);
    }
    Ok(reply::json(&with_damage(&call, Taught::Documents, object)))
}

fn found(found: &Found) -> Value {
    let mut object = json!({
        "object": "document.passage",
        "document": found.document.id,
        "name": found.document.name,
        "title": found.document.title,
        "collection": found.collection.name,
        "score": found.score,
    });
    let rank = |rank: Rank| json!({"rank": rank.rank, "score": rank.score});
    if let Some(words) = found.words {
        object["words"] = rank(words);
    }
    if let Some(dense) = found.dense {
        object["vectors"] = rank(dense);
    }
    if let (Value::Object(object), Some(chunk)) = (&mut object, found.document.chunks.get(found.chunk)) {
        object.extend(passage(&found.document.id, found.chunk, chunk, &found.text));
    }
    object
}

pub(crate) async fn collections(call: Call) -> Result<Response, ApiError> {
    let DocumentAnswer::Collections(all) = ask(&call, DocumentCommand::Collections).await? else {
        return Err(strange());
    };
    let one = |listed: &ListedCollection| {
        let mut object = shown(&call, &listed.collection);
        object["documents"] = json!(listed.documents);
        object["passages"] = json!(listed.passages);
        // Where the files lie is told to whom they belong.
        if let Some(folder) = listed.folder.as_ref().filter(|_| object["principal"].is_string()) {
            object["folder"] = json!(folder);
        }
        object
    };
    let data: Vec<Value> = all.iter().map(one).collect();
    let list = json!({"object": "list", "data": data, "default": DEFAULT_COLLECTION});
    Ok(reply::json(&with_damage(&call, Taught::Documents, list)))
}

pub(crate) async fn share(call: Call) -> Result<Response, ApiError> {
    #[derive(Deserialize)]
    struct Wish {
        name: String,
        readers: Option<Vec<String>>,
    }
    let (map, _) = body::checked(&call.body, &SHARE, &call.limits)?;
    let Wish { name, readers } = body::typed(Value::Object(map))?;
    let command = DocumentCommand::Share { name, readers: readers.unwrap_or_default() };
    let DocumentAnswer::Collection { collection } = ask(&call, command).await? else { return Err(strange()) };
    Ok(reply::json(&shown(&call, &collection)))
}

pub(crate) async fn remove_collection(call: Call) -> Result<Response, ApiError> {
    let answer = ask(&call, DocumentCommand::RemoveCollection(id(&call))).await?;
    let DocumentAnswer::RemovedCollection { id, documents } = answer else { return Err(strange()) };
    Ok(reply::json(&json!({"object": "collection.deleted", "id": id, "deleted": true, "documents": documents})))
}
