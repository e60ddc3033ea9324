//! Bad JSON: each case a 400 in the envelope, never a 5xx or a dropped connection; good odd JSON is read.

use chimere::service::ReplyInput;
use serde_json::json;

use crate::{Answer, Server, chat_body, server};

async fn post(server: &Server, body: Vec<u8>) -> Answer {
    let request = server.client.post(server.url("/v1/chat/completions"));
    server.send(request.header("content-type", "application/json").body(body)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_json_is_400() {
    let server = server().await;
    let mut cases: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "{]",
        "[}",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{,}",
        "{\"a\" 1}",
        "{a:1}",
        "{'a':1}",
        "{\"a\":1}}",
        "{\"a\":1} x",
        "{\"a\":1}{\"b\":2}",
        "{1:1}",
        "{null:1}",
        "{\"a\":1 \"b\":2}",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1,,2]",
        "[\"a\"",
        "[\"",
        "\"",
        "nul",
        "tru",
        "fals",
        "True",
        "NaN",
        "Infinity",
        "-Infinity",
        "+1",
        "-",
        "01",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "1_000",
        "1e999",
        "-1e999",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\udc00\\ud800\"",
        "\"\\",
        "\"a\nb\"",
        "\"a\tb\"",
        "\"\u{0}\"",
        "/* c */ {}",
        "// c\n{}",
        "{\"a\":1}#",
        "\u{feff}{}",
        "<a/>",
        "a=b",
        "{\"a\":01}",
        "{\"a\":1.}",
        "{\"a\":+1}",
        "{\"a\":undefined}",
        "{\"a\":\"\\q\"}",
        "[1]",
        "1",
        "null",
        "true",
        "\"text\"",
        "[]",
        "{\"messages\":[],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"r\\u006fle\":\"system\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logit_bias\":{\"1\":1,\"1\":2}}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    cases.push(vec![0xff]);
    cases.push(vec![0xfe, 0xff, 0, b'{', 0, b'}']);
    cases.push(b"{\"a\":\"\xff\"}".to_vec());
    cases.push(b"{\"a\":\"\xed\xa0\x80\"}".to_vec());
    cases.push(b"{\"a\":\"\xc0\xaf\"}".to_vec());
    cases.push(b"{\"messages\":\xf0\x9f\x92\xa9}".to_vec());
    for open in ["[", "{\"a\":", "[{\"a\":"] {
        cases.push(open.repeat(100_000).into_bytes());
        cases.push(format!("{}1", open.repeat(65)).into_bytes());
    }
    let count = cases.len();
    for case in cases {
        let shown = String::from_utf8_lossy(&case[..case.len().min(60)]).into_owned();
        let answer = post(&server, case).await;
        assert_eq!(answer.status, 400, "{shown:?}: {answer:?}");
        let code = answer.error()["code"].as_str().unwrap_or_default().to_owned();
        assert!(code == "invalid_json" || code == "json_too_deep", "{shown:?}: {code}");
    }
    assert!(count > 80, "{count} cases");
    assert_eq!(server.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_shapes_name_the_parameter() {
    let server = server().await;
    for (param, body) in [
        ("temperatur", chat_body("x", json!({"temperatur": 1}))),
        ("temperature", chat_body("x", json!({"temperature": "1"}))),
        ("messages[0].role", json!({"messages": [{"role": 1, "content": "x"}]})),
        ("messages[0].content", json!({"messages": [{"role": "user", "content": {"a": 1}}]})),
        ("messages", json!({"messages": "hi"})),
        ("messages", json!({"messages": []})),
        ("tools[0].type", chat_body("x", json!({"tools": [{}]}))),
        ("n", chat_body("x", json!({"n": 100}))),
        ("stream_options.usage", chat_body("x", json!({"stream": true, "stream_options": {"usage": true}}))),
        ("response_format.type", chat_body("x", json!({"response_format": {"type": "xml"}}))),
        ("response_format.json_schema", chat_body("x", json!({"response_format": {"type": "json_schema"}}))),
        ("logit_bias", chat_body("x", json!({"logit_bias": [1]}))),
    ] {
        let answer = server.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.error()["param"], param, "{body}: {}", answer.text);
    }
    for (code, body) in [
        ("unsupported_parameter", chat_body("x", json!({"functions": []}))),
        ("unsupported_content", json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})),
    ] {
        let answer = server.post("/v1/chat/completions", &body).await;
        assert_eq!((answer.status, &answer.error()["code"]), (400, &json!(code)), "{body}");
    }
    let typo = server.chat("x", json!({"max_token": 5})).await;
    assert!(typo.error()["message"].as_str().unwrap().contains("did you mean `max_tokens`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_but_valid_json_is_read() {
    let server = server().await;
    for (body, said) in [
        ("  \r\n\t{\"messages\" : [ {\"content\":\"\\u0061\\/\\n\",\"role\":\"user\"} ] }  ", "you said a/\n"),
        (
            "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\\ude00 \u{1f600}\"}],\"seed\":0,\"top_p\":1E0}",
            "you said \u{1f600} \u{1f600}",
        ),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}],\"temperature\":-0.0}", "you said \u{0}"),
        ("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":1e-400,\"user\":null}", "you said x"),
    ] {
        let answer = post(&server, body.as_bytes().to_vec()).await;
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        assert_eq!(answer.json()["choices"][0]["message"]["content"], said);
    }
}

/// A parser that rounds twice reads another number than the one meant, and once more another when that is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_many_digits_is_the_one_nearest_to_it() {
    let server = server().await;
    let numbers = [
        "88888888888888888888888888888888888888888880.0",
        "1.7976931348623157e308",
        "0.1000000000000000055511151231257827",
    ];
    for number in numbers {
        let body = r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":
            {"name":"f","parameters":{"most":NUMBER}}}]}"#;
        assert_eq!(post(&server, body.replace("NUMBER", number).into()).await.status, 200);
        let request = server.fake.requests.lock().unwrap().pop().unwrap();
        let ReplyInput::Chat { tools, .. } = request.input else { panic!("not a chat") };
        let read = tools[0]["function"]["parameters"]["most"].as_f64();
        assert_eq!(read, Some(number.parse().unwrap()), "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_repeats_little_of_what_it_is_about() {
    let server = server().await;
    let long = "k".repeat(1 << 20);
    for (param, body) in [
        ("logit_bias.k", json!({"logit_bias": {&long: "x"}})),
        ("chimere.k", json!({"chimere": {&long: 1}})),
        ("messages[0].role", json!({"messages": [{"role": long, "content": "x"}]})),
        ("k", json!({&long: 1})),
        ("chimere.tier", json!({"chimere": {"tier": long}})),
    ] {
        let mut whole = json!({"messages": [{"role": "user", "content": "hi"}]});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let answer = post(&server, whole.to_string().into_bytes()).await;
        let error = answer.error();
        assert_eq!(answer.status, 400, "{error}");
        assert!(error["param"].as_str().unwrap().starts_with(param), "{error}");
        assert!(error.to_string().len() < 6_000, "{} bytes of error", error.to_string().len());
    }
}
