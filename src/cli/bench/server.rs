//! The servers whose event streams are measured: a daemon of our own, and llama.cpp's server. Each is started for the
//! measurement, with nothing of the surroundings' configuration, and ends with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use chimere::config::variables;
use chimere::store::files::create_private_dir;
use serde_json::{Value, json};

use crate::cli::client::{Client, Where};
use crate::cli::exit::{EX_UNAVAILABLE, coded};
use crate::cli::port;

/// Longest wait for a model to be loaded.
const READY_TIMEOUT: Duration = Duration::from_secs(300);
/// Tokens that end a reply in the models of this family: forbidden, so that every reply has its full length.
const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// This binary again, with none of the surroundings' configuration.
pub fn chimere() -> anyhow::Result<Command> {
    let mut command = Command::new(chimere::program::own()?);
    let ours = chimere::config::Environment::of_process().chimere;
    for (name, _) in ours {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// A server on a free port; it and its state folder are gone when this is dropped.
pub struct Server {
    child: Child,
    pub client: Client,
    /// How it was started, for whoever must find out why it does not come up.
    line: String,
    state: Option<PathBuf>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(state) = &self.state {
            let _ = fs::remove_dir_all(state);
        }
    }
}

impl Server {
    /// A daemon under this configuration; `routes` are pipeline files, by name, that win over the shipped ones.
    pub fn daemon(model: &Path, config: &str, routes: &[(&str, &str)]) -> anyhow::Result<Server> {
        let state = std::env::temp_dir().join(format!("chimere-bench-{}", std::process::id()));
        create_private_dir(&state)?;
        let (file, overlay) = (state.join("config.toml"), state.join("pipelines"));
        fs::write(&file, config)?;
        create_private_dir(&overlay)?;
        for (name, text) in routes {
            fs::write(overlay.join(format!("{name}.yaml")), text)?;
        }
        let mut command = chimere()?;
        command.args(["serve", "--model"]).arg(model);
        command.arg("--state-dir").arg(&state).arg("--config").arg(&file);
        Server::start(command, Some(state), |port| vec!["--listen".to_owned(), format!("127.0.0.1:{port}")])
    }

    /// llama.cpp's server, with as many threads, sequences and positions in each, and its own defaults otherwise.
    pub fn llama(file: &Path, model: &Path, threads: usize, sequences: u16, context: u32) -> anyhow::Result<Server> {
        let mut command = Command::new(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).arg("--model").arg(model);
        for name in variables("LLAMA_ARG_") {
            command.env_remove(name);
        }
        let whole = u32::from(sequences) * context;
        let (threads, sequences, whole) = (threads.to_string(), sequences.to_string(), whole.to_string());
        command.args(["--threads", &threads, "--parallel", &sequences, "--ctx-size", &whole]);
        Server::start(command, None, |port| {
            ["--host", "127.0.0.1", "--port", &port.to_string()].map(str::to_owned).into()
        })
    }

    fn start(mut command: Command, state: Option<PathBuf>, place: fn(u16) -> Vec<String>) -> anyhow::Result<Server> {
        let listen = port::free()?;
        command.args(place(listen.port()));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let client = Client::new(&Where { url: None, key: None }, listen)?;
        let child = command.spawn().with_context(|| format!("cannot start {line}"))?;
        Ok(Server { child, client, line, state })
    }

    /// Waits until the model is loaded.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while let Err(error) = self.client.get("/health").await {
            if let Some(status) = self.child.try_wait()? {
                let hint = "it says why when started by hand";
                let message = format!("the server ended before it was ready ({status}); {hint}: {}", self.line);
                return Err(coded(EX_UNAVAILABLE, message));
            }
            if began.elapsed() > READY_TIMEOUT {
                return Err(error.context(format!("not ready within {READY_TIMEOUT:?}: {}", self.line)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The `logit_bias` under which no reply ends before it has all its tokens.
    pub async fn no_end(&self) -> anyhow::Result<Value> {
        let mut bias = json!({});
        for end in ENDS {
            let body = json!({ "content": end, "parse_special": true });
            let answer = self.client.post("/tokenize", &body).await?;
            if let [id] = answer["tokens"].as_array().map_or(&[][..], Vec::as_slice) {
                bias[id.to_string()] = json!(-100);
            }
        }
        Ok(bias)
    }
}
