//! `POST /v1/embeddings` and `/v1/rerank`: texts as vectors, and documents in the order of their likeness to a query,
//! both by the embedding model.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Parameters};
use super::error::ApiError;
use super::reply;
use super::routes::Call;
use crate::service::{EMBED_TEXTS_MAX, Embedded};

pub(super) const EMBEDDINGS: Parameters =
    Parameters { known: &[&["input", "model", "encoding_format", "dimensions"]], ignored: &["user"], unsupported: &[] };
pub(super) const RERANK: Parameters = Parameters {
    known: &[&["query", "documents", "model", "top_n", "return_documents"]],
    ignored: &["user"],
    unsupported: &[],
};

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

#[derive(Deserialize)]
struct Embeddings {
    input: Value,
    model: Option<String>,
    #[serde(default)]
    encoding_format: Encoding,
    dimensions: Option<u64>,
}

pub(crate) async fn create(call: Call) -> Result<Response, ApiError> {
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, &EMBEDDINGS)?;
    let request: Embeddings = body::typed(Value::Object(map))?;
    let texts = texts(request.input)?;
    if let Some(model) = call.door.service.embed_model()
        && request.dimensions.is_some_and(|asked| asked != model.width as u64)
    {
        let message = format!("`dimensions` must be {}: vectors of {} are not shortened", model.width, model.name);
        return Err(ApiError::unsupported("dimensions", message));
    }
    let Embedded { model, vectors, tokens } = call.door.service.embed(request.model, texts, false).await?;
    let entry = |(index, vector): (usize, &Vec<f32>)| {
        let embedding = match request.encoding_format {
            Encoding::Float => json!(vector),
            Encoding::Base64 => json!(packed(vector)),
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    };
    let data: Vec<Value> = vectors.iter().enumerate().map(entry).collect();
    Ok(reply::json(&json!({"object": "list", "data": data, "model": model, "usage": usage(tokens)})))
}

/// Little-endian f32, as OpenAI's clients read them.
fn packed(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

fn usage(tokens: u32) -> Value {
    json!({"prompt_tokens": tokens, "total_tokens": tokens})
}

/// A text, or an array of texts.
fn texts(input: Value) -> Result<Vec<String>, ApiError> {
    let wrong = |message: String| Err(ApiError::param("input", message));
    let items = match input {
        Value::String(text) => vec![Value::String(text)],
        Value::Array(items) => items,
        _ => return wrong("`input` must be a text or an array of texts".to_owned()),
    };
    if items.is_empty() || items.len() > EMBED_TEXTS_MAX {
        return wrong(format!("`input` must have 1 to {EMBED_TEXTS_MAX} texts, not {}", items.len()));
    }
    let mut texts = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        match item {
            Value::String(text) if text.is_empty() => return wrong(format!("`input[{at}]` is empty")),
            Value::String(text) => texts.push(text),
            Value::Number(_) | Value::Array(_) => {
                let message = "token ids are not taken: they would be those of the embedding model; send the text";
                return Err(ApiError::unsupported("input", message));
            }
            _ => return wrong(format!("`input[{at}]` must be a text")),
        }
    }
    Ok(texts)
}

#[derive(Deserialize)]
struct Rerank {
    query: String,
    documents: Vec<Document>,
    model: Option<String>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, or an object with `text`")]
enum Document {
    Text(String),
    Object { text: String },
}

pub(crate) async fn rerank(call: Call) -> Result<Response, ApiError> {
    let mut map = body::object(&call.body, &call.limits)?;
    body::check(&mut map, &RERANK)?;
    let request: Rerank = body::typed(Value::Object(map))?;
    let count = request.documents.len();
    if request.query.is_empty() {
        return Err(ApiError::param("query", "`query` is empty"));
    }
    if count == 0 || count >= EMBED_TEXTS_MAX {
        let message = format!("`documents` must have 1 to {} documents, not {count}", EMBED_TEXTS_MAX - 1);
        return Err(ApiError::param("documents", message));
    }
    if request.top_n == Some(0) {
        return Err(ApiError::param("top_n", "`top_n` must be at least 1"));
    }
    let documents = request.documents.into_iter().map(|document| match document {
        Document::Text(text) | Document::Object { text } => text,
    });
    let texts: Vec<String> = std::iter::once(request.query).chain(documents).collect();
    let told = if request.return_documents { texts[1..].to_vec() } else { Vec::new() };
    // What is too long of a document is left out, as rerankers do: its beginning says what it is about.
    let Embedded { model, vectors, tokens } = call.door.service.embed(request.model, texts, true).await?;
    let mut order: Vec<(usize, f32)> = likeness(&vectors).into_iter().enumerate().collect();
    // The likest first; of equals the earlier.
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.truncate(request.top_n.unwrap_or(count));
    let entry = |(index, score): (usize, f32)| {
        let mut entry = json!({"index": index, "relevance_score": score});
        if let Some(text) = told.get(index) {
            entry["document"] = json!({"text": text});
        }
        entry
    };
    let results: Vec<Value> = order.into_iter().map(entry).collect();
    Ok(reply::json(&json!({"object": "list", "model": model, "results": results, "usage": usage(tokens)})))
}

/// Cosine of the first vector and each of the others; they are one long, or zero.
fn likeness(vectors: &[Vec<f32>]) -> Vec<f32> {
    let Some((query, documents)) = vectors.split_first() else { return Vec::new() };
    documents.iter().map(|document| query.iter().zip(document).map(|(a, b)| a * b).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_in_every_form() {
        assert_eq!(texts(json!("a")).unwrap(), ["a"]);
        assert_eq!(texts(json!(["a", "b"])).unwrap(), ["a", "b"]);
        let long = vec!["a"; EMBED_TEXTS_MAX + 1];
        for bad in
            [json!([]), json!(""), json!(["a", ""]), json!(3), json!([3]), json!([[3]]), json!([{}]), json!(long)]
        {
            assert_eq!(texts(bad).unwrap_err().param.as_deref(), Some("input"));
        }
    }

    #[test]
    fn packed_vectors_are_little_endian() {
        assert_eq!(packed(&[1.0, -2.0]), "AACAPwAAAMA=");
    }
}
