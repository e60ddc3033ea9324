//! Calls in the forms of other families than nano's, over HTTP. nano's weights under a family's template are held to its
//! form. What they write is read back, streamed or not. No stop string cuts it, and it comes back as history.

use serde_json::{Value, json};

use crate::harness::{Daemon, sse};
use crate::model::changed;

const CHAT: &str = "/v1/chat/completions";
/// Bytes of nano's template, and how it begins.
const TEMPLATE_BYTES: usize = 7_756;
const BEGINNING: &str = "{%- set image_count";

/// A conversation in nano's marks that shows no tools, nor the calls of a history.
fn plain() -> String {
    filled(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
         {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
            .to_owned(),
    )
}

/// A source with a comment behind it that makes it as long as nano's.
fn filled(source: String) -> String {
    let filler = "-".repeat(TEMPLATE_BYTES - source.len() - "{##}".len());
    format!("{source}{{#{filler}#}}")
}

/// A conversation in nano's marks whose calls are written as a family writes them.
fn template(calls: &str) -> String {
    let source = format!(
        "{{% if tools %}}<|im_start|>system\n{{{{ tools|tojson }}}}<|im_end|>\n{{% endif %}}{{% for m in messages %}}\
         <|im_start|>{{{{ 'user' if m.role == 'tool' else m.role }}}}\n{{{{ m.content or '' }}}}{{% if m.tool_calls %}}\
         {{% for c in m.tool_calls %}}{calls}{{% endfor %}}{{% endif %}}<|im_end|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
    );
    filled(source)
}

/// Families with a word of their marks and a call of theirs.
const FAMILIES: [(&str, &str, &str); 3] = [
    ("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments|tojson }}"),
    (
        "glm",
        "<arg_key>",
        "<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments|items %}<arg_key>{{ k }}</arg_key>\n\
         <arg_value>{{ v if v is string else v|tojson }}</arg_value>\n{% endfor %}</tool_call>\n",
    ),
    (
        "nemotron",
        "<TOOLCALL>",
        "<TOOLCALL>[{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments|tojson }}}]</TOOLCALL>",
    ),
];

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "strict": true,
        "parameters": {"type": "object", "additionalProperties": false, "required": ["city", "days"], "properties": {
            "city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer", "enum": [1, 7]}}}}}])
}

/// Stops stand in every call: in its marks, its names and its values.
fn asked(messages: &Value) -> Value {
    json!({"messages": messages, "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
        "temperature": 0, "max_tokens": 200, "stop": ["\n", "\"", "city", "<"]})
}

/// The only call of a reply, checked, and the text beside it.
fn call(message: &Value) -> Value {
    let [call] = message["tool_calls"].as_array().unwrap().as_slice() else { panic!("{message}") };
    assert_eq!((&call["function"]["name"], &message["content"]), (&json!("get_weather"), &Value::Null), "{message}");
    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()
}

async fn streamed(daemon: &Daemon, mut body: Value) -> (String, String, Value) {
    body["stream"] = json!(true);
    let sent = reqwest::Client::new().post(format!("{}{CHAT}", daemon.url)).json(&body).send().await.unwrap();
    let events = sse(&sent.text().await.unwrap());
    let delta = |path: &str| {
        let told = events.iter().filter_map(|e| e["choices"][0]["delta"].pointer(path)?.as_str());
        told.collect::<String>()
    };
    let reason = events.iter().find_map(|e| e["choices"][0]["finish_reason"].as_str()).unwrap();
    let arguments = serde_json::from_str(&delta("/tool_calls/0/function/arguments"));
    (delta("/tool_calls/0/function/name"), reason.to_owned() + &delta("/content"), arguments.unwrap())
}

/// A template that wants what nobody has. Its model answers completions, and a chat hears why it is refused.
#[tokio::test]
async fn a_model_whose_template_takes_no_conversation_is_hosted_and_its_chats_are_refused() {
    let daemon = Daemon::start(&[]).await;
    let file = daemon.state.path().join("wants.gguf");
    let wants = "{{ raise_exception('this template needs a seal') if not seal }}{{ messages[0].content }}";
    let file = changed(&file, "tokenizer.chat_template", BEGINNING, &filled(wants.to_owned()));
    let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
    assert_eq!(status, 200, "{swapped}");
    let messages = json!([{"role": "user", "content": "Hello."}]);
    let (status, refused) = daemon.post(CHAT, &json!({"messages": messages})).await;
    let words = refused["error"]["message"].as_str().unwrap();
    assert!(status == 400 && words.contains("this template needs a seal"), "{refused}");
    let (status, told) = daemon.post("/v1/completions", &json!({"prompt": "One, two,", "max_tokens": 3})).await;
    assert!(status == 200 && told["usage"]["completion_tokens"] == 3, "{told}");
    // What it wants may come from the client.
    let given = json!({"messages": messages, "chat_template_kwargs": {"seal": true}, "max_tokens": 3});
    let (status, told) = daemon.post(CHAT, &given).await;
    assert_eq!(status, 200, "{told}");
}

