//! Every route of the table with no key, a wrong one, and one of each scope.

use std::sync::atomic::Ordering;

use chimere::http::{Access, ROUTES, Route};
use chimere::service::Scope;

use crate::fake::{ADMIN_KEY, CHAT_KEY, METRICS_KEY};
use crate::{Server, server};

async fn status(server: &Server, route: &Route, key: Option<&str>) -> u16 {
    let path = route.path.replace("{*id}", "fake-1");
    let mut request = server.client.request(route.method.parse().unwrap(), server.url(&path));
    if let Some(key) = key {
        request = request.bearer_auth(key);
    }
    if route.takes_json() {
        request = request.header("content-type", "application/json").body("{}");
    }
    server.send(request).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_asks_for_its_scope_and_nothing_less() {
    let server = server().await;
    server.fake.locked.store(true, Ordering::SeqCst);
    assert!(ROUTES.len() >= 17);
    for route in ROUTES {
        let name = format!("{} {}", route.method, route.path);
        let refused = |status: u16| status == 401 || status == 403;
        let none = status(&server, route, None).await;
        let wrong = status(&server, route, Some("nonsense")).await;
        let Access::Key(scope) = route.access else {
            assert!(!refused(none) && !refused(wrong), "{name} is open");
            continue;
        };
        assert_eq!((none, wrong), (401, 401), "{name}");
        for (key, own) in [(CHAT_KEY, Scope::Chat), (METRICS_KEY, Scope::Metrics), (ADMIN_KEY, Scope::Admin)] {
            let got = status(&server, route, Some(key)).await;
            if own == scope || own == Scope::Admin {
                assert!(!refused(got) && got != 404, "{name} with {key}: {got}");
            } else {
                assert_eq!(got, 403, "{name} with {key}");
            }
        }
    }
    let open: Vec<_> = ROUTES.iter().filter(|r| r.access == Access::Open).map(|r| r.path).collect();
    assert_eq!(open, ["/", "/page/{*id}", "/openapi.json", "/health"], "a new open route must be meant");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_why_and_bad_headers_are_refused() {
    let server = server().await;
    let of =
        |value: &'static str| server.send(server.client.get(server.url("/v1/models")).header("authorization", value));
    for value in ["key-chat", "Basic a2V5", "Bearer", "Bearer  ", "bearer nonsense"] {
        let answer = of(value).await;
        assert_eq!((answer.status, &answer.error()["code"]), (401, &"invalid_api_key".into()), "{value}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
    assert_eq!(of("bearer key-chat").await.status, 200);
    let twice = server.client.get(server.url("/v1/models")).header("authorization", "Bearer key-chat");
    assert_eq!(server.send(twice.header("authorization", "Bearer key-admin")).await.status, 401);
    let scope = server.send(server.client.post(server.url("/v1/admin/pause")).bearer_auth(CHAT_KEY)).await;
    assert_eq!((scope.status, &scope.error()["code"]), (403, &"insufficient_scope".into()));
    assert!(scope.error()["message"].as_str().unwrap().contains("admin"));
}

/// Clients that were given no key send an empty one, or none behind the word.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_key_is_configured_an_empty_one_is_let_in() {
    let server = server().await;
    server.fake.keyless.store(true, Ordering::SeqCst);
    for (value, status) in
        [("Bearer ", 200), ("Bearer", 200), ("", 200), ("bearer  ", 200), ("Bearer anything", 200), ("Basic a2V5", 401)]
    {
        let answer = server.send(server.client.get(server.url("/v1/models")).header("authorization", value)).await;
        assert_eq!(answer.status, status, "`{value}`: {}", answer.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_request_is_not_the_owner_on_loopback() {
    let server = server().await;
    assert_eq!(server.get("/v1/models").await.status, 200);
    for header in ["x-forwarded-for", "forwarded", "x-real-ip"] {
        let request = server.client.get(server.url("/v1/models")).header(header, "203.0.113.9");
        assert_eq!(server.send(request).await.status, 401, "{header}");
    }
}

#[test]
fn every_route_is_documented_with_its_scope() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/api.md")).unwrap();
    for route in ROUTES {
        let name = format!("`{} {}`", route.method, route.path);
        let row = page.lines().find(|line| line.starts_with('|') && line.contains(&name));
        let row = row.unwrap_or_else(|| panic!("{name} is missing from docs/api.md"));
        let scope = match route.access {
            Access::Open => "–",
            Access::Key(Scope::Chat) => "chat",
            Access::Key(Scope::Metrics) => "metrics",
            Access::Key(Scope::Admin) => "admin",
        };
        assert_eq!(row.split('|').nth(2).map(str::trim), Some(scope), "{row}");
    }
}
