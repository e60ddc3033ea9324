//! `chimere chat`: one question from the command line or standard input, or a conversation at a terminal.

mod answer;
mod command;
mod session;

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use chimere::config::Config;
use chimere::plural::counted;
use chimere::store::files::{CHAT_HISTORY, create_private_dir};
use chimere::whole;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config as LineConfig, Editor};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::client::{Client, Where, printable};
use super::exit::{EX_DATAERR, EX_USAGE, code_of, coded, note, say};
use super::owner::become_owner;
use super::serve::Place;
use super::serving::NEAR_TIMEOUT;
use answer::{Answer, Style};
use command::{Command, Gather, HELP, Think};
use session::{Session, Settings};

/// Lines that the history keeps.
const HISTORY_LINES: usize = 1000;
/// Most text that is read from standard input, bytes.
const INPUT_BYTES_MAX: u64 = 8 << 20;

/// Talk to the daemon: a conversation at a terminal, or one answer to MESSAGE or to standard input
#[derive(clap::Args)]
pub struct Args {
    /// Question to answer once; without it a conversation begins
    message: Vec<String>,
    #[command(flatten)]
    target: Where,
    #[command(flatten)]
    place: Place,
    /// Session to begin or to continue, by its name; the daemon remembers it
    #[arg(long, value_name = "NAME", value_parser = super::session::name)]
    session: Option<String>,
    /// System prompt
    #[arg(long)]
    system: Option<String>,
    /// Route to take, by name [default: the daemon chooses]
    #[arg(long)]
    route: Option<String>,
    /// Model to ask, by name [default: the served one]
    #[arg(long)]
    model: Option<String>,
    /// Built-in tools that answers may call, by name: `calculate,date_time` [default: those of the route]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tools: Vec<String>,
    /// Answers read from documents: `--documents=papers,house`, or all that one may read [default: as the route does]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    documents: Option<Vec<String>>,
    /// Search the web for answers, by the search engine that the daemon's owner configured [default: as the route does]
    #[arg(long)]
    web: bool,
    /// Thought: auto, on, off or a number of tokens
    #[arg(long, default_value = "auto", value_parser = |text: &str| text.parse::<Think>())]
    think: Think,
    /// How much chance decides; 0 = always the most probable token
    #[arg(long)]
    temperature: Option<f32>,
    /// Most tokens of an answer, its thought included [default: the pipeline's, else that of `replies.max_tokens`, else the
    /// model's own, else 8192 or half of the context]
    #[arg(long)]
    max_tokens: Option<u32>,
    /// Seed of the sampling: the same seed repeats an answer exactly
    #[arg(long)]
    seed: Option<u64>,
    /// Print the whole reply as JSON (one question only)
    #[arg(long)]
    json: bool,
    /// Print the prompt that the model would read, and ask nothing (one question only; with --json its ids as well)
    #[arg(long)]
    show_prompt: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    // A thread of its own: a connection is closed, and the daemon hears that a reply was stopped, while the person types.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let config = Config::load(&args.place.flags())?;
    let client = Client::new(&args.target, config.http.listen)?;
    let mut session =
        Session::new(Settings { temperature: args.temperature, max_tokens: args.max_tokens, seed: args.seed });
    session.system = args.system;
    session.remembered = args.session;
    session.route = args.route;
    session.model = args.model;
    session.tools = args.tools;
    session.documents = args.documents;
    session.web = args.web;
    session.think = args.think;
    let typed = args.message.join(" ");
    if !args.message.is_empty() && typed.trim().is_empty() {
        return Err(coded(EX_USAGE, "the question is empty: write one, or leave it out to be asked for it"));
    }
    let question = if !typed.is_empty() {
        Some(typed)
    } else if !std::io::stdin().is_terminal() {
        match command::piped(&read_input()?).map_err(|message| coded(EX_USAGE, message))? {
            Some(question) => Some(question),
            None => return Ok(ExitCode::SUCCESS),
        }
    } else {
        None
    };
    match question {
        Some(question) if args.show_prompt => {
            session.push_user(&question);
            let shown = runtime.block_on(client.post("/apply-template", &session.request(false)))?;
            match args.json {
                true => say!("{}", whole::unmarked(&serde_json::to_string_pretty(&shown)?)),
                false => say!("{}", printable(shown["prompt"].as_str().unwrap_or_default())),
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(question) if args.json => {
            session.push_user(&question);
            let reply = runtime.block_on(client.post("/v1/chat/completions", &session.request(false)))?;
            say!("{}", whole::unmarked(&serde_json::to_string_pretty(&reply)?));
            Ok(ExitCode::SUCCESS)
        }
        Some(question) => one_answer(&runtime, &client, &mut session, &question),
        None if args.json || args.show_prompt => {
            let message = "--json and --show-prompt need a question: give it as an argument or on standard input";
            Err(coded(EX_USAGE, message))
        }
        None => {
            // The folder may be another user's: what is written there is that user's.
            become_owner(&config)?;
            Prompt::new(runtime, client, session, &config.state_dir)?.run()
        }
    }
}

fn read_input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().take(INPUT_BYTES_MAX + 1).read_to_string(&mut text).context("standard input")?;
    if text.len() as u64 > INPUT_BYTES_MAX {
        let message = format!("standard input is longer than {INPUT_BYTES_MAX} bytes: cut it, or ask about a part");
        return Err(coded(EX_DATAERR, message));
    }
    if text.trim().is_empty() {
        let message = "the question is empty: give one as an argument, on standard input, or at a terminal";
        return Err(coded(EX_USAGE, message));
    }
    Ok(text)
}

fn one_answer(runtime: &Runtime, client: &Client, session: &mut Session, question: &str) -> anyhow::Result<ExitCode> {
    session.push_user(question);
    let style = Style { thought: std::io::stdout().is_terminal() };
    let mut answer = Answer::default();
    let request = session.request(true);
    runtime.block_on(answer::ask(client, &request, style, &mut answer, &mut std::io::stdout().lock()))?;
    for source in answer.sources().unwrap_or_default() {
        note!("{source}");
    }
    if let Some(lost) = answer.lost() {
        note!("chimere: {lost}");
    }
    if answer.is_cut() {
        note!("chimere: {}: --max-tokens N allows more", answer.cut());
    }
    Ok(ExitCode::SUCCESS)
}

/// The conversation at a terminal.
struct Prompt {
    runtime: Runtime,
    client: Client,
    session: Session,
    editor: Editor<(), DefaultHistory>,
    history: Option<PathBuf>,
    last: Option<Answer>,
    /// The reply that the conversation ends with, for votes and corrections.
    rated: Option<String>,
    /// A question that got no answer, for `/retry`.
    unanswered: Option<String>,
}

impl Prompt {
    fn new(runtime: Runtime, client: Client, session: Session, state_dir: &Path) -> anyhow::Result<Self> {
        let config = LineConfig::builder().max_history_size(HISTORY_LINES)?.history_ignore_space(true).build();
        let mut editor = Editor::with_config(config).context("cannot use this terminal")?;
        let history = state_dir.join(CHAT_HISTORY);
        if history.exists() {
            editor.load_history(&history).with_context(|| format!("cannot read {}", history.display()))?;
        }
        // A first conversation may come before the daemon's first start.
        let history = create_private_dir(state_dir).map(|()| history).ok();
        Ok(Prompt { runtime, client, session, editor, history, last: None, rated: None, unanswered: None })
    }

