//! The model's vote where the rules are unsure: one question with the routes numbered, answered by one token that a form
//! holds to these numbers. The caller decides whether it is worth a generation.

use std::time::Duration;

use serde_json::json;

use crate::engine::grammar::Grammar;
use crate::engine::protocol::{ChatInput, Generate, Prompt};
use crate::turn::{Message, Role, Sampling, Thinking};

/// A later vote is none.
pub const DEADLINE: Duration = Duration::from_millis(300);
/// Of the user's text, its beginning.
const TEXT_BYTES_MAX: usize = 1 << 10;
/// A number is one digit, so one token.
pub const ROUTES_MAX: usize = 9;

/// A route to vote on: its name and what its pipeline file says of it.
pub type Candidate<'a> = (&'a str, &'a str);

/// The question to the model, about the first `ROUTES_MAX` routes.
pub fn question(text: &str, routes: &[Candidate]) -> Generate {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    let numbers: Vec<usize> = (1..=routes.len().min(ROUTES_MAX)).collect();
    let list: String =
        numbers.iter().zip(routes).map(|(number, (name, about))| format!("{number}. {name}: {about}\n")).collect();
    let asked =
        format!("Which subject is this request about?\n{list}\nRequest: {text}\n\nAnswer with the number alone.");
    let chat = ChatInput {
        messages: vec![Message::new(Role::User, asked)],
        thinking: Thinking::Off,
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let sampling =
        Sampling { temperature: 0.0, seed: Some(0), logprobs: Some(ROUTES_MAX as u8), ..Sampling::default() };
    Generate {
        thinking: Thinking::Off,
        grammar: Some(Grammar::Json(json!({ "enum": numbers }))),
        ..Generate::new(Prompt::Chat(chat), sampling, 1)
    }
}

/// The route that the answer names.
pub fn answer<'a>(text: &str, routes: &[Candidate<'a>]) -> Option<&'a str> {
    let number: usize = text.trim().parse().ok()?;
    routes.get(number.checked_sub(1)?).map(|route| route.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: [Candidate; 2] = [("code", "Programming"), ("kine", "Movement")];

    #[test]
    fn a_vote_is_one_token_held_to_the_routes() {
        let asked = question(&"é".repeat(TEXT_BYTES_MAX), &ROUTES);
        assert_eq!((asked.max_tokens, asked.grammar), (1, Some(Grammar::Json(json!({ "enum": [1, 2] })))));
        let Prompt::Chat(chat) = asked.prompt else { panic!("a chat is asked") };
        let text = &chat.messages[0].content;
        assert!(text.contains("1. code: Programming\n2. kine: Movement\n"), "{text}");
        assert!(text.matches('é').count() == TEXT_BYTES_MAX / 2);
    }

    #[test]
    fn an_answer_names_a_route_or_none() {
        assert_eq!(answer("2", &ROUTES), Some("kine"));
        for none in ["0", "3", "", "code", "-1"] {
            assert_eq!(answer(none, &ROUTES), None, "{none}");
        }
    }
}
