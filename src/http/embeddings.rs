//! `POST /v1/embeddings` and `/v1/rerank`: texts as vectors, and documents in the order of their likeness to a query,
//! both by the embedding model.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::error::ApiError;
use super::reply;
use super::routes::Call;
use super::wire::embedding::{self, Encoding};
use crate::engine::protocol::EmbedInput;
use crate::service::{EmbedFor, Embedded};

pub(crate) async fn create(call: Call) -> Result<Response, ApiError> {
    let request = embedding::embeddings(&call.body, &call.limits)?;
    let wanted = request.dimensions;
    if let (Some(model), Some(wanted)) = (call.door.service.embed_model(), wanted)
        && wanted > model.width
    {
        let message = format!("`dimensions` must be 1 to {}, the width of {}, not {wanted}", model.width, model.name);
        return Err(ApiError::param("dimensions", message));
    }
    let Embedded { model, mut vectors, windows, tokens } =
        call.door.service.embed(call.principal.clone(), request.model, request.inputs, EmbedFor::Texts).await?;
    if let Some(wanted) = wanted {
        vectors.iter_mut().for_each(|vector| shorten(vector, wanted));
    }
    let entry = |(index, vector): (usize, &Vec<f32>)| {
        let embedding = match request.encoding {
            Encoding::Float => json!(vector),
            Encoding::Base64 => json!(packed(vector)),
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    };
    let data: Vec<Value> = vectors.iter().enumerate().map(entry).collect();
    let mut answer = json!({"object": "list", "data": data, "model": model, "usage": usage(tokens)});
    if windows.iter().any(|&windows| windows > 1) {
        answer["x_chimere"]["windows"] = json!(windows);
    }
    Ok(reply::json(&told_ignored(answer, &request.ignored)))
}

/// The answer, which names what was accepted without effect.
fn told_ignored(mut answer: Value, ignored: &[&str]) -> Value {
    if !ignored.is_empty() {
        answer["x_chimere"]["ignored"] = json!(ignored);
    }
    answer
}

/// The first values alone, one long again.
fn shorten(vector: &mut Vec<f32>, width: usize) {
    vector.truncate(width);
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

/// Little-endian f32, as OpenAI's clients read them.
fn packed(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

fn usage(tokens: u32) -> Value {
    json!({"prompt_tokens": tokens, "total_tokens": tokens})
}

pub(crate) async fn rerank(call: Call) -> Result<Response, ApiError> {
    let request = embedding::rerank(&call.body, &call.limits)?;
    let told = if request.return_documents { request.texts[1..].to_vec() } else { Vec::new() };
    // What is too long of a document is left out, as rerankers do: its beginning says what it is about.
    let texts = request.texts.into_iter().map(EmbedInput::Text).collect();
    let Embedded { model, vectors, tokens, .. } =
        call.door.service.embed(call.principal.clone(), request.model, texts, EmbedFor::Ranking).await?;
    let mut order: Vec<(usize, f32)> = likeness(&vectors).into_iter().enumerate().collect();
    // The likest first; of equals the earlier.
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.truncate(request.top);
    let entry = |(index, score): (usize, f32)| {
        let mut entry = json!({"index": index, "relevance_score": score});
        if let Some(text) = told.get(index) {
            entry["document"] = json!({"text": text});
        }
        entry
    };
    let results: Vec<Value> = order.into_iter().map(entry).collect();
    let answer = json!({"object": "list", "model": model, "results": results, "usage": usage(tokens)});
    Ok(reply::json(&told_ignored(answer, &request.ignored)))
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
    fn packed_vectors_are_little_endian() {
        assert_eq!(packed(&[1.0, -2.0]), "AACAPwAAAMA=");
    }

    #[test]
    fn shortened_vectors_are_one_long() {
        let mut vector = vec![3.0, 4.0, 12.0];
        shorten(&mut vector, 2);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = vec![0.0, 0.0];
        shorten(&mut nothing, 1);
        assert_eq!(nothing, [0.0]);
    }
}
