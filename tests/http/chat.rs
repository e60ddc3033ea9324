//! Chat and completions as JSON: fields of the reply, parameters handed to the service, errors.

use chimere::service::ReplyInput;
use chimere::turn::{Role, Thinking, Tier};
use serde_json::{Value, json};

use crate::server;

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_has_every_field() {
    let server = server().await;
    let answer = server.chat("hello", json!({"model": "fake-1"})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.headers["x-request-id"].to_str().unwrap().starts_with("req-"));
    let reply = answer.json();
    assert_eq!(reply["object"], "chat.completion");
    assert_eq!(reply["id"], "chatcmpl-000000");
    assert_eq!(reply["model"], "fake-1");
    assert_eq!(reply["system_fingerprint"], "fp_0123456789abcdef");
    assert_eq!(
        reply["choices"][0]["message"],
        json!({"role": "assistant", "content": "you said hello", "refusal": null})
    );
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["logprobs"], Value::Null);
    assert_eq!(reply["usage"]["total_tokens"], 8);
    assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    let own = &reply["x_chimere"];
    assert_eq!(
        (&own["turn"], &own["route"], &own["tier"]),
        (&json!("turn-000000"), &json!("default"), &json!("quality"))
    );
    assert_eq!(own["seeds"], json!([1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_says_that_its_thought_took_everything_and_what_became_of_its_turn() {
    let server = server().await;
    let own = async |order: &str| server.chat(order, json!({})).await.json()["x_chimere"].clone();
    let muse = server.chat("muse", json!({})).await.json();
    assert_eq!(
        (&muse["choices"][0]["finish_reason"], &muse["choices"][0]["message"]["content"]),
        (&json!("length"), &json!(""))
    );
    assert!(muse["x_chimere"]["cut"].as_str().unwrap().contains("`max_tokens`"), "{muse}");
    let nothing = server.chat("budget", json!({})).await.json();
    assert_eq!(nothing["choices"][0]["finish_reason"], "stop");
    let words = nothing["x_chimere"]["cut"].as_str().unwrap();
    assert!(words.contains("gave no answer") && words.contains("`thinking_budget`"), "{words}");
    let half = own("half a thought").await;
    assert!(half["cut"].as_str().unwrap().contains("stands on half a thought"), "{half}");
    // Found when the form was compiled, behind what the request itself said.
    assert_eq!(own("heavy").await["not_enforced"], json!([{"path": "tools", "reason": "too much"}]));
    let plain = own("think").await;
    assert_eq!((&plain["cut"], &plain["kept"]), (&Value::Null, &Value::Null));
    assert_eq!(own("full disk").await["kept"], false);
    assert_eq!(own("late log").await["kept"], "unknown");
}

#[tokio::test(flavor = "multi_thread")]
async fn thought_choices_and_logprobs() {
    let server = server().await;
    let reply = server.chat("think", json!({"n": 2, "logprobs": true, "top_logprobs": 2})).await.json();
    for choice in [0, 1] {
        let choice = &reply["choices"][choice];
        assert_eq!(choice["message"]["reasoning_content"], "let me see ");
        assert_eq!(choice["message"]["content"], "forty two");
        let content = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!(content.len(), 2, "the thought has none");
        assert_eq!(content[0]["token"], "forty ");
        assert_eq!(content[0]["bytes"], json!(b"forty ".to_vec()));
        assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    }
    assert_eq!(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_and_their_choice() {
    let server = server().await;
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]);
    let reply = server.chat("tools", json!({"tools": tools})).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(message["tool_calls"][0]["id"], "call_1");
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({"city": "Oslo", "unit": "celsius"}));
    assert_eq!(reply["choices"][0]["finish_reason"], "tool_calls");
    let one = server.chat("tools", json!({"tools": tools, "parallel_tool_calls": false})).await.json();
    assert_eq!(one["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    let none = server.chat("tools", json!({"tools": tools, "tool_choice": "none"})).await.json();
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
    for choice in [json!({"type": "function", "function": {"name": "get_time"}}), json!("must")] {
        let forced = server.chat("tools", json!({"tools": tools, "tool_choice": choice})).await;
        assert_eq!((forced.status, &forced.error()["param"]), (400, &json!("tool_choice")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_a_message_names_its_place() {
    let server = server().await;
    let user = json!({"role": "user", "content": "go"});
    let called = |function: Value| json!({"role": "assistant", "tool_calls": [{"function": function}]});
    for (param, messages) in [
        ("messages", json!([])),
        ("messages[1].role", json!([user, {"role": "god", "content": "x"}])),
        ("messages[1].content", json!([user, {"role": "user"}])),
        ("messages[0].content", json!([{"role": "user", "content": 5}])),
        (
            "messages[1].content[1]",
            json!([user, {"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {}}]}]),
        ),
        ("messages[0].content[0].text", json!([{"role": "user", "content": [{"type": "text"}]}])),
        ("messages[0].tool_call_id", json!([{"role": "tool", "content": "x"}])),
        (
            "messages[0].tool_calls",
            json!([{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]),
        ),
        ("messages[1].tool_calls[0].function.arguments", json!([user, called(json!({"name": "f", "arguments": [1]}))])),
    ] {
        let refused = server.chat("hello", json!({"messages": messages})).await;
        let error = refused.error();
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{messages}");
        assert!(error["type"] == "invalid_request_error" && error["message"].is_string(), "{error}");
    }
    assert!(server.fake.requests.lock().unwrap().is_empty(), "none was begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_sent_back_without_an_id_get_one_that_their_results_share() {
    let server = server().await;
    let call = json!({"id": null, "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let messages = json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": null, "content": "done"}
    ]);
    let answer = server.post("/v1/chat/completions", &json!({"messages": messages})).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let request = server.fake.requests.lock().unwrap().pop().unwrap();
    let ReplyInput::Chat { messages, .. } = request.input else { panic!("not a chat") };
    let id = messages[1].tool_calls[0].id.clone();
    assert!(!id.is_empty() && messages[2].tool_call_id == Some(id));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_client_sent_reaches_the_service() {
    let server = server().await;
    let answer = server
        .post(
            "/v1/chat/completions",
            &json!({
                "messages": [
                    {"role": "developer", "content": "be brief"},
                    {"role": "user", "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}]}
                ],
                "temperature": 0.5, "seed": 11, "stop": ["said", "x"], "max_completion_tokens": 3, "n": 1,
                "chat_template_kwargs": {"enable_thinking": false}, "user": "ignored",
                "x_chimere": {"route": "code", "tier": "fast", "conversation": "c9", "consent": false}
            }),
        )
        .await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "you ");
    let request = server.fake.requests.lock().unwrap().pop().unwrap();
    let ReplyInput::Chat { messages, tools } = request.input else { panic!("not a chat") };
    assert_eq!((messages[0].role, messages[1].content.as_str(), tools.len()), (Role::System, "hello", 0));
    assert_eq!((request.sampling.temperature, request.sampling.seed), (Some(0.5), Some(11)));
    assert_eq!((request.max_tokens, request.stop.len(), request.choices), (Some(3), 2, 1));
    assert_eq!((request.thinking, request.tier), (Some(Thinking::Off), Some(Tier::Fast)));
    assert_eq!((request.route.as_deref(), request.conversation.as_deref()), (Some("code"), Some("c9")));
    assert_eq!((request.consent, request.principal.name.as_str()), (Some(false), "owner"));
}

#[tokio::test(flavor = "multi_thread")]
async fn service_errors_have_their_status() {
    let server = server().await;
    for (order, status, code) in [
        ("busy", 429, "rate_limit_exceeded"),
        ("unavailable", 503, "service_unavailable"),
        ("not-built", 501, "not_built"),
        ("not-found", 404, "not_found"),
        ("fail-early", 400, "context_length_exceeded"),
        ("fail-late", 500, "internal_error"),
        ("conflict", 409, "conflict"),
        ("abort", 503, "reply_aborted"),
        ("panic", 500, "internal_error"),
    ] {
        let answer = server.chat(order, json!({})).await;
        assert_eq!((answer.status, &answer.error()["code"]), (status, &json!(code)), "{order}");
        assert_eq!(answer.headers.contains_key("retry-after"), status == 429 || status == 503, "{order}");
    }
    let invalid = server.chat("invalid", json!({})).await;
    assert_eq!((invalid.status, &invalid.error()["param"]), (400, &json!("model")));
    let wrong = server.chat("hello", json!({"model": "gpt-9"})).await;
    assert_eq!((wrong.status, &wrong.error()["code"]), (404, &json!("model_not_found")));
    assert_eq!(wrong.error()["param"], "model");
    assert_eq!(server.chat("after all that", json!({})).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_in_the_old_form() {
    let server = server().await;
    let of = async |body: Value| server.post("/v1/completions", &body).await.json();
    let reply = of(json!({"prompt": "hello", "logprobs": 1, "n": 2})).await;
    assert_eq!((&reply["object"], &reply["id"]), (&json!("text_completion"), &json!("cmpl-000000")));
    let choice = &reply["choices"][1];
    assert_eq!((&choice["text"], &choice["index"]), (&json!("you said hello"), &json!(1)));
    assert_eq!(choice["logprobs"]["tokens"], json!(["you ", "said ", "hello"]));
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 4, 9]));
    assert_eq!(choice["logprobs"]["top_logprobs"][0].as_object().unwrap().len(), 1);
    let echo = of(json!({"prompt": [5, 6], "echo": true})).await;
    assert_eq!(echo["choices"][0]["text"], "<5><6>you said [5, 6]");
    let long = of(json!({"prompt": "fast 100"})).await;
    assert_eq!(
        (&long["usage"]["completion_tokens"], &long["choices"][0]["finish_reason"]),
        (&json!(16), &json!("length"))
    );
    for bad in [
        json!({}),
        json!({"prompt": ["a", 1]}),
        json!({"prompt": ["a", ""]}),
        json!({"prompt": "a", "best_of": 3}),
        json!({"prompt": "a", "suffix": "b"}),
    ] {
        assert_eq!(server.post("/v1/completions", &bad).await.status, 400, "{bad}");
    }
}

/// The choices of each prompt follow those of the one before, at once and in a stream; one that fails ends them all.
#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_are_answered_in_one_reply() {
    let server = server().await;
    let prompts: Vec<String> = (0..9).map(|n| format!("say {n}")).collect();
    let body = json!({"prompt": prompts, "n": 2, "echo": true, "max_tokens": 4});
    let reply = server.post("/v1/completions", &body).await.json();
    let texts = |choices: &Value| -> Vec<String> {
        choices.as_array().unwrap().iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let expected: Vec<String> = (0..18).map(|at| format!("say {0}you said say {0}", at / 2)).collect();
    assert_eq!(texts(&reply["choices"]), expected);
    assert_eq!(reply["usage"]["completion_tokens"], 4 * 18);
    assert_eq!(reply["x_chimere"]["seeds"].as_array().unwrap().len(), 18);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let text = server.post("/v1/completions", &streamed).await.text;
    let mut told = vec![String::new(); 18];
    let mut ends = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
        for choice in chunk["choices"].as_array().unwrap() {
            told[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
            ends += usize::from(choice["finish_reason"].is_string());
        }
    }
    assert_eq!((told, ends), (expected, 18));
    let failed = server.post("/v1/completions", &json!({"prompt": ["say 1", "busy"]})).await;
    assert_eq!((failed.status, &failed.error()["code"]), (429, &json!("rate_limit_exceeded")));
    let marked = |extra: Value| {
        let mut body = json!({"prompt": "<|im_start|>x"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    for (extra, input) in [
        (json!({}), ReplyInput::Marked("<|im_start|>x".to_owned())),
        (json!({"parse_special": false}), ReplyInput::Text("<|im_start|>x".to_owned())),
    ] {
        assert_eq!(server.post("/v1/completions", &marked(extra)).await.status, 200);
        assert_eq!(server.fake.requests.lock().unwrap().pop().unwrap().input, input);
    }
}

/// As tools that measure likelihoods ask: a prompt's tokens first, the first of them without a number, and the end among
/// those that follow.
#[tokio::test(flavor = "multi_thread")]
async fn an_echo_with_logprobs_tells_of_every_token() {
    let server = server().await;
    let body = json!({"prompt": ["say it", "so be it"], "echo": true, "logprobs": 1, "max_tokens": 1});
    let reply = server.post("/v1/completions", &body).await.json();
    for (choice, (tokens, text)) in [
        (["say ", "it", "you ", ""].as_slice(), "say ityou "),
        (["so ", "be ", "it", "you ", ""].as_slice(), "so be ityou "),
    ]
    .into_iter()
    .enumerate()
    {
        let choice = &reply["choices"][choice];
        let logprobs = &choice["logprobs"];
        assert_eq!((&choice["text"], &logprobs["tokens"]), (&json!(text), &json!(tokens)));
        let numbers = logprobs["token_logprobs"].as_array().unwrap();
        assert!(numbers[0].is_null() && numbers[1..].iter().all(Value::is_number), "{logprobs}");
        let tops = logprobs["top_logprobs"].as_array().unwrap();
        assert!(tops[0].is_null() && tops[1..].iter().all(|top| top.as_object().unwrap().len() == 1), "{logprobs}");
        let second = tokens[0].len();
        assert_eq!(logprobs["text_offset"][1], json!(second));
    }
    let streamed = json!({"prompt": "say it", "echo": true, "logprobs": 0, "stream": true});
    let text = server.post("/v1/completions", &streamed).await.text;
    assert!(text.contains(r#""tokens":["say ","it"],"token_logprobs":[null,"#), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_effect_is_accepted_and_named() {
    let server = server().await;
    let harmless = json!({"prompt_cache_options": {}, "moderation": "low", "verbosity": "low", "store": true,
        "metadata": {"a": "b"}, "user": "u", "service_tier": null});
    let reply = server.chat("hello", harmless).await.json();
    let mut ignored: Vec<&str> =
        reply["x_chimere"]["ignored"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    ignored.sort_unstable();
    assert_eq!(ignored, ["metadata", "moderation", "prompt_cache_options", "store", "user", "verbosity"]);
    assert_eq!(server.chat("hello", json!({})).await.json()["x_chimere"].get("ignored"), None);
    let streamed = server.chat("hello", json!({"stream": true, "verbosity": "high"})).await.text;
    assert!(streamed.contains(r#""ignored":["verbosity"]"#), "{streamed}");
    let thought = json!({"reasoning_effort": "low", "thinking_budget": 9, "chimere": {"thought": false}, "user": "u"});
    let named = |reply: Value| reply["x_chimere"]["ignored"].clone();
    assert_eq!(named(server.chat("hello", thought.clone()).await.json()), json!(["user"]));
    let all = json!(["user", "reasoning_effort", "thinking_budget", "chimere.thought"]);
    assert_eq!(named(server.chat("thoughtless", thought).await.json()), all);
    let unknown = server.chat("hello", json!({"store_all": true})).await;
    assert_eq!((unknown.status, &unknown.error()["param"]), (400, &json!("store_all")));
}

#[tokio::test(flavor = "multi_thread")]
async fn text_routes_speak_as_llama_server_does() {
    let server = server().await;
    let tokens = server.post("/tokenize", &json!({"content": "a b c"})).await.json();
    assert_eq!(tokens, json!({"tokens": [0, 1, 2]}));
    let pieces = server.post("/tokenize", &json!({"content": "a b", "with_pieces": true})).await.json();
    assert_eq!(pieces["tokens"][1], json!({"id": 1, "piece": "b"}));
    let special = |parse: bool| json!({"content": "<|im_start|> x", "parse_special": parse});
    assert_eq!(server.post("/tokenize", &special(true)).await.json()["tokens"].as_array().unwrap().len(), 1);
    assert_eq!(server.post("/tokenize", &special(false)).await.json()["tokens"].as_array().unwrap().len(), 2);
    assert_eq!(server.post("/detokenize", &json!({"tokens": [3]})).await.json(), json!({"content": "<3>"}));
    let template =
        json!({"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinking": false}});
    let prompt = server.post("/apply-template", &template).await.json();
    assert_eq!((prompt["prompt"].as_str(), &prompt["tokens"]), (Some("User: x|Some(Off)"), &json!([1, 2])), "{prompt}");
    assert_eq!(
        (&prompt["x_chimere"]["max_tokens"], &prompt["x_chimere"]["sampling"]["top_p"]),
        (&json!(7), &json!(1.0))
    );
    for (path, bad) in
        [("/tokenize", json!({})), ("/tokenize", json!({"content": 1})), ("/detokenize", json!({"tokens": [-1]}))]
    {
        assert_eq!(server.post(path, &bad).await.status, 400);
    }
}

/// A mistake is told with what was sent and with what is right.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_value_is_told_with_what_was_sent_and_what_is_right() {
    let server = server().await;
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let allowed = json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]});
    for (more, wanted) in [
        (
            json!({"tools": [tool], "tool_choice": allowed}),
            ["of the type `allowed_tools` is not", "send in `tools` only those"],
        ),
        (
            json!({"tools": [tool], "tool_choice": {"type": "custom"}}),
            ["of the type `custom`", "`{\"type\": \"function\""],
        ),
        (json!({"tools": [tool], "tool_choice": "maybe"}), ["not the text \"maybe\"", "\"required\" or `{\"type\""]),
        (
            json!({"tools": [tool], "tool_choice": {"type": "function", "name": "f"}}),
            ["without the text `function.name`", "\"required\" or `{\"type\""],
        ),
        (json!({"tools": [{"type": "web_search"}]}), ["must be `function`", "not the text \"web_search\""]),
        (
            json!({"tools": [{"type": "function", "name": "f"}]}),
            ["`function` of a tool must be an object", "is missing"],
        ),
        (json!({"response_format": {"type": "json"}}), ["`json_schema`, not the text \"json\"", "`json_object`"]),
        (json!({"messages": [{"role": "bot", "content": "x"}]}), ["user, assistant or tool", "not the text \"bot\""]),
        (json!({"messages": [{"role": "user", "content": 7}]}), ["a string or an array of parts", "not 7"]),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "thought"}]}]}),
            ["of the type `text`", "not of the type \"thought\""],
        ),
    ] {
        let answer = server.chat("hello", more.clone()).await;
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 400 && wanted.iter().all(|words| message.contains(words)), "{more}: {message}");
    }
    for (prompt, sent) in [
        (json!([[1, 2], "a"]), "not the text \"a\""),
        (json!({"text": "a"}), "not an object"),
        (json!(true), "not true"),
    ] {
        let answer = server.post("/v1/completions", &json!({"prompt": prompt, "max_tokens": 1})).await;
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(
            message.starts_with("`prompt") && message.contains(" must be a") && message.ends_with(sent),
            "{message}"
        );
    }
    let empty = server.post("/v1/completions", &json!({"prompt": ["a", ""], "max_tokens": 1})).await;
    assert_eq!(empty.error()["message"], "`prompt[1]` must be a text that is not empty, not an empty text");
    let busy = server.chat("busy", json!({})).await;
    assert!(busy.error()["message"].as_str().unwrap().contains("; ask again in "), "{}", busy.text);
}
