//! Frames as they should be, and as they should not.

use super::*;

#[test]
fn frames_round_trip_and_end_cleanly() {
    let mut pipe = Vec::new();
    encode(&Command::Cancel { id: 7 }, &mut pipe).unwrap();
    encode(&Command::Pause, &mut pipe).unwrap();
    let mut from = pipe.as_slice();
    assert_eq!(read_frame::<Command>(&mut from).unwrap(), Some(Command::Cancel { id: 7 }));
    assert_eq!(read_frame::<Command>(&mut from).unwrap(), Some(Command::Pause));
    assert_eq!(read_frame::<Command>(&mut from).unwrap(), None);
}

#[test]
fn broken_frames_are_errors_not_panics() {
    assert!(matches!(read_frame::<Command>(&[1, 0][..]), Err(FrameError::Io(_))));
    assert!(matches!(read_frame::<Command>(&[9, 0, 0, 0, b'x'][..]), Err(FrameError::Io(_))));
    assert!(matches!(read_frame::<Command>(&[1, 0, 0, 0, b'x'][..]), Err(FrameError::Json(_))));
    assert!(matches!(read_frame::<Command>(&[255; 4][..]), Err(FrameError::TooLarge { .. })));
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

fn strange(pipe: &mut &[u8]) -> Option<RequestId> {
    match next_frame::<Command>(pipe).unwrap().unwrap() {
        Frame::Strange { id, .. } => id,
        Frame::Message(message) => panic!("{message:?}"),
    }
}

#[test]
fn a_frame_that_is_no_message_names_its_request_and_the_next_one_is_read() {
    let cases: [(&[u8], Option<RequestId>); 7] = [
        (b"", None),
        (b"not json", None),
        (br#"{"dream":{"id":7,"of":"sheep"}}"#, Some(7)),
        (br#"{"generate":{"id":8,"prompt":{"text":"cut sh"#, Some(8)),
        (br#"{"generate":{"id":9,"prompt":3}}"#, Some(9)),
        (br#"{"dream":{"of":{"id":7}}}"#, None),
        (br#"{"tokenize":{"id":99999999999999999999,"text":""}}"#, None),
    ];
    let mut pipe = Vec::new();
    cases.iter().for_each(|(body, _)| pipe.extend(frame(body)));
    encode(&Command::Pause, &mut pipe).unwrap();
    let mut from = pipe.as_slice();
    for (body, id) in cases {
        assert_eq!(strange(&mut from), id, "{}", String::from_utf8_lossy(body));
    }
    assert_eq!(read_frame::<Command>(&mut from).unwrap(), Some(Command::Pause));
}

#[test]
fn a_frame_over_the_limit_is_passed_over() {
    let mut body = br#"{"tokenize":{"id":7,"text":""#.to_vec();
    body.resize(FRAME_BYTES_MAX + 1, b'a');
    let mut pipe = frame(&body);
    encode(&Command::Pause, &mut pipe).unwrap();
    let mut from = pipe.as_slice();
    assert_eq!(strange(&mut from), Some(7));
    assert_eq!(read_frame::<Command>(&mut from).unwrap(), Some(Command::Pause));
    let cut = &pipe[..FRAME_BYTES_MAX / 2];
    assert!(matches!(next_frame::<Command>(cut), Err(FrameError::Io(_))));
}

/// What `id_of` stands on.
#[test]
fn every_message_with_an_id_says_it_first() {
    let sampling = crate::turn::Sampling::default();
    let generate = Generate { id: 7, ..Generate::new(Prompt::Text(String::new()), sampling, 1) };
    let mut pipe = Vec::new();
    for command in [
        Command::Generate(Box::new(generate)),
        Command::Cancel { id: 7 },
        Command::Tokenize { id: 7, text: String::new(), specials: false },
        Command::DropAdapter { id: 7, revision: String::new() },
        Command::Embed { id: 7, input: EmbedInput::Text(String::new()), cut: false },
        Command::Evaluate { id: 7, adapter: None, rows: Vec::new(), with_kl: false },
        Command::DropTable { id: 7, name: String::new() },
        Command::ProbeCandidate { id: 7, candidate: String::new(), probes: Vec::new(), rows: Vec::new() },
        Command::ForgetPrefixes { id: 7, owner: None },
        Command::Stats { id: 7 },
    ] {
        pipe.clear();
        encode(&command, &mut pipe).unwrap();
        assert_eq!(id_of(&pipe[4..]), Some(7), "{command:?}");
    }
    for event in [
        Event::Queued { id: 7 },
        Event::Text { id: 7, text: String::new() },
        Event::Tokens { id: 7, ids: Vec::new(), pieces: Vec::new() },
        Event::Embedded { id: 7, vector: Vec::new(), tokens: 0 },
        Event::Evaluated { id: 7, rows: Vec::new() },
        Event::PrefixesForgotten { id: 7, snapshots: 0 },
        Event::Failed { id: 7, kind: FailureKind::Busy, message: String::new() },
    ] {
        pipe.clear();
        encode(&event, &mut pipe).unwrap();
        assert_eq!(id_of(&pipe[4..]), Some(7), "{event:?}");
    }
}