    fn run(mut self) -> anyhow::Result<ExitCode> {
        let models = self.runtime.block_on(self.client.get("/v1/models"))?;
        match models["data"][0]["id"].as_str() {
            Some(model) => say!("{} · /help for help, Ctrl-D to leave", printable(model)),
            None => say!("the model is still loading · /help for help, Ctrl-D to leave"),
        }
        let mut gather = Gather::default();
        // The text that is gathered is the one of `/correct`.
        let mut correcting = false;
        loop {
            let sign = if gather.open() { "… " } else { "> " };
            let mut line = match self.editor.readline(sign) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    gather.clear();
                    correcting = false;
                    continue;
                }
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(error).context("cannot read from the terminal"),
            };
            if !gather.open() && line.trim().is_empty() {
                continue;
            }
            if let Some(text) = command::correction(&line).filter(|_| !gather.open()) {
                (line, correcting) = (text.to_owned(), true);
            } else if !gather.open() && line.starts_with('/') {
                self.remember(&line);
                match command::parse(&line) {
                    Ok(Command::Quit) => break,
                    Ok(command) => self.obey(command),
                    Err(message) => note!("{message}"),
                }
                continue;
            }
            if let Some(message) = gather.push(&line) {
                if std::mem::take(&mut correcting) {
                    self.remember(&format!("/correct {message}"));
                    self.obey(Command::Correct(message));
                } else {
                    self.remember(&message);
                    self.ask(&message);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn remember(&mut self, entry: &str) {
        // The file was removed meanwhile, as by a forgetting: what it held is not written again.
        if self.history.as_ref().is_some_and(|path| !path.exists()) {
            let _ = self.editor.clear_history();
        }
        let added = self.editor.add_history_entry(entry).unwrap_or(false);
        if let (true, Some(path)) = (added, &self.history)
            && let Err(error) = self.editor.append_history(path)
        {
            note!("the history cannot be written to {}: {error}", path.display());
            self.history = None;
        }
    }

    /// Sends the conversation with one more question. A failed one leaves the conversation as it was.
    fn ask(&mut self, question: &str) {
        self.session.push_user(question);
        self.unanswered = None;
        let mut answer = Answer::default();
        let (client, request) = (&self.client, self.session.request(true));
        let outcome = self.runtime.block_on(async {
            let style = Style { thought: true };
            let mut out = std::io::stdout().lock();
            let reply = answer::ask(client, &request, style, &mut answer, &mut out);
            tokio::select! {
                outcome = reply => outcome.map(|()| true),
                _ = tokio::signal::ctrl_c() => Ok(false),
            }
        });
        match outcome {
            Ok(true) => {
                self.session.push_answer(&answer.text);
                self.rated = answer.id.clone();
                if let Some(lost) = answer.lost() {
                    say!("[{lost}]");
                }
                if let Some(lessons) = answer.lessons() {
                    say!("[shown {lessons}: `chimere lessons show ID`]");
                }
                for source in answer.sources().unwrap_or_default() {
                    say!("{source}");
                }
                if answer.is_cut() {
                    let again = if self.session.remembered.is_some() { "ask it to go on" } else { "/retry asks again" };
                    say!("[{}: /tokens N allows more, {again}]", answer.cut());
                }
            }
            Ok(false) => {
                say!("\u{1b}[0m\n[stopped]");
                // What was said before the stop belongs to the conversation, but a session stays where it was.
                if answer.text.is_empty() || self.session.remembered.is_some() {
                    self.unanswered = self.session.take_last_question();
                } else {
                    self.session.push_answer(&answer.text);
                    self.rated = answer.id.clone();
                }
            }
            Err(error) => {
                note!("chimere: {error:#} (/retry asks again)");
                self.unanswered = self.session.take_last_question();
            }
        }
        self.last = Some(answer);
    }

    fn stats(&mut self) {
        let Some(answer) = &mut self.last else { return say!("there was no answer yet") };
        // The figures come with the last event, which a stopped answer has not. Its turn has them.
        if answer.usage.is_null()
            && let Some(id) = &answer.id
            && let Ok(page) = self.runtime.block_on(self.client.get(&format!("/v1/memory/turns?turn={id}")))
        {
            answer.take_turn(&page["data"][0]);
        }
        say!("{}", answer.stats());
    }

    fn obey(&mut self, command: Command) {
        if let Err(error) = self.try_obey(command) {
            note!("chimere: {error:#}");
        }
    }

    fn try_obey(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Help => say!("{HELP}"),
            Command::New => {
                self.session.reset();
                self.rated = None;
                say!("a new conversation{}", self.leave());
            }
            Command::Session(None) => say!("session: {}", self.session.remembered.as_deref().unwrap_or("none")),
            Command::Session(Some(name)) => {
                self.session.reset();
                self.rated = None;
                self.session.remembered = name;
                say!("session: {}", self.session.remembered.as_deref().unwrap_or("none"));
            }
            Command::System(text) => set("system prompt", &mut self.session.system, text, ""),
            Command::Route(name) => {
                self.takes_route(name.as_deref())?;
                set("route", &mut self.session.route, name, "auto");
            }
            Command::Model(Some(name)) => {
                self.takes_model(&name)?;
                set("model", &mut self.session.model, Some(name), "auto");
            }
            Command::Model(None) => self.list_models()?,
            Command::Think(how) => {
                self.session.think = how.unwrap_or(self.session.think);
                say!("thought: {}", described(self.session.think));
            }
            Command::Save(file) => {
                self.session.save(Path::new(&file))?;
                say!("saved to {file}");
            }
            Command::Load(file) => {
                self.session.load(Path::new(&file))?;
                self.rated = None;
                let messages = counted(self.session.messages.len(), "message", "messages");
                say!("{messages}{}", self.leave());
            }
            Command::Retry if self.session.remembered.is_some() && self.unanswered.is_none() && self.last.is_some() => {
                say!("the session remembers that answer; `chimere session save NAME --turn ID --replace` goes back");
            }
            Command::Retry => match self.unanswered.take().or_else(|| self.session.take_last_question()) {
                Some(question) => {
                    self.rated = None;
                    self.ask(&question);
                }
                None => say!("there is nothing to ask again"),
            },
            Command::Tokens(most) => {
                self.session.settings.max_tokens = most.unwrap_or(self.session.settings.max_tokens);
                match self.session.settings.max_tokens {
                    Some(most) => say!("most tokens of an answer: {most}"),
                    None => say!("most tokens of an answer: as the pipeline decides"),
                }
            }
            Command::Good => self.rate("vote", "up")?,
            Command::Bad => self.rate("vote", "down")?,
            Command::Correct(text) => {
                self.rate("correction", &text)?;
                self.session.correct(&text);
            }
            Command::Stats => self.stats(),
            Command::Quit => {}
        }
        std::io::stdout().flush()?;
        Ok(())
    }

    /// Tells the daemon what the person thinks of the last answer.
    fn rate(&self, field: &str, value: &str) -> anyhow::Result<()> {
        let Some(turn) = &self.rated else {
            bail!("there is no answer in this conversation yet: ask first");
        };
        let body = serde_json::json!({"turn": turn, field: value});
        let told = self.runtime.block_on(self.client.post("/v1/feedback", &body))?;
        say!("{field} recorded for {}", printable(told["turn"].as_str().unwrap_or(turn)));
        if told["lesson"] == "unknown" {
            say!("whether it made a lesson is not known yet: `chimere lessons list` shows it");
        } else if let Some(lesson) = told["lesson"].as_str().map(printable) {
            say!("kept as {lesson}: answers to this question are shown it from now on");
            for retired in told["retired"].as_array().into_iter().flatten().filter_map(|id| id.as_str()) {
                say!("it takes the place of {}", printable(retired));
            }
            say!("see `chimere lessons show {lesson}`; undo with `chimere lessons forget {lesson}`");
        }
        if let Some(why) = told["no_lesson"].as_str() {
            say!("no lesson was made: {}", printable(why));
        }
        Ok(())
    }

    /// Leaves the session, which would remember what is no part of the conversation.
    fn leave(&mut self) -> &'static str {
        if self.session.remembered.take().is_some() { ", in no session" } else { "" }
    }

