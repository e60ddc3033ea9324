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
