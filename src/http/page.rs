//! `GET /` and `/page/*`: the chat page, embedded in the binary. It is plain HTML, CSS and JavaScript modules, sent
//! as they lie in `page/`. The policy says what the page may do. So a model's text can load nothing, run nothing and
//! lead nowhere, even if the page's own care failed.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY,
};
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::routes::Call;

/// Nothing from elsewhere, nothing inline, no markup made from strings, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
/// Other windows of the browser get no handle on this one.
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// One file of the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($name:literal $kind:literal),* $(,)?) => {
        &[$(Asset { name: $name, kind: $kind, text: include_str!(concat!("page/", $name)) }),*]
    };
}

const HTML: &str = "index.html";

static ASSETS: &[Asset] = assets![
    "index.html" "text/html; charset=utf-8",
    "style.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
    "storage.js" "text/javascript; charset=utf-8",
    "theme.js" "text/javascript; charset=utf-8",
    "main.js" "text/javascript; charset=utf-8",
    "api.js" "text/javascript; charset=utf-8",
    "conversations.js" "text/javascript; charset=utf-8",
    "documents.js" "text/javascript; charset=utf-8",
    "dom.js" "text/javascript; charset=utf-8",
    "inline.js" "text/javascript; charset=utf-8",
    "keys.js" "text/javascript; charset=utf-8",
    "lessons.js" "text/javascript; charset=utf-8",
    "list.js" "text/javascript; charset=utf-8",
    "log.js" "text/javascript; charset=utf-8",
    "markdown.js" "text/javascript; charset=utf-8",
    "message.js" "text/javascript; charset=utf-8",
    "render.js" "text/javascript; charset=utf-8",
    "reply.js" "text/javascript; charset=utf-8",
    "session.js" "text/javascript; charset=utf-8",
    "settings.js" "text/javascript; charset=utf-8",
];

/// One tag for all files: they belong together, and a new binary replaces them together.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for asset in ASSETS {
        hash.update(asset.name);
        hash.update([0]);
        hash.update(asset.text);
        hash.update([0]);
    }
    let hex: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hex}\"")
});

/// The page itself.
pub(crate) async fn index(call: Call) -> Result<Response, ApiError> {
    answer(HTML, &call.headers)
}

/// A file that the page loads.
pub(crate) async fn file(call: Call) -> Result<Response, ApiError> {
    match call.id.as_deref() {
        // The page has one address.
        None | Some(HTML) => Err(ApiError::not_found("the page is at `/`")),
        Some(name) => answer(name, &call.headers),
    }
}

fn answer(name: &str, asked: &HeaderMap) -> Result<Response, ApiError> {
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    let asset = asset.ok_or_else(|| ApiError::not_found("the page has no such file"))?;
    let tag = HeaderValue::from_str(&TAG).map_err(|error| ApiError::internal(error.to_string()))?;
    let common = [
        (ETAG, tag),
        // Asked for each time, sent only when the binary has another one.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (OPENER_POLICY, HeaderValue::from_static("same-origin")),
    ];
    if has_it(asked) {
        return Ok((StatusCode::NOT_MODIFIED, common).into_response());
    }
    Ok((common, [(CONTENT_TYPE, HeaderValue::from_static(asset.kind))], asset.text).into_response())
}

/// Does the client hold this very version?
fn has_it(asked: &HeaderMap) -> bool {
    asked
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|tag| matches!(tag.trim().trim_start_matches("W/"), "*") || tag.trim().trim_start_matches("W/") == *TAG)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> impl Iterator<Item = &'static str> {
        ASSETS.iter().map(|asset| asset.name)
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_every_file_that_is_named_exists() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/page");
        let mut there: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        there.sort_unstable();
        let mut served: Vec<&str> = names().collect();
        served.sort_unstable();
        assert_eq!(there, served);
        for asset in ASSETS {
            let imports = asset.text.split("from './").skip(1).map(|rest| rest.split('\'').next().unwrap());
            let links = asset.text.split("\"/page/").skip(1).map(|rest| rest.split('"').next().unwrap());
            for name in imports.chain(links) {
                assert!(names().any(|known| known == name), "{} names {name}", asset.name);
            }
        }
    }

    #[test]
    fn the_page_makes_no_markup_from_strings_and_names_no_other_place() {
        for asset in ASSETS {
            for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!asset.text.contains(word), "{} contains {word}", asset.name);
            }
            for (at, _) in asset.text.match_indices("://") {
                let here = asset.text[..at].rsplit(|c: char| !c.is_ascii_alphabetic()).next().unwrap();
                let rest = &asset.text[at + 3..];
                // The name of a vocabulary is no address, and the parser must know what an address looks like.
                let known = rest.starts_with("www.w3.org/2000/svg") || !rest.starts_with(|c: char| c.is_alphanumeric());
                assert!(known, "{} names {here}://{}", asset.name, rest.lines().next().unwrap_or_default());
            }
            let says_why = !asset.name.ends_with(".js") || asset.text.starts_with("// ");
            assert!(says_why, "{} starts with `//` saying why it exists", asset.name);
            let lines = asset.text.lines().count();
            assert!(lines <= 300, "{}: {lines} lines", asset.name);
        }
        let html = ASSETS.iter().find(|a| a.name == HTML).unwrap().text;
        for inline in ["<style", " style=", "javascript:", " onclick", " onload"] {
            assert!(!html.contains(inline), "the policy would refuse {inline}");
        }
    }
}
