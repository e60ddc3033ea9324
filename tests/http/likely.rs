//! How likely the fake holds its tokens.

use chimere::engine::protocol::{PromptToken, TokenLogprob};
use chimere::service::Logprob;

pub fn logprob(text: &str, top: u8) -> Logprob {
    let one =
        |text: &str, logprob| TokenLogprob { id: 7, text: text.to_owned(), bytes: text.as_bytes().to_vec(), logprob };
    let top = (0..top).map(|i| one(&format!("alt{i}"), -0.1 - f32::from(i))).collect();
    Logprob { chosen: one(text, -0.1), top }
}

/// The tokens of a prompt; the first has nothing before it.
pub fn read(texts: Vec<String>, top: u8) -> Vec<PromptToken> {
    let token = |(at, text): (usize, String)| {
        let Logprob { chosen: TokenLogprob { id, text, bytes, logprob }, top } = logprob(&text, top);
        let (logprob, top) = if at > 0 { (Some(logprob), top) } else { (None, Vec::new()) };
        PromptToken { id, text, bytes, logprob, top }
    };
    texts.into_iter().enumerate().map(token).collect()
}
