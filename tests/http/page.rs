//! The chat page as it is served: policy, cache, hosts, methods, and that it is reachable without a key.

use std::sync::atomic::Ordering;

use crate::server;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_comes_under_a_policy_and_loads_only_what_is_here() {
    let server = server().await;
    // Whoever has no key yet must be able to enter one.
    server.fake.locked.store(true, Ordering::SeqCst);
    let page = server.get("/").await;
    assert_eq!((page.status, page.headers["content-type"].to_str().unwrap()), (200, "text/html; charset=utf-8"));
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    for part in ["default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-cache"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        assert_eq!(page.headers[name], value, "{name}");
    }
    let named: Vec<&str> = page.text.split("=\"/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(named.len() >= 4, "{named:?}");
    for name in named {
        let file = server.get(&format!("/{name}")).await;
        assert_eq!(file.status, 200, "{name}");
        assert_eq!(file.headers["content-security-policy"], policy, "{name}");
        let kind = match name.rsplit('.').next().unwrap() {
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/javascript; charset=utf-8",
        };
        assert_eq!(file.headers["content-type"], kind, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_sent_again_only_when_it_changed() {
    let server = server().await;
    let page = server.get("/").await;
    let tag = page.headers["etag"].to_str().unwrap().to_owned();
    let with = |tag: &str| server.send(server.client.get(server.url("/")).header("if-none-match", tag.to_owned()));
    for held in [tag.clone(), format!("W/{tag}"), format!("\"old\", {tag}"), "*".to_owned()] {
        let answer = with(&held).await;
        assert_eq!((answer.status, answer.text.as_str()), (304, ""), "{held}");
        assert_eq!(
            (&answer.headers["etag"], &answer.headers["cache-control"]),
            (&page.headers["etag"], &page.headers["cache-control"])
        );
    }
    assert_eq!(with("\"old\"").await.text, page.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_get_and_head_and_only_for_own_hosts() {
    let server = server().await;
    let head = server.send(server.client.head(server.url("/page/main.js"))).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    let post = server.send(server.client.post(server.url("/"))).await;
    assert_eq!((post.status, post.headers["allow"].to_str().unwrap()), (405, "GET"));
    for lost in
        ["/page/", "/page/none.js", "/page/index.html", "/page/../main.rs", "/page/%2e%2e/page.rs", "/index.html"]
    {
        assert_eq!(server.get(lost).await.status, 404, "{lost}");
    }
    for path in ["/", "/page/main.js"] {
        let foreign = format!("GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
        assert!(server.raw(foreign.as_bytes()).await.starts_with("HTTP/1.1 421 "), "{path}");
    }
}
