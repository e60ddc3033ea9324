//! `GET /openapi.json`: the interface as an OpenAPI 3.1 document, for generators of clients. It is written by hand,
//! because the wire types accept more forms than they should advertise. Tests hold it to the route table and to the
//! parameters that each route knows. The official client's tests hold it to the replies of a running daemon.

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};

use super::error::ApiError;
use super::routes::Call;

const DOCUMENT: &str = include_str!("openapi.json");

pub(crate) async fn document(_: Call) -> Result<Response, ApiError> {
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], DOCUMENT).into_response())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::Value;

    use super::*;
    use crate::http::routes::{Access, ROUTES, Route};
    use crate::service::Scope;

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
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
        (route.path.replace("{*id}", "{id}"), route.method.to_owned())
    }

    fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
        names.into_iter().map(str::to_owned).collect()
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

    #[test]
    fn it_has_the_parameters_that_each_route_knows_and_no_other() {
        let document = document();
        let operations = operations(&document);
        for route in ROUTES {
            let body = &operations[&of(route)]["requestBody"];
            let Some(parameters) = route.parameters else {
                assert!(body.is_null(), "{} takes no body", route.path);
                continue;
            };
            let schema = body["content"]["application/json"]["schema"]["$ref"].as_str().unwrap();
            let schema = document.pointer(schema.trim_start_matches('#')).unwrap();
            let told = names(schema["properties"].as_object().unwrap().keys().map(String::as_str));
            let known = parameters.known.iter().copied().flatten().chain(parameters.ignored).copied();
            assert_eq!(told, names(known), "{}", route.path);
            assert_eq!(schema["additionalProperties"], false, "{}", route.path);
        }
    }
}
