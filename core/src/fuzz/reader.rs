//! Values read off bytes without structure, so that a change of one byte is a small change of what is made of them.

/// Bytes that are left; past their end everything is 0 or empty.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A byte with the length, then the text.
    pub fn text(&mut self) -> String {
        let length = usize::from(self.byte()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8_lossy(text).into_owned()
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.0)).into_owned()
    }
}

/// Cuts a text behind every `step` bytes, where a character begins.
pub fn cut(text: &str, step: usize) -> Vec<&str> {
    let (mut rest, mut pieces) = (text, Vec::new());
    while !rest.is_empty() {
        let at = (step.min(rest.len())..=rest.len()).find(|at| rest.is_char_boundary(*at)).unwrap_or(rest.len());
        let (piece, left) = rest.split_at(at);
        pieces.push(piece);
        rest = left;
    }
    pieces
}

/// Checks every file of `tests/fuzz/seeds/TARGET`, and what is left of each when it breaks off in the middle. The target's
/// program must do the same with what it makes up.
#[cfg(test)]
pub fn replay(target: &str, check: impl Fn(&[u8])) {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let fuzz = own.ancestors().map(|root| root.join("tests/fuzz")).find(|folder| folder.is_dir()).unwrap();
    let program = std::fs::read_to_string(fuzz.join(format!("targets/{target}.rs"))).unwrap();
    let called = format!("{}::fuzz::{target}::check(data));", env!("CARGO_CRATE_NAME"));
    assert!(program.contains(&called), "{target} does not call {called}");
    let built = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    assert!(built.contains(&format!("path = \"targets/{target}.rs\"")), "{target} is not built");
    let files = std::fs::read_dir(fuzz.join("seeds").join(target)).unwrap();
    let mut checked = 0;
    for file in files {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for half in [bytes.len(), bytes.len() / 2] {
            check(&bytes[..half]);
        }
        checked += 1;
    }
    assert!(checked > 0, "no seeds for {target}");
}
