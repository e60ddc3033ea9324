//! A night beside a client that reads slowly and one that asks for listings and leaves: it takes no longer for them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chimere_ffi::limits::lower_priority;

use crate::harness::Daemon;
use crate::night::{begin_seeded, folder_asking, launch, until};
use crate::people::{exchange, put};

const TURNS: usize = 4_000;
/// Of each exam: a night is long beside what begins and ends it.
const ITEMS: usize = 80;
/// Nights alone and nights beside them, in turns.
const NIGHTS: u64 = 5;
/// A night beside them may take so much of what one alone takes.
const RATIO_MAX: f64 = 1.10;

fn connect(url: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

/// One that asks for what is nowhere in the log, and leaves, over and over. → how often, and how often it was told before
/// that there is no room.
fn leave(url: &str, stop: &AtomicBool) -> [usize; 2] {
    let (mut left, mut refused) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        let mut stream = connect(url, "/v1/memory/turns?conversation=none&limit=1000");
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut head = [0; 12];
        let answered = stream.read_exact(&mut head).is_ok();
        refused += usize::from(answered && !head.ends_with(b"200"));
        left += 1;
    }
    [left, refused]
}

/// One that takes a little of the export at a time. → how many bytes of exports, and how many exports were refused.
fn dawdle(url: &str, stop: &AtomicBool) -> [usize; 2] {
    let (mut taken, mut refused) = (0, 0);
    while !stop.load(Ordering::SeqCst) {
        let mut stream = connect(url, "/v1/memory/export");
        let (mut piece, mut head) = ([0; 512], [0; 12]);
        if stream.read_exact(&mut head).is_err() || !head.ends_with(b"200") {
            refused += 1;
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        while !stop.load(Ordering::SeqCst) {
            match stream.read(&mut piece).unwrap_or(0) {
                0 => break,
                read => taken += read,
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    [taken, refused]
}

async fn night(daemon: &Daemon, seed: u64) -> Duration {
    let began = Instant::now();
    let run = begin_seeded(daemon, &daemon.state.path().join("candidate.gguf"), seed).await;
    until(daemon, |status| status["run"].is_null() && status["last"]["id"] == run.as_str()).await;
    began.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten nights, and a quiet machine"]
async fn a_night_takes_no_longer_beside_a_slow_reader_and_an_aborting_lister() {
    let state = folder_asking(ITEMS);
    let daemon = launch(&state, &[]);
    daemon.ready().await;
    daemon.chat("Hello").await;
    let (_, turns) = daemon.get("/v1/memory/turns").await;
    let like = serde_json::from_value(turns["data"][0].clone()).unwrap();
    crate::harness::kill(daemon.pid());
    drop(daemon);
    let one = exchange(&like, "owner", ("What is 1 + 1?", "2."), 1);
    let turns: Vec<_> = (0..TURNS)
        .map(|n| chimere::turn::Turn { id: chimere::store::new_turn_id(one.time_ms + n as i64), ..one.clone() })
        .collect();
    put(state.path(), &turns);
    let daemon = launch(&state, &[]);
    daemon.ready().await;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let (mut left, mut refused, mut taken, mut no_export) = (0, 0, 0, 0);
    night(&daemon, 1_000).await;
    for n in 0..NIGHTS {
        alone.push(night(&daemon, 2 * n + 1).await);
        let stop = Arc::new(AtomicBool::new(false));
        let (slow, hasty, url) = (stop.clone(), stop.clone(), daemon.url.clone());
        // What the clients compute themselves is no cost of the daemon.
        let reader = std::thread::spawn({
            let url = url.clone();
            move || {
                lower_priority().unwrap();
                dawdle(&url, &slow)
            }
        });
        let lister = std::thread::spawn(move || {
            lower_priority().unwrap();
            leave(&url, &hasty)
        });
        beside.push(night(&daemon, 2 * n + 2).await);
        stop.store(true, Ordering::SeqCst);
        let [bytes, none] = reader.join().unwrap();
        let [own, told] = lister.join().unwrap();
        (taken, no_export) = (taken + bytes, no_export + none);
        (left, refused) = (left + own, refused + told);
    }
    let (alone, beside) = (median(alone), median(beside));
    println!(
        "a night: {alone:.2} s alone, {beside:.2} s beside them; {left} listings were left, {refused} refused, {taken} \
         bytes of exports taken, {no_export} refused"
    );
    // They were at work, and not turned away.
    assert!(left > 100 && refused * 2 < left, "{left} left, {refused} refused");
    assert!(taken > 10_000 && no_export <= NIGHTS as usize, "{taken} bytes taken, {no_export} exports refused");
    assert!(beside <= RATIO_MAX * alone, "{beside:.2} s instead of {alone:.2} s");
}
