//! The bodies of `POST /v1/embeddings` and `/v1/rerank`.

use serde::Deserialize;
use serde_json::Value;

use crate::http::body::{self, Parameters};
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::service::EMBED_TEXTS_MAX;

pub(crate) const EMBEDDINGS: Parameters =
    Parameters { known: &[&["input", "model", "encoding_format", "dimensions"]], ignored: &["user"], unsupported: &[] };
pub(crate) const RERANK: Parameters = Parameters {
    known: &[&["query", "documents", "model", "top_n", "return_documents"]],
    ignored: &["user"],
    unsupported: &[],
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    #[default]
    Float,
    Base64,
}

#[derive(Deserialize)]
struct RawEmbeddings {
    input: Value,
    model: Option<String>,
    #[serde(default)]
    encoding_format: Encoding,
    dimensions: Option<u64>,
}

/// Texts to be told as vectors.
#[derive(Debug, PartialEq)]
pub(crate) struct Embeddings {
    pub(crate) texts: Vec<String>,
    pub(crate) model: Option<String>,
    pub(crate) encoding: Encoding,
    /// Values of a vector, as the client expects them.
    pub(crate) dimensions: Option<u64>,
}

/// Reads and checks a body of `/v1/embeddings`.
pub(crate) fn embeddings(bytes: &[u8], limits: &HttpLimits) -> Result<Embeddings, ApiError> {
    let mut map = body::object(bytes, limits)?;
    body::check(&mut map, &EMBEDDINGS)?;
    let RawEmbeddings { input, model, encoding_format: encoding, dimensions } = body::typed(Value::Object(map))?;
    Ok(Embeddings { texts: texts(input)?, model, encoding, dimensions })
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
struct RawRerank {
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

/// Documents to be put in order.
#[derive(Debug, PartialEq)]
pub(crate) struct Rerank {
    /// The query, and behind it every document.
    pub(crate) texts: Vec<String>,
    pub(crate) model: Option<String>,
    /// How many documents are told of.
    pub(crate) top: usize,
    pub(crate) return_documents: bool,
}

/// Reads and checks a body of `/v1/rerank`.
pub(crate) fn rerank(bytes: &[u8], limits: &HttpLimits) -> Result<Rerank, ApiError> {
    let mut map = body::object(bytes, limits)?;
    body::check(&mut map, &RERANK)?;
    let raw: RawRerank = body::typed(Value::Object(map))?;
    let count = raw.documents.len();
    if raw.query.is_empty() {
        return Err(ApiError::param("query", "`query` is empty"));
    }
    if count == 0 || count >= EMBED_TEXTS_MAX {
        let message = format!("`documents` must have 1 to {} documents, not {count}", EMBED_TEXTS_MAX - 1);
        return Err(ApiError::param("documents", message));
    }
    if raw.top_n == Some(0) {
        return Err(ApiError::param("top_n", "`top_n` must be at least 1"));
    }
    let documents = raw.documents.into_iter().map(|document| match document {
        Document::Text(text) | Document::Object { text } => text,
    });
    Ok(Rerank {
        texts: std::iter::once(raw.query).chain(documents).collect(),
        model: raw.model,
        top: raw.top_n.unwrap_or(count),
        return_documents: raw.return_documents,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
}
