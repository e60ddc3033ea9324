//! Engram lookups at a million entries, beside one random memory read and the standard library's map, in one run.
//!
//! The next question depends on the last answer, so a lookup waits for the one before it. So the figures are latencies,
//! except those of misses, where a foreseen branch lets the next one begin. Time is that of the thread on its
//! processor: other work on the machine does not count, though what it does to the caches does.

use std::collections::HashMap;
use std::hint::black_box;

use chimere_bench::cpu::CpuTime;
use chimere_bench::engram::draft::Draft;
use chimere_bench::engram::format::Source;
use chimere_bench::engram::key::{Key, key};
use chimere_bench::engram::table::{Bytes, Table, View};
use criterion::measurement::Measurement;
use criterion::{Criterion, criterion_group, criterion_main};

const ENTRIES: usize = 1_000_000;
const VOCAB: u32 = 248_320;
/// Larger than any cache here.
const MEMORY_BYTES: usize = 1 << 30;
/// Questions asked, in an order of chance.
const ASKED: usize = 1 << 20;
/// Keys of the hot filter.
const HOT: usize = 64;

type Context = [u32; 5];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn context(&mut self) -> Context {
        std::array::from_fn(|_| (self.next() % u64::from(VOCAB)) as u32)
    }
}

fn table(contexts: &[Context]) -> Table {
    let mut draft = Draft::new([0; 32], VOCAB).unwrap();
    let source = Source { principal: String::new(), origin: "bench".into(), time_s: 0, verdict: 0, halved: false };
    let source = draft.source(source).unwrap();
    for (n, context) in contexts.iter().enumerate() {
        draft.add(context, n as u32 % VOCAB, 3, source).unwrap();
    }
    Table::open(Bytes::Owned(draft.finish("bench", "", "", None).unwrap()), None).unwrap()
}

/// Asks one question after another; which one is next waits for `answer`, by two instructions and no memory.
fn chain<T>(bench: &mut criterion::Bencher<'_, CpuTime>, asked: &[T], answer: impl Fn(&T) -> u32) {
    // Zero, which the compiler cannot know.
    let none = black_box(0u32);
    bench.iter_custom(|rounds| {
        let began = CpuTime.start();
        let mut at = 0usize;
        for _ in 0..rounds {
            at = (at + 1 + (answer(&asked[at]) & none) as usize) & (asked.len() - 1);
        }
        black_box(at);
        CpuTime.end(began)
    });
}

fn found(view: &View<'_>, context: &Context) -> u32 {
    view.find(key(context), 6).and_then(|run| run.entries().next()).map_or(0, |entry| entry.token)
}

fn lookups(criterion: &mut Criterion<CpuTime>) {
    let mut random = Random(1);
    let present: Vec<Context> = (0..ENTRIES).map(|_| random.context()).collect();
    let map: HashMap<Context, u32> = present.iter().enumerate().map(|(n, c)| (*c, n as u32)).collect();
    let absent: Vec<Context> =
        std::iter::repeat_with(|| random.context()).filter(|c| !map.contains_key(c)).take(ASKED).collect();
    let asked: Vec<Context> = (0..ASKED).map(|_| present[random.next() as usize % ENTRIES]).collect();
    let table = table(&present);
    let view = table.view();
    let keys: Vec<Key> = absent.iter().map(|c| key(c)).collect();
    let wrong = keys.iter().filter(|k| view.may_hold(**k)).count();
    println!("table of {} contexts, {} bytes", table.contexts(), table.bytes().len());
    println!("filter: {wrong} false positives of {ASKED} ({:.4} %)", 100.0 * wrong as f64 / ASKED as f64);
    let memory: Vec<u64> = (0..MEMORY_BYTES / 8).map(|n| n as u64 >> 32).collect();
    let places: Vec<usize> = (0..ASKED).map(|_| random.next() as usize % memory.len()).collect();

    let mut group = criterion.benchmark_group("engram");
    group.bench_function("loop_alone", |b| chain(b, &places[..HOT], |at| *at as u32));
    group.bench_function("memory_read", |b| chain(b, &places, |at| memory[*at] as u32));
    group.bench_function("filter_hot", |b| chain(b, &keys[..HOT], |k| u32::from(view.may_hold(*k))));
    group.bench_function("filter_cold", |b| chain(b, &keys, |k| u32::from(view.may_hold(*k))));
    group.bench_function("miss", |b| chain(b, &absent, |c| found(&view, c)));
    group.bench_function("hit", |b| chain(b, &asked, |c| found(&view, c)));
    group.bench_function("all_orders_miss", |b| {
        chain(b, &absent, |c| view.look_up(c).iter().filter(|r| r.is_some()).count() as u32);
    });
    group.bench_function("hash_map_miss", |b| chain(b, &absent, |c| map.get(c).copied().unwrap_or(0)));
    group.bench_function("hash_map_hit", |b| chain(b, &asked, |c| map.get(c).copied().unwrap_or(0)));
    group.finish();
}

criterion_group! { name = benches; config = Criterion::default().with_measurement(CpuTime).sample_size(50); targets = lookups }
criterion_main!(benches);
