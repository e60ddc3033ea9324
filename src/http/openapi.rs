//! `GET /openapi.json`: the interface as an OpenAPI 3.1 document, for generators of clients. Bodies and queries of requests
//! come from the tables that the readers hold them to. What is answered is written by hand (`openapi.json`). The official
//! client's tests hold it to the replies of a running daemon.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};

use super::error::ApiError;
use super::routes::{Call, ROUTES, Route};

/// Everything but the tables of parameters.
const WRITTEN: &str = include_str!("openapi.json");

static DOCUMENT: LazyLock<String> = LazyLock::new(|| whole().to_string());

fn whole() -> Value {
    // A test reads it: it is JSON.
    let mut document: Value = serde_json::from_str(WRITTEN).unwrap_or_default();
    for route in ROUTES {
        let operation = &mut document["paths"][document_path(route)][route.method.to_lowercase()];
        if let Some(table) = route.body {
            let schema = json!({"$ref": format!("#/components/schemas/{}", table.name)});
            let mut content = json!({"application/json": {"schema": schema}});
            if route.upload {
                content["multipart/form-data"] = json!({"schema": {"$ref": "#/components/schemas/DocumentForm"}});
            }
            operation["requestBody"] = json!({"required": true, "content": content});
            document["components"]["schemas"][table.name] = table.schema();
        }
        if let Some(table) = route.query {
            document["paths"][document_path(route)][route.method.to_lowercase()]["parameters"] = table.query().into();
        }
    }
    document
}

fn document_path(route: &Route) -> String {
    route.path.replace("{*id}", "{id}")
}

pub(crate) async fn document(_: Call) -> Result<Response, ApiError> {
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT.as_str()).into_response())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::http::routes::Access;
    use crate::service::Scope;

    fn document() -> Value {
        serde_json::from_str(&DOCUMENT).unwrap()
    }

    /// Path and method of every operation.
    fn operations(document: &Value) -> BTreeMap<(String, String), Value> {
        let mut found = BTreeMap::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                found.insert((path.clone(), method.to_uppercase()), operation.clone());
            }
        }
        found
    }

    fn of(route: &Route) -> (String, String) {
        (document_path(route), route.method.to_owned())
    }

    #[test]
    fn it_has_the_routes_that_there_are_with_their_scopes_and_the_version() {
        let document = document();
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
        let operations = operations(&document);
        assert_eq!(operations.keys().cloned().collect::<BTreeSet<_>>(), ROUTES.iter().map(of).collect());
        for route in ROUTES {
            let operation = &operations[&of(route)];
            let scope = match route.access {
                Access::Open => serde_json::json!([]),
                Access::Key(Scope::Chat) => serde_json::json!([{"key": ["chat"]}]),
                Access::Key(Scope::Metrics) => serde_json::json!([{"key": ["metrics"]}]),
                Access::Key(Scope::Admin) => serde_json::json!([{"key": ["admin"]}]),
            };
            assert_eq!(operation["security"], scope, "{} {}", route.method, route.path);
        }
    }

    /// Every component that something refers to is there, and none is there that nothing refers to.
    #[test]
    fn it_is_whole() {
        fn refs<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
            match value {
                Value::Object(map) => {
                    found.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| refs(value, found));
                }
                Value::Array(items) => items.iter().for_each(|value| refs(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = BTreeSet::new();
        refs(&document, &mut found);
        for place in &found {
            assert!(document.pointer(place.trim_start_matches('#')).is_some(), "{place}");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            assert!(found.contains(format!("#/components/schemas/{name}").as_str()), "{name}");
        }
    }
}
