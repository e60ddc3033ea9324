//! Documents at the door: files in a form and in JSON, what may be asked, and what is told to whom.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chimere::documents::{Chunk, Collection, CollectionId, Document, DocumentId, Found, Rank};
use chimere::http::HttpLimits;
use chimere::service::{
    DocumentAnswer, DocumentCommand, DocumentsWish, FolderState, ListedCollection, NewDocument, Principal, ServiceError,
};
use serde_json::{Value, json};

use crate::fake::{ADMIN_KEY, CHAT_KEY, METRICS_KEY};
use crate::{Answer, Server, server, server_with};

fn shelved(n: usize, principal: &str) -> (Arc<Document>, Arc<Collection>) {
    let chunk = |line: u32| Chunk {
        heading: "House".into(),
        start: 0,
        end: 4,
        line,
        line_end: line + 1,
        page: (n == 2).then_some(3),
        ..Chunk::default()
    };
    let collection = CollectionId("collection-1".into());
    let document = Document {
        id: DocumentId(format!("document-{n}")),
        collection: collection.clone(),
        name: "house.md".into(),
        title: "House".into(),
        media_type: "text/markdown".into(),
        sha256: "00".into(),
        bytes: 4,
        text_bytes: 4,
        language: "en".into(),
        created_ms: 1,
        replaces: None,
        unread_pages: Vec::new(),
        chunks: vec![chunk(10), chunk(20), chunk(30)],
    };
    let (name, readers) = ("papers".to_owned(), vec!["bob".to_owned()]);
    let principal = principal.to_owned();
    (Arc::new(document), Arc::new(Collection { id: collection, name, principal, readers, created_ms: 1 }))
}

/// What the service without a model says of documents.
pub fn answer(principal: &Principal, command: &DocumentCommand) -> Result<DocumentAnswer, ServiceError> {
    let own = shelved(1, &principal.name);
    Ok(match command {
        DocumentCommand::Remove(id) | DocumentCommand::Show { id, .. } if id.0 == "document-none" => {
            return Err(ServiceError::NotFound("there is no such document".to_owned()));
        }
        DocumentCommand::Add(new) => {
            let replaced = (new.name == "old.md").then(|| DocumentId("document-0".into()));
            DocumentAnswer::Added { document: own, replaced, unchanged: false }
        }
        DocumentCommand::List { limit, .. } => {
            DocumentAnswer::List([own, shelved(2, "somebody")].into_iter().take(*limit).collect())
        }
        DocumentCommand::Show { from, limit, .. } => {
            let texts = (*from..3).take(*limit).map(|n| format!("text {n}")).collect();
            DocumentAnswer::Shown { document: own, from: *from, texts }
        }
        DocumentCommand::Remove(_) => DocumentAnswer::Removed { documents: 1 },
        DocumentCommand::Search { .. } => {
            let found = |(document, collection)| Found {
                document,
                collection,
                chunk: 1,
                text: "text".into(),
                score: 0.5,
                words: Some(Rank { rank: 1, score: 2.0 }),
                dense: None,
            };
            let passages = vec![found(own), found(shelved(2, "somebody"))];
            DocumentAnswer::Found { passages, no_vectors: Some("no model".to_owned()) }
        }
        DocumentCommand::Collections => {
            let listed = |collection, documents, folder| ListedCollection {
                collection,
                documents,
                passages: 3 * documents,
                folder,
            };
            let folder = FolderState { path: "/srv/papers".into(), state: "followed", ..FolderState::default() };
            let all = vec![listed(own.1, 2, Some(folder.clone())), listed(shelved(1, "x").1, 1, Some(folder))];
            DocumentAnswer::Collections(all)
        }
        DocumentCommand::Share { .. } => DocumentAnswer::Collection { collection: own.1 },
        DocumentCommand::RemoveCollection(_) => {
            DocumentAnswer::RemovedCollection { id: own.1.id.clone(), documents: 2 }
        }
    })
}

async fn of(server: &Server, method: &str, path: &str, key: &str, body: Option<&Value>) -> Answer {
    let request = server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(key);
    server.send(body.into_iter().fold(request, |request, body| request.json(body))).await
}

