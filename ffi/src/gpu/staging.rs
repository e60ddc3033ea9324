//! Memory of the host from which the device copies by itself, while the one that filled it fills another.

use std::sync::Arc;

use super::{Buffer, Device, GpuError};

/// Bytes on their way to the device. Filled, sent and filled again: the second filling waits for the copy.
pub struct Staging {
    /// Absent: sending is a copy that is waited for.
    pinned: Option<Pinned>,
    plain: Vec<u8>,
    /// Bytes to be sent.
    filled: usize,
}

struct Pinned {
    memory: Buffer,
    mark: u64,
    /// Sent, and not waited for.
    sent: bool,
}

impl Staging {
    pub fn pinned(device: &Device, bytes: usize) -> Result<Staging, GpuError> {
        let memory = device.pinned(bytes)?;
        // SAFETY: memory of that size, given just now, which nobody else knows.
        unsafe { std::ptr::write_bytes(memory.host as *mut u8, 0, bytes) };
        let mark = device.0.mark()?;
        Ok(Staging { pinned: Some(Pinned { memory, mark, sent: false }), ..Staging::plain() })
    }

    /// In ordinary memory, taken when it is first filled.
    pub fn plain() -> Staging {
        Staging { pinned: None, plain: Vec::new(), filled: 0 }
    }

    /// Memory for `len` bytes, with anything in it. More than were pinned lie in ordinary memory.
    pub fn fill(&mut self, len: usize) -> Result<&mut [u8], GpuError> {
        self.filled = len;
        match &mut self.pinned {
            Some(pinned) if len <= pinned.memory.len() => {
                pinned.wait()?;
                // SAFETY: written when it was pinned, this value's own, and nothing copies from it any more.
                Ok(unsafe { std::slice::from_raw_parts_mut(pinned.memory.host as *mut u8, len) })
            }
            _ => {
                self.plain.resize(len, 0);
                Ok(&mut self.plain)
            }
        }
    }

    /// Copies what was filled to byte `start` of a buffer, in order with the launches.
    pub fn send(&mut self, to: &Buffer, start: usize) -> Result<(), GpuError> {
        match &mut self.pinned {
            Some(pinned) if self.filled <= pinned.memory.len() => pinned.send(self.filled, to, start),
            _ => to.write(start, &self.plain),
        }
    }
}

impl Pinned {
    fn send(&mut self, len: usize, to: &Buffer, start: usize) -> Result<(), GpuError> {
        let (at, host) = (to.inside("an upload", start, len)?, self.memory.host);
        if to.host != 0 {
            // SAFETY: as in `Staging::fill`; nobody writes there during the call.
            return to.write(start, unsafe { std::slice::from_raw_parts(host as *const u8, len) });
        }
        self.sent = true;
        self.memory.machine.send(at, host, len, self.mark)
    }

    fn wait(&mut self) -> Result<(), GpuError> {
        if self.sent {
            self.memory.machine.passed(self.mark)?;
            self.sent = false;
        }
        Ok(())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The memory goes after this, once nothing that was launched may read it.
        Arc::clone(&self.memory.machine).unmark(self.mark);
    }
}
