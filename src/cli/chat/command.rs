//! What a line typed at the terminal means: a message, a command, or the part of a message.

use chimere::store::files::without_mark;

/// Thought as the user asked for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Think {
    /// The pipeline decides.
    #[default]
    Auto,
    On,
    Off,
    Budget(u32),
}

impl std::str::FromStr for Think {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Think::Auto),
            "on" => Ok(Think::On),
            "off" => Ok(Think::Off),
            number => {
                number.parse().map(Think::Budget).map_err(|_| "say auto, on, off or a number of tokens".to_owned())
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    New,
    /// `None` shows it; `Some(None)` leaves it.
    Session(Option<Option<String>>),
    /// `None` shows it, an empty text removes it.
    System(Option<String>),
    Route(Option<String>),
    Model(Option<String>),
    Think(Option<Think>),
    Save(String),
    Load(String),
    Retry,
    /// `None` shows the limit; `Some(None)` leaves it to the pipeline.
    Tokens(Option<Option<u32>>),
    Good,
    Bad,
    /// What the last answer should have been.
    Correct(String),
    Stats,
    Quit,
}

pub const HELP: &str = "\
/new             begin a new conversation
/session [NAME]  show the session or change to another, which the daemon remembers; /session - leaves it
/system [TEXT]   show or set the system prompt; /system - removes it
/route [NAME]    show or choose the route; /route auto lets the daemon choose
/model [NAME]    list the models or choose one
/think [HOW]     show or set thought: auto, on, off or a number of tokens
/tokens [N]      show or set the most tokens of an answer, for a model that repeats itself; /tokens auto: the default
/good            say that the last answer is right; nights learn from it where they may
/bad             say that the last answer is wrong
/correct TEXT    say what the last answer should have been, kept as a lesson; several lines as in a message
/save FILE       write the conversation to a file
/load FILE       go on with a saved conversation
/retry           ask the last question again
/stats           figures of the last answer
/quit            leave (Ctrl-D as well)
A message of several lines stands between lines of \"\"\", or ends its lines with \\.
Ctrl-C stops the answer that is being written.";

/// Reads a line that starts with `/`.
pub fn parse(line: &str) -> Result<Command, String> {
    let line = line.trim();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let some = || (!rest.is_empty()).then(|| rest.to_owned());
    let file = |usage: &str| some().ok_or_else(|| format!("usage: {usage}"));
    Ok(match name {
        "/help" | "/?" => Command::Help,
        "/new" => Command::New,
        "/session" => match rest {
            "" => Command::Session(None),
            "-" => Command::Session(Some(None)),
            name => Command::Session(Some(Some(crate::cli::session::name(name)?))),
        },
        "/system" => Command::System(some().map(|text| if text == "-" { String::new() } else { text })),
        "/route" => Command::Route(some()),
        "/model" => Command::Model(some()),
        "/think" => Command::Think(some().map(|how| how.parse()).transpose()?),
        "/save" => Command::Save(file("/save FILE")?),
        "/load" => Command::Load(file("/load FILE")?),
        "/retry" => Command::Retry,
        "/tokens" => Command::Tokens(some().map(|most| tokens(&most)).transpose()?),
        "/good" | "/bad" if !rest.is_empty() => {
            return Err(format!("{name} takes no text; /correct TEXT says what the answer should have been"));
        }
        "/good" => Command::Good,
        "/bad" => Command::Bad,
        "/correct" => Command::Correct(some().ok_or("usage: /correct TEXT, the answer that would have been right")?),
        "/stats" => Command::Stats,
        "/quit" | "/exit" => Command::Quit,
        _ => return Err(format!("unknown command {name}; /help lists them")),
    })
}

fn tokens(most: &str) -> Result<Option<u32>, String> {
    match most {
        "auto" => Ok(None),
        number => match number.parse() {
            Ok(most @ 1..) => Ok(Some(most)),
            _ => Err("say auto or a number of tokens, at least 1".to_owned()),
        },
    }
}

/// The part of a line behind `/correct`: the first line of a text, which may have more.
pub fn correction(line: &str) -> Option<&str> {
    let (name, text) = line.split_once(char::is_whitespace)?;
    (name == "/correct" && !text.trim().is_empty()).then(|| text.trim_start())
}

/// The question in a piped text, without the `/quit` that ends one; `None`: there is nothing but that. What begins with
/// another command was meant for a conversation at a terminal.
pub fn piped(text: &str) -> Result<Option<String>, String> {
    let text = without_mark(text);
    let leaves = |line: &str| line.starts_with('/') && parse(line) == Ok(Command::Quit);
    let mut lines: Vec<&str> = text.lines().collect();
    while lines.last().is_some_and(|line| line.trim().is_empty() || leaves(line)) {
        if lines.pop().is_some_and(leaves) && lines.iter().all(|line| line.trim().is_empty()) {
            return Ok(None);
        }
    }
    let first = lines.first().copied().unwrap_or_default();
    let name = first.split_whitespace().next().unwrap_or_default();
    let mut of_terminal =
        ["/help", "/?"].into_iter().chain(HELP.lines().filter_map(|line| line.split_whitespace().next()));
    let is_command = first.starts_with('/') && of_terminal.any(|known| known == name);
    if is_command {
        return Err(format!(
            "`{name}` is a command of a conversation, and standard input is one question: begin a conversation at a terminal, \
             use an option (`chimere chat --help`), or give the question as an argument"
        ));
    }
    Ok(Some(lines.join("\n")))
}