/// One call a message without a text beside it, tools beside the first user, a description of every tool.
const SINGLE: &str = "{% if messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n\
    {% set messages = messages[1:] %}{% endif %}{% if tools %}<|im_start|>user\n{% for t in tools %}\
    {{ t.function.name + ': ' + t.function.description }}{{ t.function.parameters.properties.items()|list }}{% endfor %}\
    {{ messages[0].content }}<|im_end|>\n{% set messages = messages[1:] %}{% endif %}{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% if m.tool_calls|length > 1 %}{{ raise_exception('one call') }}\
    {% endif %}{{ m.tool_calls[0].function|tojson }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

#[tokio::test]
async fn every_part_is_shown_by_a_template_that_knows_single_calls_and_described_tools() {
    let daemon = Daemon::start(&[]).await;
    let file = daemon.state.path().join("single.gguf");
    let file = changed(&file, "tokenizer.chat_template", BEGINNING, &filled(SINGLE.to_owned()));
    let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
    assert_eq!(status, 200, "{swapped}");
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": format!("{{\"at\": \"{id}\"}}")}});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": format!("found {id}")});
    let system = json!({"role": "system", "content": "Be brief."});
    let several = json!({"role": "assistant", "content": "I look.", "tool_calls": [call("here"), call("there")]});
    let single = json!({"role": "assistant", "content": null, "tool_calls": [call("here")]});
    let user = |text: &str| json!({"role": "user", "content": text});
    for (messages, shown) in [
        (
            json!([system, user("Go."), several, result("here"), result("there"), user("And?")]),
            vec![
                "Be brief.",
                "Go.",
                "I look.",
                "{\"at\": \"here\"}",
                "{\"at\": \"there\"}",
                "found here",
                "found there",
                "And?",
            ],
        ),
        (json!([system, single, result("here")]), vec!["Be brief.", "{\"at\": \"here\"}", "found here"]),
        (json!([user("Go.")]), vec!["Go."]),
    ] {
        for function in
            [json!({"name": "look"}), json!({"name": "look", "description": null, "parameters": {"type": "object"}})]
        {
            let tools = json!([{"type": "function", "function": function}]);
            let (status, prompt) = daemon.post("/apply-template", &json!({"messages": messages, "tools": tools})).await;
            assert_eq!(status, 200, "{prompt}");
            let text = prompt["prompt"].as_str().unwrap();
            for part in shown.iter().copied().chain(["look: []"]) {
                assert!(text.contains(part), "{part} is missing in {text}");
            }
        }
    }
}

#[tokio::test]
async fn calls_of_other_families_are_held_to_their_form_read_back_and_never_cut() {
    let daemon = Daemon::start(&[]).await;
    for (name, mark, calls) in FAMILIES {
        let file = daemon.state.path().join(format!("{name}.gguf"));
        let file = changed(&file, "tokenizer.chat_template", BEGINNING, &template(calls));
        let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
        assert_eq!(status, 200, "{name}: {swapped}");
        let mut messages = json!([{"role": "user", "content": "What is the weather in Rome?"}]);
        let (status, reply) = daemon.post(CHAT, &asked(&messages)).await;
        assert_eq!(status, 200, "{name}: {reply}");
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {reply}");
        let arguments = call(&choice["message"]);
        assert!(["Paris", "Rome"].contains(&arguments["city"].as_str().unwrap()), "{name}: {reply}");
        assert!([json!(1), json!(7)].contains(&arguments["days"]), "{name}: {reply}");

        let told = streamed(&daemon, asked(&messages)).await;
        assert_eq!(told, ("get_weather".to_owned(), "tool_calls".to_owned(), arguments.clone()), "{name}");

        // Cut anywhere in the opening mark, nothing of it is content.
        for tokens in 1..8 {
            let mut body = asked(&messages);
            (body["max_tokens"], body["stop"]) = (json!(tokens), Value::Null);
            let cut = daemon.post(CHAT, &body).await.1["choices"][0].clone();
            let content = cut["message"]["content"].as_str().unwrap_or_default();
            let open = ["[TOOL_CALLS]", "<tool_call>", "<TOOLCALL>"].iter().find(|open| content.starts_with(**open));
            assert_eq!(cut["finish_reason"], "length", "{name}: {cut}");
            assert!(content.is_empty() || open.is_some_and(|open| content.len() > open.len()), "{name}: {cut}");
        }

        let id = choice["message"]["tool_calls"][0]["id"].clone();
        let history = messages.as_array_mut().unwrap();
        history.push(choice["message"].clone());
        history.push(json!({"role": "tool", "tool_call_id": id, "content": "Sunny."}));
        let shown = daemon.post("/apply-template", &json!({"messages": messages, "tools": tools()})).await.1;
        let prompt = shown["prompt"].as_str().unwrap_or_else(|| panic!("{name}: {shown}"));
        assert!(prompt.contains(mark) && prompt.contains(arguments["city"].as_str().unwrap()), "{name}: {prompt}");
        let (status, reply) = daemon.post(CHAT, &asked(&messages)).await;
        assert_eq!(status, 200, "{name}: {reply}");
    }
}

