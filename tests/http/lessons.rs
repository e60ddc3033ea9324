//! Lessons at the door: what may be asked, and what is told to whom.

use std::sync::Arc;

use chimere::lessons::{Edit, Known, Lesson, LessonId, Sharing, Source, State};
use chimere::service::{LessonCommand, Principal, ServiceError};
use chimere::turn::TurnId;
use serde_json::{Value, json};

use crate::fake::{ADMIN_KEY, CHAT_KEY, METRICS_KEY};
use crate::{Answer, Server, server};

fn lesson(n: usize, principal: &str) -> Arc<Lesson> {
    let source = Source { turn: TurnId("turn-1".into()), conversation: "c".into(), time_ms: 1, consent: true };
    Arc::new(Lesson {
        id: LessonId(format!("lesson-{n}")),
        principal: principal.to_owned(),
        questions: vec!["Which day?".into()],
        answer: "Monday.".into(),
        known: Known::Correction,
        sources: vec![source],
        state: if n == 2 { State::Retired { by: LessonId("lesson-3".into()) } } else { State::New },
        sharing: Sharing::Shared,
        created_ms: 1,
        updated_ms: 2,
    })
}

/// What the service without a model says of lessons.
pub fn answer(principal: &Principal, command: &LessonCommand) -> Result<Vec<Arc<Lesson>>, ServiceError> {
    let own = |n| lesson(n, &principal.name);
    match command {
        LessonCommand::List { limit, .. } => {
            Ok([own(1), own(2), lesson(3, "somebody")].into_iter().take(*limit).collect())
        }
        LessonCommand::Show(id) | LessonCommand::Edit(id, _) | LessonCommand::Forget(id) if id.0 == "lesson-none" => {
            Err(ServiceError::NotFound("there is no such lesson".to_owned()))
        }
        _ => Ok(vec![own(1)]),
    }
}

async fn of(server: &Server, method: &str, path: &str, key: &str, body: Option<&Value>) -> Answer {
    let request = server.client.request(method.parse().unwrap(), server.url(path)).bearer_auth(key);
    server.send(body.into_iter().fold(request, |request, body| request.json(body))).await
}

fn commands(server: &Server) -> Vec<(String, LessonCommand)> {
    std::mem::take(&mut *server.fake.lesson_commands.lock().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_tells_whose_lessons_they_are_to_whom_they_belong() {
    let server = server().await;
    let list = of(&server, "GET", "/v1/lessons", CHAT_KEY, None).await.json();
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    let own = &list["data"][0];
    assert_eq!(
        (&own["turns"], &own["principal"], &own["known"]),
        (&json!(["turn-1"]), &json!("chatter"), &json!("correction"))
    );
    assert_eq!((&list["data"][1]["state"], &list["data"][1]["retired_by"]), (&json!("retired"), &json!("lesson-3")));
    let shared = &list["data"][2];
    assert_eq!((&shared["answer"], shared.get("turns"), shared.get("principal")), (&json!("Monday."), None, None));
    let page = of(&server, "GET", "/v1/lessons?limit=2&after=lesson-0", ADMIN_KEY, None).await.json();
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (2, &json!(true)));
    let after = Some(LessonId("lesson-0".into()));
    let asked = LessonCommand::List { principal: None, after, limit: 3 };
    assert_eq!(commands(&server).pop(), Some(("admin".to_owned(), asked)));
    assert_eq!(of(&server, "GET", "/v1/lessons?principal=somebody", CHAT_KEY, None).await.status, 403);
    assert_eq!(of(&server, "GET", "/v1/lessons?principal=somebody", ADMIN_KEY, None).await.status, 200);
    assert_eq!(of(&server, "GET", "/v1/lessons", METRICS_KEY, None).await.status, 403);
    for bad in ["?limit=0", "?limit=1001", "?nonsense=1"] {
        let answer = of(&server, "GET", &format!("/v1/lessons{bad}"), CHAT_KEY, None).await;
        assert_eq!((answer.status, &answer.error()["code"]), (400, &json!("bad_query")), "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lessons_are_added_changed_and_forgotten() {
    let server = server().await;
    let added = of(&server, "POST", "/v1/lessons", CHAT_KEY, Some(&json!({"question": "q", "answer": "a"}))).await;
    assert_eq!((added.status, &added.json()["object"]), (200, &json!("lesson")));
    let body = json!({"questions": ["p", "q"], "answer": "a", "sharing": "shared"});
    of(&server, "POST", "/v1/lessons", ADMIN_KEY, Some(&body)).await;
    let path = "/v1/lessons/lesson-1";
    of(&server, "PATCH", path, CHAT_KEY, Some(&json!({"question": "r", "sharing": "private", "updated_ms": 2}))).await;
    let gone = of(&server, "DELETE", path, CHAT_KEY, None).await;
    assert_eq!(
        gone.json(),
        json!({"object": "lesson.deleted", "id": "lesson-1", "deleted": true, "turns": ["turn-1"]})
    );
    let (chatter, id) = ("chatter".to_owned(), LessonId("lesson-1".into()));
    let add = |questions: &[&str], sharing| LessonCommand::Add {
        questions: questions.iter().map(|q| (*q).to_owned()).collect(),
        answer: "a".into(),
        sharing,
    };
    let edit = Edit {
        questions: Some(vec!["r".into()]),
        sharing: Some(Sharing::Private),
        seen_ms: Some(2),
        ..Edit::default()
    };
    assert_eq!(
        commands(&server),
        [
            (chatter.clone(), add(&["q"], None)),
            ("admin".to_owned(), add(&["p", "q"], Some(Sharing::Shared))),
            (chatter.clone(), LessonCommand::Edit(id.clone(), edit)),
            (chatter, LessonCommand::Forget(id)),
        ]
    );
    for method in ["GET", "DELETE"] {
        let none = of(&server, method, "/v1/lessons/lesson-none", CHAT_KEY, None).await;
        assert_eq!((none.status, &none.error()["code"]), (404, &json!("not_found")), "{method}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_lesson_is_refused_by_name() {
    let server = server().await;
    for (method, param, bad) in [
        ("POST", "question", json!({"answer": "a"})),
        ("POST", "question", json!({"question": "q", "questions": ["q"], "answer": "a"})),
        ("POST", "answer", json!({"question": "q"})),
        ("POST", "answer", json!({"question": "q", "answer": ""})),
        ("POST", "answer", json!({"question": "q", "answer": "x".repeat(2_001)})),
        ("POST", "questions", json!({"questions": [], "answer": "a"})),
        ("POST", "sharing", json!({"question": "q", "answer": "a", "sharing": "friends"})),
        ("POST", "nonsense", json!({"question": "q", "answer": "a", "nonsense": 1})),
        ("PATCH", "question", json!({})),
        ("PATCH", "questions", json!({"question": "q", "questions": ["q"]})),
        ("PATCH", "question", json!({"question": 5})),
    ] {
        let path = if method == "POST" { "/v1/lessons" } else { "/v1/lessons/lesson-1" };
        let answer = of(&server, method, path, CHAT_KEY, Some(&bad)).await;
        let error = answer.error();
        let place = format!("{} {}", error["param"], error["message"]);
        assert!(answer.status == 400 && place.contains(param), "{bad}: {place}");
    }
    assert_eq!(commands(&server), []);
    let wrong = of(&server, "PUT", "/v1/lessons/lesson-1", CHAT_KEY, None).await;
    assert_eq!(wrong.status, 405);
}
