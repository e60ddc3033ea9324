//! Keys that stand twice in one object. JSON leaves open which of them counts. So a guard before the daemon and the
//! daemon itself could read two different requests. Such a body is refused.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Longest key that an error repeats, characters.
const KEY_CHARS_MAX: usize = 80;

/// A JSON value whose objects have each key once; the value itself is not kept.
pub(crate) struct Unique;

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Passing)
    }
}

struct Passing;

impl<'de> Visitor<'de> for Passing {
    type Value = Unique;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Unique, E> {
        Ok(Unique)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Unique, A::Error> {
        while items.next_element::<Unique>()?.is_some() {}
        Ok(Unique)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Unique, A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            entries.next_value::<Unique>()?;
            if let Some(twice) = seen.replace(key) {
                let key: String = twice.chars().take(KEY_CHARS_MAX).collect();
                return Err(A::Error::custom(format!("the key `{key}` stands twice in one object")));
            }
        }
        Ok(Unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_stands_twice_is_found_at_any_depth() {
        let of = |text: &str| serde_json::from_str::<Unique>(text).map(drop).map_err(|error| error.to_string());
        for good in [
            r#"{"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]}"#,
            r#"[null,true,-1,18446744073709551615,1.5e300,"a",{"A":1,"a":2,"":3," ":4}]"#,
            "7",
        ] {
            assert_eq!(of(good), Ok(()), "{good}");
        }
        for twice in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[[{"b":{"a":[],"c":1,"a":null}}]]"#,
            r#"{"a":1,"b":2,"c":{"a":1},"a":{}}"#,
        ] {
            let error = of(twice).unwrap_err();
            assert!(error.starts_with("the key `a` stands twice"), "{twice}: {error}");
        }
    }
}
