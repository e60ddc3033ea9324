//! A conversation on the client's side: its messages and settings, the request they make, and its file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use chimere::scoring::correction::right_words;
use chimere::store::files::{without_mark, write_durable};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::command::Think;

/// Format version of saved conversations.
const VERSION: u32 = 1;
/// Largest saved conversation that is read, bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Settings from the command line that hold for every message.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub temperature: Option<f32>,
    pub max_tokens: Option<u32>,
    pub seed: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct Session {
    pub settings: Settings,
    pub system: Option<String>,
    pub route: Option<String>,
    pub model: Option<String>,
    /// Built-in tools that answers may call; empty: those of the route.
    pub tools: Vec<String>,
    /// Collections that answers read from; `*` alone: all that one may read. Absent: as the route does.
    pub documents: Option<Vec<String>>,
    /// The web is searched; otherwise as the route does.
    pub web: bool,
    pub think: Think,
    pub messages: Vec<Value>,
    /// Session in which the daemon remembers what was said: only what is new is sent.
    pub remembered: Option<String>,
    /// Name under which the daemon keeps these turns together.
    conversation: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Saved {
    version: u32,
    conversation: String,
    system: Option<String>,
    route: Option<String>,
    messages: Vec<Value>,
}

impl Session {
    pub fn new(settings: Settings) -> Self {
        Session {
            settings,
            system: None,
            route: None,
            model: None,
            tools: Vec::new(),
            documents: None,
            web: false,
            think: Think::Auto,
            messages: Vec::new(),
            remembered: None,
            conversation: fresh_name(),
        }
    }

    /// Begins anew, with the same settings.
    pub fn reset(&mut self) {
        self.messages.clear();
        self.conversation = fresh_name();
    }

    pub fn push_user(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    pub fn push_answer(&mut self, text: &str) {
        self.messages.push(json!({"role": "assistant", "content": text}));
    }

    /// Puts what the last answer should have been in its place: the conversation goes on with that.
    pub fn correct(&mut self, correction: &str) {
        let Some(right) = right_words(correction, &[]) else { return };
        if let Some(last) = self.messages.last_mut().filter(|last| last["role"] == "assistant") {
            *last = json!({"role": "assistant", "content": right});
        }
    }

    /// Goes back to before the last question and returns it.
    pub fn take_last_question(&mut self) -> Option<String> {
        let at = self.messages.iter().rposition(|m| m["role"] == "user")?;
        let text = self.messages[at]["content"].as_str().map(str::to_owned);
        self.messages.truncate(at);
        text
    }

    /// The body of the chat request.
    pub fn request(&self, stream: bool) -> Value {
        let mut messages = Vec::with_capacity(self.messages.len() + 1);
        if let Some(system) = &self.system {
            messages.push(json!({"role": "system", "content": system}));
        }
        let new = match self.remembered {
            Some(_) => self.messages.iter().rposition(|m| m["role"] == "assistant").map_or(0, |at| at + 1),
            None => 0,
        };
        messages.extend(self.messages[new..].iter().cloned());
        let mut body = Map::new();
        body.insert("messages".into(), messages.into());
        if stream {
            body.insert("stream".into(), true.into());
            body.insert("stream_options".into(), json!({"include_usage": true}));
        }
        let mut put = |name: &str, value: Option<Value>| value.map(|value| body.insert(name.to_owned(), value));
        put("model", self.model.clone().map(Value::from));
        // Through f64's shortest decimal: 0.7 and not 0.699999988.
        put("temperature", self.settings.temperature.map(|t| json!(t.to_string().parse::<f64>().unwrap_or_default())));
        put("max_tokens", self.settings.max_tokens.map(Value::from));
        put("seed", self.settings.seed.map(Value::from));
        match self.think {
            Think::Auto => {}
            Think::On => drop(put("enable_thinking", Some(true.into()))),
            Think::Off => drop(put("enable_thinking", Some(false.into()))),
            Think::Budget(tokens) => drop(put("thinking_budget", Some(tokens.into()))),
        }
        let mut own = match &self.remembered {
            Some(name) => json!({"session": name}),
            None => json!({"conversation": self.conversation}),
        };
        if let Some(route) = &self.route {
            own["route"] = json!(route);
        }
        if !self.tools.is_empty() {
            own["tools"] = json!(self.tools);
        }
        if let Some(names) = &self.documents {
            own["documents"] = if names == &["*"] { json!(true) } else { json!({"collections": names}) };
        }
        if self.web {
            own["web"] = json!(true);
        }
        if stream {
            own["steps"] = json!("events");
        }
        put("chimere", Some(own));
        Value::Object(body)
    }

    /// Writes the conversation, for nobody else on this machine; after an error what was there is still there.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let saved = Saved {
            version: VERSION,
            conversation: self.conversation.clone(),
            system: self.system.clone(),
            route: self.route.clone(),
            messages: self.messages.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&saved)?;
        text.push(b'\n');
        write_durable(path, &text).with_context(|| format!("cannot save to {}", path.display()))
    }

    /// Replaces the conversation with a saved one.
    pub fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        let read = || format!("cannot load {}", path.display());
        if fs::metadata(path).with_context(read)?.len() > FILE_BYTES_MAX {
            bail!("{} is larger than a conversation of {FILE_BYTES_MAX} bytes", path.display());
        }
        let saved: Saved = serde_json::from_str(without_mark(&fs::read_to_string(path).with_context(read)?))
            .with_context(|| format!("{} is not a saved conversation", path.display()))?;
        if saved.version != VERSION {
            bail!("{} has format version {}, this program reads {VERSION}", path.display(), saved.version);
        }
        self.conversation = saved.conversation;
        self.system = saved.system;
        self.route = saved.route;
        self.messages = saved.messages;
        Ok(())
    }
}

