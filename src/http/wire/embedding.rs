//! The bodies of `POST /v1/embeddings` and `/v1/rerank`.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::protocol::EmbedInput;
use crate::http::body;
use crate::http::error::ApiError;
use crate::http::limits::HttpLimits;
use crate::http::table::{Param, SOME_TEXT, Shape, TEXT, TOKEN, Table, WHOLE_MAX};
use crate::service::EMBED_TEXTS_MAX;

/// Token ids of one text.
const IDS_MAX: usize = 1 << 20;
/// Values that a client may ask a vector to have; the model's own width is a limit too.
const DIMENSIONS_MAX: i128 = 1 << 16;

const IDS: Shape = Shape::List { of: &TOKEN, min: 1, max: IDS_MAX };
const MODEL: Param = Param::new("model", TEXT, "The embedding model's name, or one of its aliases.");

pub(crate) const EMBEDDINGS: Table = Table {
    ignored: &["user"],
    ..Table::new(
        "EmbeddingsRequest",
        "",
        &[&[
            Param::new(
                "input",
                Shape::Either(&[
                    SOME_TEXT,
                    IDS,
                    Shape::List { of: &SOME_TEXT, min: 1, max: EMBED_TEXTS_MAX },
                    Shape::List { of: &IDS, min: 1, max: EMBED_TEXTS_MAX },
                ]),
                "A text, or token ids of the embedding model, or an array of these. One that is longer than the model reads \
                 is read in windows, and its vector is their mean.",
            )
            .required(),
            MODEL,
            Param::new("encoding_format", Shape::Word(&["float", "base64"]), "base64: little-endian f32.")
                .default("\"float\""),
            Param::new(
                "dimensions",
                Shape::Whole { min: 1, max: DIMENSIONS_MAX },
                "The first values of the vector, made one long again; at most the model's own.",
            ),
        ]],
    )
};
pub(crate) const RERANK: Table = Table {
    ignored: &["user"],
    ..Table::new(
        "RerankRequest",
        "",
        &[&[
            Param::new("query", SOME_TEXT, "").required(),
            Param::new(
                "documents",
                Shape::List {
                    of: &Shape::Either(&[TEXT, Shape::Open(&[Param::new("text", TEXT, "").required()])]),
                    min: 1,
                    max: EMBED_TEXTS_MAX - 1,
                },
                "Of each, as much is read as the embedding model takes.",
            )
            .required(),
            MODEL,
            Param::new("top_n", Shape::Whole { min: 1, max: WHOLE_MAX }, "How many are told of."),
            Param::new("return_documents", Shape::Bool, "").default("false"),
        ]],
    )
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
    input: Inputs,
    model: Option<String>,
    #[serde(default)]
    encoding_format: Encoding,
    dimensions: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Inputs {
    Text(String),
    Ids(Vec<u32>),
    Texts(Vec<String>),
    ManyIds(Vec<Vec<u32>>),
}

/// Texts to be told as vectors.
#[derive(Debug, PartialEq)]
pub(crate) struct Embeddings {
    pub(crate) inputs: Vec<EmbedInput>,
    pub(crate) model: Option<String>,
    pub(crate) encoding: Encoding,
    /// Values of a vector, where the client wants fewer.
    pub(crate) dimensions: Option<usize>,
    /// Parameters that were accepted without effect.
    pub(crate) ignored: Vec<&'static str>,
}

/// Reads and checks a body of `/v1/embeddings`.
pub(crate) fn embeddings(bytes: &[u8], limits: &HttpLimits) -> Result<Embeddings, ApiError> {
    let (map, ignored) = body::checked(bytes, &EMBEDDINGS, limits)?;
    let RawEmbeddings { input, model, encoding_format: encoding, dimensions } = body::typed(Value::Object(map))?;
    let inputs = match input {
        Inputs::Text(text) => vec![EmbedInput::Text(text)],
        Inputs::Ids(ids) => vec![EmbedInput::Ids(ids)],
        Inputs::Texts(texts) => texts.into_iter().map(EmbedInput::Text).collect(),
        Inputs::ManyIds(many) => many.into_iter().map(EmbedInput::Ids).collect(),
    };
    Ok(Embeddings { inputs, model, encoding, dimensions, ignored })
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
#[serde(untagged)]
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
    pub(crate) ignored: Vec<&'static str>,
}

/// Reads and checks a body of `/v1/rerank`.
pub(crate) fn rerank(bytes: &[u8], limits: &HttpLimits) -> Result<Rerank, ApiError> {
    let (map, ignored) = body::checked(bytes, &RERANK, limits)?;
    let raw: RawRerank = body::typed(Value::Object(map))?;
    let count = raw.documents.len();
    let documents = raw.documents.into_iter().map(|document| match document {
        Document::Text(text) | Document::Object { text } => text,
    });
    Ok(Rerank {
        texts: std::iter::once(raw.query).chain(documents).collect(),
        model: raw.model,
        top: raw.top_n.unwrap_or(count),
        return_documents: raw.return_documents,
        ignored,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(input: Value) -> Result<Vec<EmbedInput>, ApiError> {
        embeddings(json!({"input": input}).to_string().as_bytes(), &HttpLimits::default()).map(|read| read.inputs)
    }

    #[test]
    fn inputs_in_every_form() {
        let text = |text: &str| EmbedInput::Text(text.to_owned());
        assert_eq!(of(json!("a")).unwrap(), [text("a")]);
        assert_eq!(of(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
        assert_eq!(of(json!([3, 4e0])).unwrap(), [EmbedInput::Ids(vec![3, 4])]);
        assert_eq!(of(json!([[3], [4, 5]])).unwrap(), [EmbedInput::Ids(vec![3]), EmbedInput::Ids(vec![4, 5])]);
        let long = vec!["a"; EMBED_TEXTS_MAX + 1];
        for bad in [
            json!([]),
            json!([[]]),
            json!(""),
            json!(["a", ""]),
            json!(["a", 3]),
            json!(3),
            json!([-3]),
            json!([3.5]),
            json!([{}]),
            json!(long),
        ] {
            let error = of(bad.clone()).unwrap_err();
            assert!(error.param.as_deref().is_some_and(|param| param.starts_with("input")), "{bad}: {error:?}");
        }
    }
}
