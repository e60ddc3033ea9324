//! Vetting: a template is rendered on sample conversations before a model is served with it. That happens
//! first in a sandbox, whose memory and time the system bounds, whatever this module's own limits miss.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::{ChatTemplate, SOURCE_BYTES_MAX, TemplateError};
use crate::engine::apart::{self, Examined};

/// Address space that the vetting process should give itself before it reads the template.
pub const VET_ADDRESS_SPACE_BYTES_MAX: u64 = 256 << 20;
/// Time that the vetting process gets: far more than a rendering allows itself, so that a busy machine does not
/// make a good template look bad.
pub const VET_TIMEOUT: Duration = Duration::from_secs(5);

/// Loads `source` and renders the samples. A template may refuse them (many take no tools, or want the system message
/// first, or variables that nobody has), but break no limit.
pub fn vet(source: &str) -> Result<(), TemplateError> {
    rendered(&ChatTemplate::load(source)?).map(drop)
}

/// Why a vetted template takes none of the samples, if it does not: what it says of the last one.
pub fn takes_none(template: &ChatTemplate) -> Option<String> {
    rendered(template).unwrap_or_else(|error| Some(error.to_string()))
}

/// What the template says of the samples, if it takes none of them.
fn rendered(template: &ChatTemplate) -> Result<Option<String>, TemplateError> {
    let (mut taken, mut why) = (false, String::new());
    for sample in samples() {
        match template.render(sample, "2026-01-31") {
            Ok(_) => taken = true,
            Err(TemplateError::Raised(message) | TemplateError::Failed(message)) => why = message,
            Err(breach) => return Err(breach),
        }
    }
    Ok((!taken).then_some(why))
}

/// Conversations that reach most branches of a template, the plainest first.
fn samples() -> Vec<Json> {
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d", "parameters": {
        "type": "object", "properties": {"x": {"type": "string", "description": "d"}, "n": {"type": "integer"}},
        "required": ["x"]}}});
    let call = json!([{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": "a", "n": 1}}}]);
    let user = json!({"role": "user", "content": "hello <b> & \"é🦀\"\n"});
    let system = json!({"role": "system", "content": "be brief"});
    let reply = json!({"role": "assistant", "content": "hi", "reasoning_content": "hm"});
    let calls = json!({"role": "assistant", "content": "", "tool_calls": call});
    let result = json!({"role": "tool", "content": "{\"r\": 1}", "tool_call_id": "c1", "name": "f"});
    let long = json!({"role": "user", "content": "long text ".repeat(2_000)});
    let conversation = |messages: Vec<&Json>, thinking: bool, tools: bool| {
        let mut context = json!({"messages": messages, "add_generation_prompt": true, "enable_thinking": thinking,
            "bos_token": "<s>", "eos_token": "</s>", "functions": "[]", "datetime": "2026-01-31"});
        if tools {
            context["tools"] = json!([tool, tool]);
        }
        context
    };
    vec![
        conversation(vec![&user], true, false),
        conversation(vec![&system, &user, &reply, &user], false, false),
        conversation(vec![&system, &user, &calls, &result, &reply, &user], true, true),
        conversation(vec![&user, &reply, &long, &reply, &user], true, false),
        conversation(vec![&user, &calls, &result], false, true),
    ]
}

/// Vets in a child: `program` with `arguments` must read the source on its standard input, bound its address
/// space, call [`vet`], print an error in one line on its standard output and exit with 0 only if there was none.
pub fn vet_apart(program: &Path, arguments: &[&str], source: &str) -> Result<(), TemplateError> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(TemplateError::TooLarge { what: "source", bytes: source.len(), limit: SOURCE_BYTES_MAX });
    }
    let failed = |e: std::io::Error| TemplateError::Failed(format!("vetting could not run: {e}"));
    let refused = |why: String| Err(TemplateError::Refused(why));
    match apart::examine(program, arguments, source.as_bytes().to_vec(), VET_TIMEOUT).map_err(failed)? {
        Examined::Good => Ok(()),
        Examined::Late => refused(format!("vetting took over {} ms", VET_TIMEOUT.as_millis())),
        Examined::Bad { said, status } if said.is_empty() => refused(format!("vetting ended with {status}")),
        Examined::Bad { said, .. } => refused(said),
    }
}
