//! What is said to be somebody's, as `locker` in "Marwen's locker".

use super::words::{is_common, stem, tokens_of};

/// The stems of what is said to be somebody's, as `locker` in "Marwen's locker" and in "the locker of Marwen". A question
/// about something else of the same one does not have them.
pub(super) fn belongings(text: &str) -> Vec<String> {
    let plain = text.replace(['’', '‘'], "'");
    let words: Vec<&str> = plain.split(|c: char| c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let bare = |word: &str| tokens_of(word).first().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let (owner, rest) = (word.strip_suffix("'s"), words.get(at + 1..).unwrap_or_default());
        if owner.is_some_and(|owner| !is_common(&bare(owner))) {
            // Up to the next word of no content or the end of the clause: "Marwen's old locker, ...".
            let mut last = None;
            for next in rest {
                if is_common(&bare(next)) || bare(next).is_empty() {
                    break;
                }
                last = Some(bare(next));
                if next.ends_with(|c: char| !c.is_alphanumeric()) {
                    break;
                }
            }
            found.extend(last);
        }
        let named = rest.first().is_some_and(|next| next.starts_with(char::is_uppercase) && !next.ends_with("'s"));
        if bare(word) == "of" && named && at > 0 {
            found.extend(words.get(at - 1).map(|thing| bare(thing)).filter(|thing| !is_common(thing)));
        }
    }
    found.iter().map(|word| stem(word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_somebody_is_read_either_way() {
        for (text, words) in [
            ("What is the code of Marwen's old locker?", &["locker"][..]),
            ("What is the code of the locker of Marwen?", &["locker"]),
            ("Marwen’s locker, what is its code?", &["locker"]),
            ("What's the code of the shed?", &[]),
            ("Where is Marwen's?", &[]),
            ("When is the birthday of Anselm?", &["birthday"]),
        ] {
            assert_eq!(belongings(text), words, "{text}");
        }
    }
}
