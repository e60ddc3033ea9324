//! Origins of pages that may chat: scheme, host and port, as a browser sends them. And the names that a Host header may
//! carry.

use super::ConfigError;
use super::raw::Field;

const ORIGINS_MAX: usize = 64;
const BYTES_MAX: usize = 256;
const WANTED: &str = "origins as a browser names them, such as https://chat.example or app://obsidian.md";

/// Each by itself: there is no word for all of them.
pub(super) fn origins(field: Option<Field<Vec<String>>>) -> Result<Vec<String>, ConfigError> {
    let Some(field) = field else { return Ok(Vec::new()) };
    let refuse = |value: String, wanted: &str| {
        let wanted = wanted.to_owned();
        Err(ConfigError::Range { origin: field.origin.clone(), key: "http.origins", value, wanted })
    };
    if field.value.len() > ORIGINS_MAX {
        return refuse(format!("{} origins", field.value.len()), &format!("at most {ORIGINS_MAX}"));
    }
    if let Some(wrong) = field.value.iter().find(|origin| !is_origin(origin)) {
        return refuse(format!("`{}`", wrong.escape_debug()), WANTED);
    }
    Ok(field.value)
}

/// `scheme://host` or `scheme://host:port`, in lower case and without a path, as a browser writes it.
fn is_origin(text: &str) -> bool {
    let Some((scheme, place)) = text.split_once("://") else { return false };
    let of_scheme = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.');
    let of_place = |b: u8| of_scheme(b) || matches!(b, b'_' | b':' | b'[' | b']');
    text.len() <= BYTES_MAX
        && scheme.starts_with(|c: char| c.is_ascii_lowercase())
        && scheme.bytes().all(of_scheme)
        && !place.is_empty()
        && place.bytes().all(of_place)
}

/// Names of this machine, each as it stands in a Host header, without the port.
pub(super) fn hosts(field: Option<Field<Vec<String>>>) -> Result<Vec<String>, ConfigError> {
    let Some(field) = field else { return Ok(Vec::new()) };
    let Some(wrong) = field.value.iter().find(|host| !is_host(host)) else { return Ok(field.value) };
    Err(ConfigError::Range {
        value: format!("`{}`", wrong.escape_debug()),
        origin: field.origin,
        key: "http.hosts",
        wanted: "names or addresses alone, such as chat.example or 192.168.1.5, without scheme and port".to_owned(),
    })
}

fn is_host(text: &str) -> bool {
    let of_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let name = || !text.is_empty() && text.len() <= BYTES_MAX && !text.ends_with('.') && text.bytes().all(of_host);
    text.parse::<std::net::IpAddr>().is_ok() || name()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_alone() {
        for good in ["chat.example", "NAS", "my_box", "192.168.1.5", "fe80::1"] {
            assert!(is_host(good), "{good}");
        }
        for bad in ["", "http://x", "x:8377", "a/b", "*.example", "a b", "é.example", "[fe80::1]", "chat.example."] {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn origins_are_whole_and_nothing_more() {
        for good in ["https://chat.example", "http://localhost:3000", "app://obsidian.md", "http://[::1]:80"] {
            assert!(is_origin(good), "{good}");
        }
        let long = format!("https://{}", "a".repeat(BYTES_MAX));
        for bad in [
            "*",
            "null",
            "",
            "chat.example",
            "https://",
            "https://a/",
            "https://A",
            "https://*.a",
            "://a",
            "1a://b",
            &long,
        ] {
            assert!(!is_origin(bad), "{bad}");
        }
    }
}
