//! Text as rules compare it: without case and accents, and with single spaces.

/// The beginning and the end of a text, cut between characters, or the whole where it is no longer than both.
pub fn ends_of(text: &str, head: usize, tail: usize) -> Vec<&str> {
    if text.len() <= head + tail {
        return vec![text];
    }
    vec![&text[..text.floor_char_boundary(head)], &text[text.ceil_char_boundary(text.len() - tail)..]]
}

/// Appends `text` folded: small letters, `é` as `e`, `ß` as `ss`, one space for a run of space, `'` for every apostrophe.
pub fn fold(text: &str, out: &mut String) {
    out.reserve(text.len());
    for c in text.chars() {
        match c {
            'a'..='z' | '!'..='@' => out.push(c),
            'A'..='Z' => out.push(c.to_ascii_lowercase()),
            _ if c.is_whitespace() => {
                if !out.ends_with(' ') {
                    out.push(' ');
                }
            }
            _ if c.is_ascii() => out.push(c),
            // Accents that stand for themselves, behind their letter.
            '\u{300}'..='\u{36f}' => {}
            _ => c.to_lowercase().for_each(|c| letter(c, out)),
        }
    }
}

/// A small letter beyond ASCII without its accent.
fn letter(c: char, out: &mut String) {
    let plain = match c {
        'à'..='å' | 'ā' | 'ă' | 'ą' => "a",
        'æ' => "ae",
        'ç' | 'ć' | 'č' => "c",
        'ď' | 'đ' => "d",
        'è'..='ë' | 'ē' | 'ė' | 'ę' | 'ě' => "e",
        'ğ' => "g",
        'ì'..='ï' | 'ī' | 'į' | 'ı' => "i",
        'ł' => "l",
        'ñ' | 'ń' | 'ň' => "n",
        'ò'..='ö' | 'ø' | 'ō' | 'ő' => "o",
        'œ' => "oe",
        'ř' => "r",
        'ß' => "ss",
        'ś' | 'š' | 'ş' => "s",
        'ť' | 'ţ' => "t",
        'ù'..='ü' | 'ū' | 'ů' | 'ű' => "u",
        'ý' | 'ÿ' => "y",
        'ź' | 'ż' | 'ž' => "z",
        '‘' | '’' => "'",
        '\u{300}'..='\u{36f}' => "",
        _ => return out.push(c),
    };
    out.push_str(plain);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_text_are_cut_between_characters() {
        assert_eq!(ends_of("abcdef", 3, 3), ["abcdef"]);
        assert_eq!(ends_of("abcdefg", 3, 3), ["abc", "efg"]);
        assert_eq!(ends_of("éééé", 3, 3), ["é", "é"]);
    }

    #[test]
    fn case_accents_and_space_make_no_difference() {
        for (text, folded) in [
            ("L’Épaule", "l'epaule"),
            ("Cafe\u{301}", "cafe"),
            ("RÜCKEN und Füße", "rucken und fusse"),
            ("contraseña\u{a0}\t\n nueva", "contrasena nueva"),
            ("cœur, perché, İ", "coeur, perche, i"),
            ("日本 `x` [y] ~", "日本 `x` [y] ~"),
        ] {
            let mut out = String::new();
            fold(text, &mut out);
            assert_eq!(out, folded);
        }
    }
}
