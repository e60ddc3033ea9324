//! The Engram table reader on any bytes: it must return, in bounded memory. What it accepts answers every lookup with
//! tokens of its vocabulary, and is written back with the same meaning.

use sha2::{Digest, Sha256};

use crate::engram::draft::Draft;
use crate::engram::key;
use crate::engram::table::{Bytes, Table};

/// A table needs its own digest: put it there, so that what lies behind it is reached.
fn seal(bytes: &mut [u8]) {
    if bytes.len() >= 192 {
        let mut hash = Sha256::new();
        hash.update(&bytes[..8]);
        hash.update(&bytes[40..]);
        bytes[8..40].copy_from_slice(&hash.finalize());
    }
}

pub fn check(data: &[u8]) {
    let mut bytes = data.to_vec();
    assert!(Table::open(Bytes::Owned(bytes.clone()), None).is_err() || data.len() >= 192);
    seal(&mut bytes);
    let Ok(table) = Table::open(Bytes::Owned(bytes), None) else {
        return;
    };
    let sources = table.sources();
    for (context, run) in table.all() {
        let found = table.view().find(key::key(&context), context.len() + 1).expect("every context is found");
        assert!(found.entries().eq(run.entries()));
        for entry in run.entries() {
            assert!(entry.is_rest() || entry.token < table.vocab());
            assert!((entry.source as usize) < sources.len() && table.view().weight(entry) >= 0.0);
        }
    }
    let Ok(draft) = Draft::of(&table) else {
        return;
    };
    let again = draft.finish(&table.meta().name, "", "", None).expect("what was read can be written");
    let again = Table::open(Bytes::Owned(again), None).expect("what was written can be read");
    assert!(again.contexts() <= table.contexts());
}