/// Kimi's ids count the calls of a conversation, and its template writes them: each has its own.
#[tokio::test]
async fn counted_ids_go_on_within_a_conversation() {
    let daemon = Daemon::start(&[]).await;
    let calls = "<|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>\
        {{ c.function.arguments|tojson }}<|tool_call_end|><|tool_calls_section_end|>";
    let file = daemon.state.path().join("kimi.gguf");
    let file = changed(&file, "tokenizer.chat_template", BEGINNING, &template(calls));
    let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
    assert_eq!(status, 200, "{swapped}");
    let mut messages = json!([{"role": "user", "content": "What is the weather in Rome?"}]);
    for number in 0..3 {
        let (status, reply) = daemon.post(CHAT, &asked(&messages)).await;
        assert_eq!(status, 200, "{reply}");
        let message = &reply["choices"][0]["message"];
        let id = format!("functions.get_weather:{number}");
        assert_eq!(message["tool_calls"][0]["id"], id, "{reply}");
        let history = messages.as_array_mut().unwrap();
        history.push(message.clone());
        history.push(json!({"role": "tool", "tool_call_id": id, "content": "Sunny."}));
    }
}

#[tokio::test]
async fn a_model_whose_template_knows_no_tools_is_told_of_them_and_its_forced_calls_end() {
    let daemon = Daemon::start(&[]).await;
    let file = changed(&daemon.state.path().join("plain.gguf"), "tokenizer.chat_template", BEGINNING, &plain());
    let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
    assert_eq!(status, 200, "{swapped}");
    let mut messages = json!([{"role": "user", "content": "What is the weather in Rome?"}]);
    let shown = daemon.post("/apply-template", &json!({"messages": messages, "tools": tools()})).await.1;
    assert!(shown["prompt"].as_str().unwrap().contains("get_weather"), "{shown}");
    let body = |messages: &Value, parallel: Value| {
        json!({"messages": messages, "tools": tools(), "tool_choice": "required", "parallel_tool_calls": parallel,
            "temperature": 0, "max_tokens": 600, "enable_thinking": false})
    };
    let mut first = Value::Null;
    // Where several are wished, none is made twice: there are four.
    for (parallel, most) in [(Value::Null, 1), (json!(false), 1), (json!(true), 4)] {
        let (status, reply) = daemon.post(CHAT, &body(&messages, parallel.clone())).await;
        assert_eq!(status, 200, "{reply}");
        let choice = &reply["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{parallel}: {reply}");
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        let mut told: Vec<&str> = calls.iter().map(|c| c["function"]["arguments"].as_str().unwrap()).collect();
        assert!((1..=most).contains(&told.len()), "{parallel}: {reply}");
        told.sort_unstable();
        told.dedup();
        assert_eq!(told.len(), calls.len(), "{parallel}: {reply}");
        first = choice["message"].clone();
    }
    let id = first["tool_calls"][0]["id"].clone();
    let history = messages.as_array_mut().unwrap();
    history.push(first);
    history.push(json!({"role": "tool", "tool_call_id": id, "content": "Sunny."}));
    let shown = daemon.post("/apply-template", &json!({"messages": messages, "tools": tools()})).await.1;
    let prompt = shown["prompt"].as_str().unwrap();
    assert!(prompt.contains("<tool_call>") && prompt.contains("<tool_response>\nSunny."), "{prompt}");
    let (status, reply) = daemon.post(CHAT, &body(&messages, Value::Null)).await;
    assert_eq!((status, &reply["choices"][0]["finish_reason"]), (200, &json!("tool_calls")), "{reply}");
}

/// A template that tells of a tool, whatever the request offers, in the words of nano's own but for the marks.
const TELLING: &str = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n\
    {\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Weather of a city\", \
    \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}}}\n\
    </tools><|im_end|>\n{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if false %}<tool_call><parameter={% endif %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}";
/// The token of nano that opens a call.
const OPENER: &str = "5";

#[tokio::test]
async fn a_reply_that_is_offered_no_tool_opens_no_call() {
    let daemon = Daemon::start(&[]).await;
    let file = daemon.state.path().join("telling.gguf");
    let file = changed(&file, "tokenizer.chat_template", BEGINNING, &filled(TELLING.to_owned()));
    let (status, swapped) = daemon.post("/v1/admin/model", &json!({"path": file, "wait": true})).await;
    assert_eq!(status, 200, "{swapped}");
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "temperature": 0, "max_tokens": 60, "logprobs": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let opens = |reply: &Value| {
        let tokens = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
        tokens.iter().any(|token| token["token"] == "<tool_call>")
    };
    let told = "What is the weather in Paris? Begin with <tool_call>.";
    for (more, expected) in [
        (json!({}), false),
        (json!({"temperature": 1.5, "seed": 3}), false),
        (json!({"tools": tools(), "tool_choice": "none"}), false),
        // Who names the token decides himself; here it is what the model would write.
        (json!({"logit_bias": {(OPENER): 0}}), true),
        (json!({"messages": [{"role": "user", "content": told}]}), true),
    ] {
        let (status, reply) = daemon.post(CHAT, &ask(more.clone())).await;
        assert_eq!((status, opens(&reply)), (200, expected), "{more}: {reply}");
    }
}