/// A name that no other conversation has.
fn fresh_name() -> String {
    let mut bytes = [0u8; 8];
    // Without randomness the clock still tells conversations of one user apart.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = jiff::Timestamp::now().as_microsecond().to_le_bytes();
    }
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("chat-{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_says_what_was_set_and_nothing_else() {
        let mut session = Session::new(Settings::default());
        session.push_user("hi");
        let plain = session.request(false);
        let mut keys: Vec<_> = plain.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        assert_eq!(keys, ["chimere", "messages"]);
        session.settings = Settings { temperature: Some(0.7), max_tokens: Some(5), seed: Some(3) };
        session.system = Some("be brief".to_owned());
        session.route = Some("code".to_owned());
        session.think = Think::Budget(64);
        let full = session.request(true);
        assert_eq!(full["temperature"].to_string(), "0.7");
        assert_eq!((&full["thinking_budget"], &full["max_tokens"]), (&json!(64), &json!(5)));
        assert_eq!((&full["messages"][0]["role"], &full["chimere"]["route"]), (&json!("system"), &json!("code")));
    }

    #[test]
    fn conversations_survive_a_file_and_bad_files_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let mut session = Session::new(Settings::default());
        session.system = Some("s".to_owned());
        session.push_user("q");
        session.push_answer("a");
        session.save(&path).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "what was said is for nobody else on this machine");
        let mut other = Session::new(Settings::default());
        other.load(&path).unwrap();
        assert_eq!((&other.messages, &other.system), (&session.messages, &session.system));
        assert_eq!(other.conversation, session.conversation);
        fs::write(&path, "{\"version\": 2}").unwrap();
        assert!(other.load(&path).is_err());
        assert_eq!(other.messages.len(), 2);
        assert!(other.load(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_conversation_goes_on_with_the_corrected_answer() {
        let mut session = Session::new(Settings::default());
        session.correct("nothing yet");
        session.push_user("q");
        session.correct("no answer yet");
        assert_eq!(session.messages, [json!({"role": "user", "content": "q"})]);
        session.push_answer("wrong");
        session.correct("<think>why</think> right\n");
        assert_eq!(session.messages[1], json!({"role": "assistant", "content": "right"}));
    }

    #[test]
    fn retry_goes_back_to_the_question() {
        let mut session = Session::new(Settings::default());
        assert_eq!(session.take_last_question(), None);
        session.push_user("one");
        session.push_answer("1");
        session.push_user("two");
        session.push_answer("2");
        assert_eq!(session.take_last_question().as_deref(), Some("two"));
        assert_eq!(session.messages.len(), 2);
    }
}
