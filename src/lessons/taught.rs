//! What a correction teaches: the question of its turn, with the right answer.

use super::words::leans;
use super::{ANSWER_CHARS_MAX, Draft, Known, LessonId, QUESTION_CHARS_MAX, Source};
use crate::scoring::correction::Answer;
use crate::service::{Principal, Scope};
use crate::turn::{Role, Turn};

/// The pipeline's version of a turn that went through none.
const NO_PIPELINE: &str = "none";

/// The lesson that a correction of a turn makes, or why it makes none, for people.
pub fn of_correction(turn: &Turn, principal: &Principal, correction: &str) -> Result<Draft, String> {
    let none = |why: &str| Err(why.to_owned());
    if turn.principal != principal.name {
        return none("a correction teaches a lesson where it corrects a reply of one's own");
    }
    if turn.taint {
        return none("text of tools or files took part in the reply: add the lesson by hand");
    }
    let asked = turn.messages.last().filter(|last| last.role == Role::User && turn.pipeline_version != NO_PIPELINE);
    let Some(question) = asked.map(|message| message.content.trim()).filter(|question| !question.is_empty()) else {
        return none("the reply answers no question");
    };
    let own = turn.messages.iter().filter(|message| message.role != Role::System).skip(turn.examples as usize);
    if own.count() > 1 && leans(question) {
        return none("the question needs what was said before it: add the lesson by hand, with a whole question");
    }
    let answer = Answer::read(correction, &turn.tools).content;
    if answer.is_empty() {
        return none("the correction has no words outside of its thought and its calls");
    }
    for (what, text, most) in [("question", question, QUESTION_CHARS_MAX), ("answer", &answer, ANSWER_CHARS_MAX)] {
        if text.chars().count() > most {
            return Err(format!("the {what} is longer than {most} characters: add the lesson by hand, in fewer words"));
        }
    }
    Ok(Draft {
        principal: principal.name.clone(),
        questions: vec![question.to_owned()],
        known: Known::Correction,
        sources: vec![Source {
            turn: turn.id.clone(),
            conversation: turn.conversation.clone(),
            time_ms: turn.time_ms,
            consent: turn.consent,
        }],
        by_owner: principal.may(Scope::Admin),
        sharing: None,
        shown: turn.lessons.iter().cloned().map(LessonId).collect(),
        answer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixture;
    use crate::turn::Message;

    fn who(name: &str) -> Principal {
        Principal { name: name.into(), scopes: vec![Scope::Chat], consent: false }
    }

    #[test]
    fn a_correction_of_ones_own_untainted_chat_is_a_lesson() {
        let turn = Turn {
            messages: vec![Message::new(Role::System, "s"), Message::new(Role::User, " Which day? ")],
            ..fixture::turn("turn-1", "ada")
        };
        let of = |turn: &Turn, name: &str, text: &str| of_correction(turn, &who(name), text);
        let draft = of(&turn, "ada", "<think>It moved.</think> Monday.").unwrap();
        assert_eq!((draft.questions, draft.answer.as_str()), (vec!["Which day?".to_owned()], "Monday."));
        assert_eq!((draft.sources[0].turn.clone(), draft.by_owner), (turn.id.clone(), false));
        assert!(of(&turn, "bob", "Monday.").unwrap_err().contains("one's own"));
        assert!(of(&turn, "ada", "<think>It moved.</think>").unwrap_err().contains("no words"));
        assert!(of(&turn, "ada", &"x".repeat(ANSWER_CHARS_MAX + 1)).unwrap_err().contains("longer than"));
        let mut leaning = turn.clone();
        leaning.messages[1].content = "And on Sunday?".into();
        assert!(of(&leaning, "ada", "Monday.").is_ok(), "nothing was said before");
        leaning
            .messages
            .splice(1..1, [Message::new(Role::User, "Which day?"), Message::new(Role::Assistant, "Today.")]);
        assert!(of(&leaning, "ada", "Monday.").unwrap_err().contains("before it"));
        leaning.examples = 2;
        assert!(of(&leaning, "ada", "Monday.").is_ok());
        let tainted = Turn { taint: true, ..turn.clone() };
        assert!(of(&tainted, "ada", "Monday.").unwrap_err().contains("by hand"));
        let plain = Turn { pipeline_version: NO_PIPELINE.into(), ..turn.clone() };
        assert!(of(&plain, "ada", "Monday.").unwrap_err().contains("no question"));
        let mut going_on = turn;
        going_on.messages.push(Message::new(Role::Assistant, "It is"));
        assert!(of(&going_on, "ada", "Monday.").is_err());
    }
}
