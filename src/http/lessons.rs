//! Lessons: what people taught. A key sees, changes and forgets its own, and sees those that the owner shared; the admin
//! scope reaches everybody's.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::routes::Call;
use super::table::{Param, Rule, Shape, TEXT, Table};
use super::{query, reply};
use crate::lessons::{
    ANSWER_CHARS_MAX, Edit, Known, Lesson, LessonId, QUESTION_CHARS_MAX, QUESTIONS_MAX, Sharing, State,
};
use crate::service::{LessonCommand, Scope, Taught};

/// Lessons in one page of the listing, unless the client asks for fewer.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;

const QUESTION: Shape = Shape::Text { min: 1, max: QUESTION_CHARS_MAX };
const QUESTIONS: Param = Param::new(
    "questions",
    Shape::List { of: &QUESTION, min: 1, max: QUESTIONS_MAX },
    "Wordings of the question, in place of one `question`.",
);
const ANSWER: Param = Param::new("answer", Shape::Text { min: 1, max: ANSWER_CHARS_MAX }, "The right answer.");
const SHARING: Param = Param::new(
    "sharing",
    Shape::Word(&["private", "shared"]),
    "Shown for its own principal, or for everybody; only the scope `admin` shares.",
);

const SEEN: Param = Param::new(
    "updated_ms",
    Shape::Whole { min: 0, max: i64::MAX as i128 },
    "As the lesson was seen: where its words are others by now, nothing is changed (409).",
);

pub(super) const LIST: Table = Table::new(
    "",
    "",
    &[&[
        Param::new("principal", TEXT, "Another than one's own needs the scope `admin`."),
        Param::new("after", TEXT, "The last lesson of the page before."),
        Param::new("limit", Shape::Whole { min: 1, max: PAGE_MAX as i128 }, "Lessons of a page.").default("100"),
    ]],
);
pub(super) const ADD: Table = Table {
    rules: &[Rule::ExactlyOne(&["question", "questions"])],
    ..Table::new(
        "AddLessonRequest",
        "A question, in one wording or several, and its answer.",
        &[&[Param::new("question", QUESTION, ""), QUESTIONS, ANSWER.required(), SHARING.default("\"private\"")]],
    )
};
pub(super) const EDIT: Table = Table {
    rules: &[Rule::AtLeastOne(&["question", "questions", "answer", "sharing"])],
    ..Table::new(
        "EditLessonRequest",
        "What is to be changed.",
        &[&[Param::new("question", QUESTION, "In place of all wordings."), QUESTIONS, ANSWER, SHARING, SEEN]],
    )
};

#[derive(Deserialize)]
struct Wanted {
    question: Option<String>,
    questions: Option<Vec<String>>,
    answer: Option<String>,
    sharing: Option<Sharing>,
    updated_ms: Option<i64>,
}

impl Wanted {
    fn of(call: &Call, table: &Table) -> Result<Self, ApiError> {
        let (map, _) = body::checked(&call.body, table, &call.limits)?;
        let wanted: Wanted = body::typed(Value::Object(map))?;
        if wanted.question.is_some() && wanted.questions.is_some() {
            return Err(ApiError::param("questions", "say `question` or `questions`, not both"));
        }
        Ok(wanted)
    }

    fn questions(&mut self) -> Option<Vec<String>> {
        self.questions.take().or_else(|| Some(vec![self.question.take()?]))
    }
}

#[derive(Deserialize)]
struct Page {
    principal: Option<String>,
    after: Option<LessonId>,
    limit: Option<usize>,
}

/// Whose lesson it is and what it comes from is told to whom it belongs.
fn object(call: &Call, lesson: &Lesson) -> Value {
    let (state, by) = match &lesson.state {
        State::New => ("new", None),
        State::Retired { by } => ("retired", Some(by)),
    };
    let known = match lesson.known {
        Known::Correction => "correction",
        Known::Added => "added",
    };
    let own = lesson.principal == call.principal.name || call.principal.may(Scope::Admin);
    let mut object = json!({
        "object": "lesson",
        "id": lesson.id,
        "questions": lesson.questions,
        "answer": lesson.answer,
        "known": known,
        "state": state,
        "sharing": lesson.sharing,
        "created_ms": lesson.created_ms,
        "updated_ms": lesson.updated_ms,
    });
    if let Some(by) = by {
        object["retired_by"] = json!(by);
    }
    if own {
        object["principal"] = json!(lesson.principal);
        object["turns"] = lesson.sources.iter().map(|source| json!(source.turn)).collect();
    }
    object
}

async fn one(call: Call, command: LessonCommand) -> Result<Response, ApiError> {
    let lessons = call.door.service.lessons(call.principal.clone(), command).await?;
    let lesson = lessons.first().ok_or_else(|| ApiError::internal("the lesson was lost"))?;
    Ok(reply::json(&object(&call, lesson)))
}

fn id(call: &Call) -> LessonId {
    LessonId(call.id.clone().unwrap_or_default())
}

/// A list is not whole where files are damaged: that is said with it.
pub(super) fn with_damage(call: &Call, of: Taught, mut list: Value) -> Value {
    if let Some(why) = call.door.service.damage(of, &call.principal) {
        list["message"] = json!(why);
    }
    list
}

pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let page: Page = body::typed(Value::Object(query::read(&call.uri, &LIST)?))?;
    let own = &call.principal.name;
    if page.principal.as_ref().is_some_and(|other| other != own) && !call.principal.may(Scope::Admin) {
        return Err(ApiError::forbidden_scope(own, Scope::Admin));
    }
    let limit = page.limit.unwrap_or(PAGE_DEFAULT);
    let after = page.after.filter(|id| !id.0.is_empty());
    // One more than asked tells whether there is more.
    let command = LessonCommand::List { principal: page.principal, after, limit: limit + 1 };
    let mut lessons = call.door.service.lessons(call.principal.clone(), command).await?;
    let has_more = lessons.len() > limit;
    lessons.truncate(limit);
    let data: Vec<Value> = lessons.iter().map(|lesson| object(&call, lesson)).collect();
    let list = json!({"object": "list", "data": data, "has_more": has_more});
    Ok(reply::json(&with_damage(&call, Taught::Lessons, list)))
}

pub(crate) async fn add(call: Call) -> Result<Response, ApiError> {
    let mut wanted = Wanted::of(&call, &ADD)?;
    let questions = wanted.questions().unwrap_or_default();
    let (answer, sharing) = (wanted.answer.unwrap_or_default(), wanted.sharing);
    one(call, LessonCommand::Add { questions, answer, sharing }).await
}

pub(crate) async fn get(call: Call) -> Result<Response, ApiError> {
    let id = id(&call);
    one(call, LessonCommand::Show(id)).await
}

pub(crate) async fn edit(call: Call) -> Result<Response, ApiError> {
    let mut wanted = Wanted::of(&call, &EDIT)?;
    let questions = wanted.questions();
    let edit =
        Edit { questions, answer: wanted.answer, sharing: wanted.sharing, seen_ms: wanted.updated_ms, by_owner: false };
    let id = id(&call);
    one(call, LessonCommand::Edit(id, edit)).await
}

pub(crate) async fn forget(call: Call) -> Result<Response, ApiError> {
    let id = id(&call);
    let gone = call.door.service.lessons(call.principal, LessonCommand::Forget(id.clone())).await?;
    // Their corrections stay in the log until they are forgotten.
    let turns: Vec<_> = gone.iter().flat_map(|lesson| &lesson.sources).map(|source| &source.turn).collect();
    Ok(reply::json(&json!({"object": "lesson.deleted", "id": id, "deleted": true, "turns": turns})))
}
