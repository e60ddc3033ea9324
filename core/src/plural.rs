//! Numbers of things, as messages say them: "1 reply", "2 replies".

use std::fmt::Display;

/// `count` and the word that fits it.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let word = noun(&count, one, many);
    format!("{count} {word}")
}

/// The word that fits `count`, where something stands between them.
pub fn noun<'a, N: PartialEq + From<u8>>(count: &N, one: &'a str, many: &'a str) -> &'a str {
    if *count == N::from(1) { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_one_and_all_else_is_many() {
        for (count, said) in [(0, "0 replies"), (1, "1 reply"), (2, "2 replies")] {
            assert_eq!(counted(count, "reply", "replies"), said);
        }
        assert_eq!(noun(&1_usize, "it is", "they are"), "it is");
    }
}