    /// Refuses a route that there is not, in the daemon's words, which name those that there are.
    fn takes_route(&self, name: Option<&str>) -> anyhow::Result<()> {
        let Some(name) = name.filter(|name| *name != "auto") else { return Ok(()) };
        let body = serde_json::json!({
            "messages": [{"role": "user", "content": "?"}],
            "chimere": {"route": name, "lessons": "none"},
        });
        let asked = async { tokio::time::timeout(NEAR_TIMEOUT, self.client.post("/apply-template", &body)).await };
        match self.runtime.block_on(asked) {
            Ok(Err(error)) if code_of(&error) == EX_DATAERR => Err(error),
            // The engine is busy, or starts: the next question tells.
            _ => Ok(()),
        }
    }

    /// Refuses a model that there is not.
    fn takes_model(&self, name: &str) -> anyhow::Result<()> {
        let models = self.models()?;
        // None is listed while the served one loads.
        if name == "auto" || models.is_empty() || models.iter().any(|model| model == name) {
            return Ok(());
        }
        Err(coded(EX_DATAERR, format!("there is no model `{name}`: the models are {}", models.join(", "))))
    }

    /// Names of the models that chat.
    fn models(&self) -> anyhow::Result<Vec<String>> {
        let models = self.runtime.block_on(self.client.get("/v1/models"))?;
        let chats = |model: &&Value| model["x_chimere"]["embeds"] != true;
        let name = |model: &Value| printable(model["id"].as_str().unwrap_or_default());
        Ok(models["data"].as_array().into_iter().flatten().filter(chats).map(name).collect())
    }

    fn list_models(&self) -> anyhow::Result<()> {
        self.models()?.iter().for_each(|model| say!("{model}"));
        say!("in use: {}", self.session.model.as_deref().unwrap_or("the served model"));
        Ok(())
    }
}

fn described(think: Think) -> String {
    match think {
        Think::Auto => "as the pipeline decides".to_owned(),
        Think::On => "on".to_owned(),
        Think::Off => "off".to_owned(),
        Think::Budget(tokens) => format!("at most {}", counted(tokens, "token", "tokens")),
    }
}

/// Shows a setting, changes it, or removes it with `none`.
fn set(what: &str, slot: &mut Option<String>, value: Option<String>, none: &str) {
    if let Some(value) = value {
        *slot = (value != none).then_some(value);
    }
    say!("{what}: {}", slot.as_deref().unwrap_or("as the pipeline decides"));
}