/// Sends a form of these parts: name, file name, text.
async fn form(server: &Server, parts: &[(&str, Option<&str>, &str)]) -> Answer {
    let part = |(name, file, text): &(&str, Option<&str>, &str)| {
        let file = file.map(|file| format!("; filename=\"{file}\"\r\nContent-Type: text/markdown")).unwrap_or_default();
        format!("--line\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{text}\r\n")
    };
    let body: String = parts.iter().map(part).chain(["--line--\r\n".to_owned()]).collect();
    let request = server.client.post(server.url("/v1/documents")).bearer_auth(CHAT_KEY);
    server.send(request.header("content-type", "multipart/form-data; boundary=line").body(body)).await
}

fn commands(server: &Server) -> Vec<(String, DocumentCommand)> {
    std::mem::take(&mut *server.fake.document_commands.lock().unwrap())
}

fn added(server: &Server) -> NewDocument {
    match commands(server).pop() {
        Some((_, DocumentCommand::Add(new))) => new,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_comes_in_a_form_or_in_json() {
    let server = server().await;
    let answer = form(&server, &[("collection", None, "papers"), ("file", Some("h\u{e9}.md"), "# House")]).await;
    let told = answer.json();
    assert_eq!((answer.status, &told["object"], &told["passages"]), (200, &json!("document"), &json!(3)), "{told}");
    assert_eq!((&told["unchanged"], told.get("replaced"), told.get("principal")), (&json!(false), None, None));
    let wanted = NewDocument {
        name: "h\u{e9}.md".into(),
        title: None,
        collection: Some("papers".into()),
        media_type: Some("text/markdown".into()),
        bytes: b"# House".to_vec(),
    };
    assert_eq!(added(&server), wanted);
    let body = json!({"name": "old.md", "base64": STANDARD.encode(b"\x00\xff"), "title": "T"});
    let told = of(&server, "POST", "/v1/documents", ADMIN_KEY, Some(&body)).await.json();
    assert_eq!((&told["replaced"], &told["principal"]), (&json!("document-0"), &json!("admin")), "{told}");
    let new = added(&server);
    assert_eq!((new.bytes, new.title.as_deref(), new.media_type), (vec![0, 255], Some("T"), None));
    // What is sent as text is text, whatever it is called.
    of(&server, "POST", "/v1/documents", CHAT_KEY, Some(&json!({"name": "a note", "text": "x"}))).await;
    assert_eq!(added(&server).media_type.as_deref(), Some("text/plain"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_file_is_refused_by_name() {
    let server = server_with(HttpLimits { file_bytes_max: 100, ..HttpLimits::default() }).await;
    for (body, param) in [
        (json!({"text": "x"}), "name"),
        (json!({"name": "a"}), "text"),
        (json!({"name": "a", "text": "x", "base64": "eA=="}), "base64"),
        (json!({"name": "a", "base64": "e"}), "base64"),
        (json!({"name": "a", "base64": "?"}), "base64"),
        (json!({"name": "", "text": "x"}), "name"),
        (json!({"name": "a", "text": "x", "colection": "c"}), "colection"),
    ] {
        let answer = of(&server, "POST", "/v1/documents", CHAT_KEY, Some(&body)).await;
        assert_eq!((answer.status, answer.error()["param"].as_str()), (400, Some(param)), "{body} {}", answer.text);
    }
    for (parts, param) in [
        (&[("title", None, "t")][..], "file"),
        (&[("file", Some(""), "t")], "name"),
        (&[("file", Some("a"), "t"), ("file", Some("b"), "t")], "file"),
        (&[("file", Some("a"), "t"), ("colection", None, "t")], "colection"),
    ] {
        let answer = form(&server, parts).await;
        assert_eq!((answer.status, answer.error()["param"].as_str()), (400, Some(param)), "{}", answer.text);
    }
    let cut = server.client.post(server.url("/v1/documents")).bearer_auth(CHAT_KEY);
    let cut = server.send(cut.header("content-type", "multipart/form-data; boundary=x").body("--x\r\nContent")).await;
    assert_eq!((cut.status, cut.error()["code"].as_str()), (400, Some("bad_body")), "{}", cut.text);
    let large = form(&server, &[("file", Some("a.md"), &"x".repeat(101))]).await;
    let message = large.error()["message"].to_string();
    assert!(large.status == 413 && message.contains("100 bytes") && message.contains("file_bytes_max"), "{message}");
    assert_eq!(commands(&server), []);
    let plain = server.client.post(server.url("/v1/documents")).bearer_auth(CHAT_KEY).body("x");
    assert_eq!(server.send(plain).await.status, 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_listed_shown_searched_and_removed() {
    let server = server().await;
    let list =
        of(&server, "GET", "/v1/documents?limit=1&collection=papers&after=document-0", CHAT_KEY, None).await.json();
    assert_eq!((list["data"].as_array().unwrap().len(), &list["has_more"]), (1, &json!(true)));
    let after = Some(DocumentId("document-0".into()));
    let wanted = DocumentCommand::List { collection: Some("papers".into()), principal: None, after, limit: 2 };
    assert_eq!(commands(&server), [("chatter".to_owned(), wanted)]);
    assert_eq!(of(&server, "GET", "/v1/documents?principal=somebody", CHAT_KEY, None).await.status, 403);
    assert_eq!(of(&server, "GET", "/v1/documents?principal=somebody", ADMIN_KEY, None).await.status, 200);
    assert_eq!(of(&server, "GET", "/v1/documents", METRICS_KEY, None).await.status, 403);
    let shown = of(&server, "GET", "/v1/documents/document-1?from=1&limit=1", CHAT_KEY, None).await.json();
    let passage = &shown["data"][0];
    assert_eq!(
        (&passage["passage"], &passage["text"], &shown["has_more"]),
        (&json!(1), &json!("text 1"), &json!(true))
    );
    assert_eq!((&passage["line"], &passage["url"]), (&json!(20), &json!("/v1/documents/document-1#L20")));
    let body = json!({"query": "boiler", "collections": ["papers"], "k": 3});
    let found = of(&server, "POST", "/v1/documents/search", CHAT_KEY, Some(&body)).await.json();
    assert_eq!((&found["no_vectors"], &found["data"][0]["words"]["rank"]), (&json!("no model"), &json!(1)), "{found}");
    assert_eq!(found["data"][0].get("vectors"), None);
    assert_eq!(
        (&found["data"][1]["page"], &found["data"][1]["url"]),
        (&json!(3), &json!("/v1/documents/document-2#page=3"))
    );
    commands(&server);
    of(&server, "POST", "/v1/documents/search", CHAT_KEY, Some(&json!({"query": "q"}))).await;
    let all = DocumentCommand::Search { query: "q".into(), collections: None, k: 8 };
    assert_eq!(commands(&server), [("chatter".to_owned(), all)]);
    for bad in
        [json!({}), json!({"query": ""}), json!({"query": "q", "k": 101}), json!({"query": "q", "collections": []})]
    {
        assert_eq!(of(&server, "POST", "/v1/documents/search", CHAT_KEY, Some(&bad)).await.status, 400, "{bad}");
    }
    let gone = of(&server, "DELETE", "/v1/documents/document-1", CHAT_KEY, None).await.json();
    assert_eq!(gone, json!({"object": "document.deleted", "id": "document-1", "deleted": true}));
    for method in ["GET", "DELETE"] {
        let none = of(&server, method, "/v1/documents/document-none", CHAT_KEY, None).await;
        assert_eq!((none.status, none.error()["code"].as_str()), (404, Some("not_found")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_say_which_documents_are_damaged() {
    let server = server().await;
    let lists = async || {
        let body = json!({"query": "boiler"});
        let found = of(&server, "POST", "/v1/documents/search", CHAT_KEY, Some(&body)).await.json();
        let mut said = vec![found["message"].clone()];
        for path in ["/v1/documents", "/v1/collections"] {
            said.push(of(&server, "GET", path, CHAT_KEY, None).await.json()["message"].clone());
        }
        said
    };
    assert_eq!(lists().await, [const { Value::Null }; 3]);
    *server.fake.damage.lock().unwrap() = Some("1 document is damaged".to_owned());
    assert_eq!(
        lists().await,
        [json!("1 document is damaged"), json!("1 document is damaged"), json!("1 document is damaged")]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_tells_its_sources_and_what_of_it_stands_on_them() {
    let server = server().await;
    let ask = async |order: &str, documents: Value| {
        let body = json!({"messages": [{"role": "user", "content": order}], "chimere": {"documents": documents}});
        server.post("/v1/chat/completions", &body).await.json()
    };
    let told = ask("hello [1] [2]", json!({"collections": ["papers"], "k": 3})).await;
    let source = json!({"number": 1, "document": "document-1", "title": "House", "line": 7, "start": 10, "end": 40,
        "url": "/v1/documents/document-1#L7", "text": "Nobody knows. You said hello in [the] garden."});
    assert_eq!(told["x_chimere"]["sources"], json!([source]), "{told}");
    // "you said hello [1] [2]": the second mark is of a number that was not shown.
    let quote = json!({"text": "You said hello in [the] garden.", "start": 24, "end": 55});
    let citation = json!({"choice": 0, "number": 1, "document": "document-1", "title": "House", "line": 7,
        "url": "/v1/documents/document-1#L7", "by": "model", "start": 15, "end": 18, "quote": quote});
    assert_eq!(told["x_chimere"]["citations"], json!([citation]));
    let place = json!({"start_index": 15, "end_index": 18, "url": "/v1/documents/document-1#L7", "title": "House"});
    let annotations = json!([{"type": "url_citation", "url_citation": place}]);
    assert_eq!(told["choices"][0]["message"]["annotations"], annotations);
    let wish = server.fake.requests.lock().unwrap().pop().unwrap().documents;
    let DocumentsWish::Use(terms) = wish else { panic!("{wish:?}") };
    assert_eq!((terms.collections, terms.k, terms.tokens_max), (Some(vec!["papers".to_owned()]), 3, 1_500));
    // The same at the end of a stream.
    let body = json!({"messages": [{"role": "user", "content": "hello [1]"}], "stream": true,
        "chimere": {"documents": true}});
    let text = server.post("/v1/chat/completions", &body).await.text;
    let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks: Vec<Value> = chunks.map(|chunk| serde_json::from_str(&format!("{{{chunk}")).unwrap()).collect();
    let last = chunks.last().unwrap();
    assert_eq!(last["choices"][0]["delta"]["annotations"], annotations, "{last}");
    assert_eq!(last["x_chimere"]["sources"], json!([source]));
    // Nothing found is an empty list; nothing looked for is none.
    let nothing = ask("hello [1]", json!({"k": 1})).await;
    let message = &nothing["choices"][0]["message"];
    assert_eq!((&nothing["x_chimere"]["sources"], &message["annotations"]), (&json!([]), &json!([])));
    assert_eq!(nothing["x_chimere"].get("citations"), None);
    for off in [json!(false), Value::Null] {
        let plain = ask("hello [1]", off).await;
        assert_eq!(
            (plain["x_chimere"].get("sources"), plain["choices"][0]["message"].get("annotations")),
            (None, None)
        );
    }
    for wrong in [json!({"k": 21}), json!({"kk": 1}), json!({"tokens_max": 1}), json!(3)] {
        let body = json!({"messages": [{"role": "user", "content": "q"}], "chimere": {"documents": wrong}});
        let refused = server.post("/v1/chat/completions", &body).await;
        let named = refused.error()["param"].as_str().unwrap().to_owned();
        assert!(refused.status == 400 && named.starts_with("chimere.documents"), "{wrong}: {}", refused.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_collection_is_told_to_whom_it_belongs() {
    let server = server().await;
    let all = of(&server, "GET", "/v1/collections", CHAT_KEY, None).await.json();
    let (own, other) = (&all["data"][0], &all["data"][1]);
    assert_eq!((&own["own"], &own["readers"], &own["documents"]), (&json!(true), &json!(["bob"]), &json!(2)));
    assert_eq!((&other["own"], other.get("readers"), other.get("principal")), (&json!(false), None, None));
    // Where another's files lie is not told.
    assert_eq!((&own["folder"]["path"], other.get("folder")), (&json!("/srv/papers"), None));
    let all = of(&server, "GET", "/v1/collections", ADMIN_KEY, None).await.json();
    assert_eq!(all["data"][1]["principal"], "x");
    let body = json!({"name": "papers", "readers": ["bob", "*"]});
    assert_eq!(of(&server, "POST", "/v1/collections", ADMIN_KEY, Some(&body)).await.json()["object"], "collection");
    let gone = of(&server, "DELETE", "/v1/collections/papers", ADMIN_KEY, None).await.json();
    assert_eq!((&gone["id"], &gone["documents"]), (&json!("collection-1"), &json!(2)));
    let commands = commands(&server);
    let share = DocumentCommand::Share { name: "papers".into(), readers: vec!["bob".into(), "*".into()] };
    assert_eq!(commands[2].1, share);
    assert_eq!(commands[3].1, DocumentCommand::RemoveCollection("papers".into()));
}
