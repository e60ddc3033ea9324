//! The byte alphabet of GPT-2: each byte is written as one printable character, so that merges can be told
//! as text. Printable Latin-1 bytes stand for themselves, the other 68 for the characters from U+0100 on.

/// The 256 characters, by byte.
#[derive(Debug)]
pub(super) struct Alphabet {
    chars: [char; 256],
}

impl Alphabet {
    pub(super) fn new() -> Alphabet {
        let mut chars = ['\0'; 256];
        let mut spare = 0x100u32;
        for byte in 0..=255u8 {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            chars[usize::from(byte)] = if printable {
                char::from(byte)
            } else {
                spare += 1;
                char::from_u32(spare - 1).unwrap_or_default()
            };
        }
        Alphabet { chars }
    }

    /// Appends the characters of `bytes`.
    pub(super) fn write(&self, bytes: &[u8], out: &mut String) {
        out.extend(bytes.iter().map(|b| self.chars[usize::from(*b)]));
    }

    /// The bytes that `text` stands for; `None` if a character is not of the alphabet.
    pub(super) fn read(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.byte(c)).collect()
    }

    fn byte(&self, c: char) -> Option<u8> {
        match u32::from(c) {
            code @ 0..=0xff => {
                let byte = code as u8;
                (self.chars[usize::from(byte)] == c).then_some(byte)
            }
            // The spare characters stand, in order, for the bytes 0–32, 127–160 and 173.
            code @ 0x100..=0x120 => Some((code - 0x100) as u8),
            code @ 0x121..=0x142 => Some((code - 0x121 + 127) as u8),
            0x143 => Some(173),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_no_character_serves_twice() {
        let alphabet = Alphabet::new();
        let all: Vec<u8> = (0..=255).collect();
        let mut text = String::new();
        alphabet.write(&all, &mut text);
        assert_eq!(alphabet.read(&text), Some(all));
        assert_eq!(text.chars().collect::<std::collections::BTreeSet<_>>().len(), 256);
        assert!(text.starts_with("ĀāĂ") && text.contains('Ġ'));
        assert_eq!(alphabet.read("a b"), None);
    }
}
