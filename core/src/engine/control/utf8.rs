//! Text out of token bytes. A character whose bytes are spread over several tokens is held until it is
//! whole. Bytes that can never become one are replaced by U+FFFD.

/// At most three bytes of an unfinished character.
#[derive(Debug, Default)]
pub(super) struct Utf8Assembler {
    pending: Vec<u8>,
}

impl Utf8Assembler {
    /// Adds the bytes of a token; returns what is complete. All that is ever returned, put together, is
    /// `String::from_utf8_lossy` of all the bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut at = 0;
        while at < self.pending.len() {
            match std::str::from_utf8(&self.pending[at..]) {
                Ok(rest) => {
                    text.push_str(rest);
                    at = self.pending.len();
                }
                Err(e) => {
                    let valid = at + e.valid_up_to();
                    text.push_str(&String::from_utf8_lossy(&self.pending[at..valid]));
                    at = valid;
                    let Some(bad) = e.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    at += bad;
                }
            }
        }
        self.pending.drain(..at);
        text
    }

    /// A character is under way.
    pub(super) fn unfinished(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Gives up on an unfinished character.
    pub(super) fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLES: [&[u8]; 6] = [
        "aé€🦀".as_bytes(),
        b"\xf0\x9f\xa6",
        b"a\xffb\xc3(\xe2\x82x",
        b"\xed\xa0\x80\xf4\x90\x80\x80",
        b"\xc0\xaf\xe0\x80\xaf",
        "👩‍👩‍👧é".as_bytes(),
    ];

    #[test]
    fn every_split_in_three_gives_the_lossy_text() {
        for bytes in SAMPLES {
            for a in 0..=bytes.len() {
                for b in a..=bytes.len() {
                    let mut utf8 = Utf8Assembler::default();
                    let mut text = utf8.push(&bytes[..a]);
                    text += &utf8.push(&bytes[a..b]);
                    text += &utf8.push(&bytes[b..]);
                    text += &utf8.flush();
                    assert_eq!(text, String::from_utf8_lossy(bytes), "{bytes:?} cut at {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn a_character_comes_whole_or_not_yet() {
        let mut utf8 = Utf8Assembler::default();
        assert_eq!(utf8.push(&[0xf0]), "");
        assert!(utf8.unfinished());
        assert_eq!(utf8.push(&[0x9f, 0xa6]), "");
        assert_eq!(utf8.push(&[0x80, b'!']), "🦀!");
        assert!(!utf8.unfinished());
    }
}
