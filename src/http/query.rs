//! The query of an address, held to the table as a body is. Its values are texts; the table says which of them are numbers.

use axum::extract::Query;
use hyper::Uri;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::table::{Shape, Table};

/// The parameters of a query that the table describes.
pub(crate) fn read(uri: &Uri, table: &Table) -> Result<Map<String, Value>, ApiError> {
    let bad = |message: String| ApiError::invalid(message).code("bad_query");
    let pairs: Query<Vec<(String, String)>> = Query::try_from_uri(uri)
        .map_err(|error| bad(format!("the query of the address is wrong: {}", error.body_text())))?;
    let mut map = Map::new();
    for (name, text) in pairs.0 {
        let shape = table.params().find(|param| param.name == name).map(|param| param.shape);
        let value = match shape {
            Some(Shape::Bool | Shape::Whole { .. }) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            _ => Value::String(text),
        };
        if map.contains_key(&name) {
            let name: String = name.chars().take(80).collect();
            return Err(bad(format!("`{name}` stands twice in the query of the address")));
        }
        map.insert(name, value);
    }
    table.check(&mut map).map_err(|error| error.code("bad_query"))?;
    Ok(map)
}
