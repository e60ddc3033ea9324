//! Words that stand in every text of a language: they tell the language, and find nothing.

use std::collections::HashSet;
use std::sync::LazyLock;

/// Languages whose words are known, with their codes. The last has no rules.
pub(super) const LANGUAGES: [&str; 6] = ["en", "fr", "de", "es", "it", ""];

/// Characters of a text that tell its language.
const TOLD_CHARS: usize = 4_000;

const EN: &str = " a about after all also am an and any are as at be because been before being but by can could did do does \
    for from had has have he her him his how i if in into is it its me more my no nor not of on one or our out she should \
    so some than that the their them then there these they this those to up us was we were what when where which while \
    who whom why will with would you your ";
const FR: &str = " \u{e0} ai as au aux avec avez avons c ce ces cet cette ceux comme comment d dans de des du elle elles en \
    es est et \u{e9}t\u{e9} eu il ils j je l la le les leur leurs lui m ma mais me mes moi mon n ne nos notre nous on ont \
    ou o\u{f9} par pas pour qu quand que quel quelle quelles quels qui s sa se ses son sont sur t ta te tes toi ton tu un \
    une vos votre vous y ";
const DE: &str = " aber alle als am an auch auf aus bei bin bis das dass dein dem den der des die dies diese dieser du durch \
    ein eine einem einen einer eines er es f\u{fc}r hat habe haben hatte ich ihm ihn ihr ihre im in ist ja kann kein keine \
    man mein mich mir mit nach nicht noch nur oder ohne sein seine sich sie sind so \u{fc}ber um und uns unter vom von vor \
    wann war waren warum was wenn wer werden wie wird wir wo zu zum zur ";
const ES: &str = " a al ante como con cu\u{e1}l cu\u{e1}ndo de del desde d\u{f3}nde donde durante e el ella ellas ellos en \
    entre era es esa ese eso esta est\u{e1} este esto fue ha hay la las le les lo los m\u{e1}s me mi muy nada ni no nos o \
    para pero por porque qu\u{e9} que quien qui\u{e9}n se ser si sin sobre son su sus tambi\u{e9}n te tu tus un una uno \
    unos y ya yo ";
const IT: &str = " a ad ai al alla alle anche c che chi ci come con cosa cui da dal dalla degli dei del della delle di dove \
    e \u{e8} ed era gli ha hanno ho i il in io l la le lei lo loro lui ma mi mio ne nel nella nelle noi non o per perch\u{e9} \
    pi\u{f9} quale quando quella quello questa questo qui se sei si sia sono sta su sua sul sulla suo ti tra tu un una uno vi \
    voi ";

fn list(code: &str) -> &'static str {
    match code {
        "en" => EN,
        "fr" => FR,
        "de" => DE,
        "es" => ES,
        "it" => IT,
        _ => "",
    }
}

static LISTS: LazyLock<[HashSet<&'static str>; LANGUAGES.len()]> =
    LazyLock::new(|| LANGUAGES.map(|code| list(code).split_whitespace().collect()));

/// Does this word, in small letters, say nothing in this language? In tables and programs, whose language is not known, a word
/// says nothing if it says nothing in any.
pub(super) fn is_stop(code: &str, word: &str) -> bool {
    LANGUAGES.iter().zip(LISTS.iter()).any(|(known, list)| (code.is_empty() || *known == code) && list.contains(word))
}

/// The language of a text by the words that say nothing in it; empty: none of those that are known.
pub(super) fn language(text: &str) -> &'static str {
    let begins: String = text.chars().take(TOLD_CHARS).collect();
    let small = begins.to_lowercase();
    let words: Vec<&str> = small.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let known = LANGUAGES.into_iter().filter(|code| !code.is_empty());
    let counted = known.map(|code| (words.iter().filter(|word| is_stop(code, word)).count(), code));
    // Of equals the first.
    let best = counted.rev().max_by_key(|(count, _)| *count);
    best.filter(|(count, _)| *count > 0).map_or("", |(_, code)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_tells_its_language() {
        for (text, code) in [
            ("The keys are hanging behind the door.", "en"),
            ("Les cl\u{e9}s sont derri\u{e8}re la porte de la cave.", "fr"),
            ("Die Schl\u{fc}ssel h\u{e4}ngen hinter der T\u{fc}r.", "de"),
            ("Las llaves est\u{e1}n detr\u{e1}s de la puerta del s\u{f3}tano y no en la mesa.", "es"),
            ("Le chiavi sono dietro la porta della cantina e non sul tavolo.", "it"),
            ("4711 boiler", ""),
            ("\u{9375}\u{306f}\u{3069}\u{3053}", ""),
            ("", ""),
        ] {
            assert_eq!(language(text), code, "{text}");
        }
        assert!(is_stop("en", "the") && !is_stop("en", "he the") && !is_stop("en", "oiler") && !is_stop("en", "les"));
        assert!(is_stop("", "the") && is_stop("", "les") && !is_stop("", "boiler"));
        assert!(is_stop("fr", "\u{e0}") && is_stop("en", "your") && is_stop("en", "a") && !is_stop("en", ""));
    }
}
