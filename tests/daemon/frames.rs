//! The engine process at the other end of its pipes. A frame that it does not understand costs its own request and
//! no other, as long as the next frame's beginning can be seen.

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use chimere::engine::protocol::{
    Command, Event, FRAME_BYTES_MAX, FailureKind, Generate, Prompt, encode, read_frame, write_frame,
};
use chimere::turn::Sampling;

use crate::harness::{chimere, model};

struct Engine {
    child: Child,
    commands: ChildStdin,
    events: BufReader<ChildStdout>,
}

impl Engine {
    fn start() -> Engine {
        let mut command = chimere();
        command.arg("engine").arg("--model").arg(model()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (commands, events) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut engine = Engine { child, commands, events };
        while !matches!(engine.next(), Some(Event::Ready(_))) {}
        engine
    }

    fn next(&mut self) -> Option<Event> {
        read_frame(&mut self.events).unwrap()
    }

    fn raw(&mut self, body: &[u8]) {
        self.commands.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
        self.commands.write_all(body).unwrap();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_strange_frame_fails_its_own_request_and_the_streams_go_on() {
    let mut engine = Engine::start();
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let prompt = Prompt::Text("Once upon a time".to_owned());
    let mut request = Generate { id: 1, ..Generate::new(prompt, greedy, 64) };
    request.ignore_end = true;
    write_frame(&mut engine.commands, &Command::Generate(Box::new(request))).unwrap();
    while !matches!(engine.next(), Some(Event::Token(_))) {}
    engine.raw(b"");
    engine.raw(b"no JSON at all");
    engine.raw(br#"{"dream":{"id":2,"of":"sheep"}}"#);
    engine.raw(br#"{"generate":{"id":3,"prompt":"sheep"}}"#);
    let mut long = br#"{"tokenize":{"id":4,"text":""#.to_vec();
    long.resize(FRAME_BYTES_MAX + 1, b'a');
    engine.raw(&long);
    let mut question = Vec::new();
    encode(&Command::Detokenize { id: 5, ids: Vec::new() }, &mut question).unwrap();
    engine.commands.write_all(&question).unwrap();
    let (mut failed, mut finished, mut answered) = (Vec::new(), false, false);
    while !(finished && answered) {
        match engine.next().expect("the engine lives") {
            Event::Failed { id, kind: FailureKind::Internal, .. } => failed.push(id),
            Event::Finished { id: 1, usage, .. } => finished = usage.completion_tokens == 64,
            Event::Text { id: 5, .. } => answered = true,
            Event::Token(token) => assert_eq!(token.id, 1),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(failed, [2, 3, 4]);
    engine.child.kill().unwrap();
    let mut log = String::new();
    engine.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(log.matches("does not understand").count(), 5, "{log}");
    assert!(!log.contains("sheep"), "no text of a request in the log: {log}");
}

#[test]
fn a_pipe_that_carries_no_frames_ends_the_engine() {
    let mut engine = Engine::start();
    let _ = engine.commands.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    // What else is written nobody reads.
    assert!(!engine.child.wait().unwrap().success());
}
