//! Embeddings and reranking: forms of input and output, limits, and refusals with their reason.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::{Answer, Server, server};

async fn embed(server: &Server, body: Value) -> Answer {
    server.post("/v1/embeddings", &body).await
}

async fn rerank(server: &Server, body: Value) -> Answer {
    server.post("/v1/rerank", &body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_become_vectors_in_their_order() {
    let server = server().await;
    let one = embed(&server, json!({"input": "a b"})).await.json();
    assert_eq!(one["object"], "list");
    assert_eq!(one["model"], "fake-embed");
    assert_eq!(one["data"], json!([{"object": "embedding", "index": 0, "embedding": [1.0, 0.0]}]));
    assert_eq!(one["usage"], json!({"prompt_tokens": 2, "total_tokens": 2}));
    let body =
        json!({"input": ["b", "a"], "model": "fake-embed", "dimensions": 2, "user": "u", "encoding_format": "base64"});
    let two = embed(&server, body).await.json();
    // 0.0 and 1.0, then 1.0 and 0.0, in little-endian f32.
    assert_eq!(two["data"][0]["embedding"], "AAAAAAAAgD8=");
    assert_eq!(two["data"][1]["embedding"], "AACAPwAAAAA=");
    assert_eq!(two["x_chimere"], json!({"ignored": ["user"]}));
}

#[tokio::test(flavor = "multi_thread")]
async fn token_ids_long_texts_fewer_dimensions_and_other_names_are_taken() {
    let server = server().await;
    let vectors = |answer: Value| -> Vec<Value> {
        answer["data"].as_array().unwrap().iter().map(|entry| entry["embedding"].clone()).collect()
    };
    assert_eq!(vectors(embed(&server, json!({"input": [1, 2]})).await.json()), [json!([1.0, 0.0])]);
    let many = embed(&server, json!({"input": [[2, 1], [1]], "model": "text-embedding-x"})).await.json();
    assert_eq!(
        (&many["model"], vectors(many.clone())),
        (&json!("fake-embed"), vec![json!([0.0, 1.0]), json!([1.0, 0.0])])
    );
    let long = embed(&server, json!({"input": ["a b c d e", "b"]})).await.json();
    assert_eq!((&long["x_chimere"], &long["usage"]["total_tokens"]), (&json!({"windows": [2, 1]}), &json!(6)));
    let first = embed(&server, json!({"input": ["a", "b"], "dimensions": 1})).await.json();
    assert_eq!(vectors(first), [json!([1.0]), json!([0.0])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_embedded_is_refused_by_name() {
    let server = server().await;
    let cases = [
        (json!({}), 400, "input"),
        (json!({"input": ""}), 400, "input"),
        (json!({"input": []}), 400, "input"),
        (json!({"input": [1, -2]}), 400, "input[1]"),
        (json!({"input": vec!["a"; 2_049]}), 400, "input"),
        (json!({"input": "a", "dimensions": 3}), 400, "dimensions"),
        (json!({"input": "a", "dimensions": 0}), 400, "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), 400, "encoding_format"),
        (json!({"input": "a", "inputs": "b"}), 400, "inputs"),
        (json!({"input": "a", "model": "fake-1"}), 404, "model"),
    ];
    for (body, status, param) in cases {
        let answer = embed(&server, body.clone()).await;
        assert_eq!((answer.status, answer.error()["param"].as_str()), (status, Some(param)), "{body}");
    }
    server.fake.without_embeddings.store(true, Ordering::SeqCst);
    let none = embed(&server, json!({"input": "a"})).await;
    assert_eq!((none.status, &none.error()["code"]), (501, &json!("not_built")));
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_come_likest_first() {
    let server = server().await;
    let body = json!({"query": "a", "documents": ["b", {"text": "a b c d e f"}, "c", "a"], "top_n": 3, "return_documents": true});
    let answer = rerank(&server, body).await.json();
    let order: Vec<_> = answer["results"].as_array().unwrap().iter().map(|r| r["index"].as_u64().unwrap()).collect();
    // Of equals the earlier comes first; a document that is too long is read as far as it can be.
    assert_eq!(order, [1, 3, 0]);
    assert_eq!(answer["results"][0], json!({"index": 1, "relevance_score": 1.0, "document": {"text": "a b c d e f"}}));
    assert_eq!(answer["usage"]["total_tokens"], 8);
    let bare = rerank(&server, json!({"query": "a", "documents": ["b"]})).await.json();
    assert_eq!(bare["results"], json!([{"index": 0, "relevance_score": 0.0}]));
    for (body, param) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "", "documents": ["a"]}), "query"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": vec!["a"; 2_048]}), "documents"),
        (json!({"query": "a", "documents": ["a"], "top_n": 0}), "top_n"),
    ] {
        let answer = rerank(&server, body.clone()).await;
        assert_eq!((answer.status, answer.error()["param"].as_str()), (400, Some(param)), "{param}");
    }
    assert_eq!(rerank(&server, json!({"query": "a", "documents": ["a"], "model": "other"})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedding_model_is_listed_behind_the_one_that_chats() {
    let server = server().await;
    let models = server.get("/v1/models").await.json();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    // An alias gives way to a model of that name.
    assert_eq!(ids, ["fake-1", "fake-embed", "further", "other-name", "text-embedding-x"]);
    assert_eq!(models["data"][4]["x_chimere"]["alias_of"], "fake-embed");
    assert_eq!(models["data"][2]["x_chimere"], json!({ "state": "unloaded" }), "nothing is known of it yet");
    assert_eq!(models["data"][3]["x_chimere"]["alias_of"], "fake-1");
    assert_eq!(server.get("/v1/models/other-name").await.json()["x_chimere"]["alias_of"], "fake-1");
    assert_eq!(server.get("/v1/models/fake-embed").await.json()["x_chimere"]["width"], 2);
}