/// Puts lines together to a message.
#[derive(Debug, Default)]
pub struct Gather {
    lines: Vec<String>,
    quoted: bool,
}

impl Gather {
    /// More lines belong to the message.
    pub fn open(&self) -> bool {
        self.quoted || !self.lines.is_empty()
    }

    /// Takes a line; gives the message once it is complete.
    pub fn push(&mut self, line: &str) -> Option<String> {
        if self.quoted {
            match line.trim_end().strip_suffix("\"\"\"") {
                Some(last) => {
                    if !last.is_empty() {
                        self.lines.push(last.to_owned());
                    }
                    self.quoted = false;
                    return Some(self.take());
                }
                None => self.lines.push(line.to_owned()),
            }
            return None;
        }
        if self.lines.is_empty()
            && let Some(first) = line.trim_start().strip_prefix("\"\"\"")
        {
            if let Some(all) = first.trim_end().strip_suffix("\"\"\"") {
                return Some(all.to_owned());
            }
            if !first.is_empty() {
                self.lines.push(first.to_owned());
            }
            self.quoted = true;
            return None;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                self.lines.push(part.to_owned());
                None
            }
            None => {
                self.lines.push(line.to_owned());
                Some(self.take())
            }
        }
    }

    /// Drops what was gathered.
    pub fn clear(&mut self) {
        *self = Gather::default();
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.lines).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piped_text_is_one_question_and_no_command() {
        for (text, question) in [
            ("What is 1 + 1?\n", Some("What is 1 + 1?")),
            ("one\n\n  two\n/quit\n", Some("one\n\n  two")),
            ("one\n/exit", Some("one")),
            ("/quit\n", None),
            ("\n/quit\n\n", None),
            ("/etc/passwd is a file. Of what?", Some("/etc/passwd is a file. Of what?")),
            ("say\n/quit\nplease", Some("say\n/quit\nplease")),
            ("/* a comment */", Some("/* a comment */")),
            ("\u{feff}What is 1 + 1?\r\n", Some("What is 1 + 1?")),
        ] {
            assert_eq!(piped(text).unwrap().as_deref(), question, "{text}");
        }
        for text in ["/help", "/good", "/bad\n", "/correct 42", "/new\nWhat is 1 + 1?\n/quit\n", "/think maybe"] {
            assert!(piped(text).unwrap_err().contains("is a command of a conversation"), "{text}");
        }
    }

    #[test]
    fn commands_are_read() {
        assert_eq!(parse("/system be brief "), Ok(Command::System(Some("be brief".to_owned()))));
        assert_eq!(parse("/system"), Ok(Command::System(None)));
        assert_eq!(parse("/system -"), Ok(Command::System(Some(String::new()))));
        assert_eq!(parse("/think 300"), Ok(Command::Think(Some(Think::Budget(300)))));
        assert_eq!(parse("/think off"), Ok(Command::Think(Some(Think::Off))));
        assert!(parse("/think hard").is_err());
        assert!(parse("/save").unwrap_err().contains("usage"));
        assert!(parse("/dance").unwrap_err().contains("/help"));
        assert_eq!(parse("/exit"), Ok(Command::Quit));
        assert_eq!(parse("/tokens"), Ok(Command::Tokens(None)));
        assert_eq!(parse("/tokens auto"), Ok(Command::Tokens(Some(None))));
        assert_eq!(parse("/tokens 40"), Ok(Command::Tokens(Some(Some(40)))));
        for wrong in ["0", "-1", "many", "99999999999"] {
            assert!(parse(&format!("/tokens {wrong}")).unwrap_err().contains("at least 1"), "{wrong}");
        }
        assert_eq!((parse("/good"), parse("/bad ")), (Ok(Command::Good), Ok(Command::Bad)));
        assert!(parse("/bad it is 5").unwrap_err().contains("/correct TEXT"));
        assert_eq!(parse("/correct It is 5."), Ok(Command::Correct("It is 5.".to_owned())));
        assert!(parse("/correct  ").unwrap_err().contains("usage"));
        assert_eq!(correction("/correct  \"\"\"a"), Some("\"\"\"a"));
        for other in ["/correct", "/correct ", "/correctly put", "/bad it"] {
            assert_eq!(correction(other), None, "{other}");
        }
    }

    #[test]
    fn lines_are_gathered() {
        let of = |lines: &[&str]| {
            let mut gather = Gather::default();
            let done: Vec<_> = lines.iter().map(|line| gather.push(line)).collect();
            let (last, before) = done.split_last().unwrap();
            assert!(before.iter().all(Option::is_none), "{lines:?} ended early");
            assert!(!gather.open());
            last.clone().unwrap()
        };
        assert_eq!(of(&["hello"]), "hello");
        assert_eq!(of(&["a\\", "b\\", "c"]), "a\nb\nc");
        assert_eq!(of(&["\"\"\"", "a", "", "/quit", "\"\"\""]), "a\n\n/quit");
        assert_eq!(of(&["\"\"\"a", "b\"\"\""]), "a\nb");
        assert_eq!(of(&["\"\"\"one line\"\"\""]), "one line");
    }
}
