//! Hidden states of the trunk before its final norm. The library only hands out those after it, so
//! the output of the last layer is read while the graph runs, by the scheduler's callback.

use std::ffi::{CStr, c_void};

use llama_cpp_sys_2 as sys;

/// Collects the last layer's output, a row a token in the order of the batch (which must hold tokens
/// of one sequence, or the library orders them anew).
#[derive(Debug)]
pub(super) struct Capture {
    /// Name of the tensor, `l_out-LAYER`.
    name: String,
    width: usize,
    rows: Vec<f32>,
}

impl Capture {
    pub(super) fn new(layers: usize, width: usize) -> Capture {
        Capture { name: format!("l_out-{}", layers.saturating_sub(1)), width, rows: Vec::new() }
    }

    /// Forgets the rows of the last batch.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// The state of token `i` of the last batch.
    pub(super) fn row(&self, i: usize) -> Option<&[f32]> {
        self.rows.get(i * self.width..(i + 1) * self.width)
    }
}

/// Called by the scheduler for each tensor: with `ask` whether its values are wanted, then with the
/// values computed. Returns true to go on. It does not panic.
pub(super) unsafe extern "C" fn callback(tensor: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: `data` is the boxed `Capture` of the context that computes, which outlives it and is
    // not touched by others while it computes; the tensor is valid during the call and its name is
    // zero-terminated inside its array.
    let (capture, tensor) = unsafe { (&mut *data.cast::<Capture>(), &*tensor) };
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(tensor.name.as_ptr()) };
    let ours = name.to_bytes() == capture.name.as_bytes();
    if ask || !ours {
        return !ask || ours;
    }
    let fits = tensor.type_ == sys::GGML_TYPE_F32 && usize::try_from(tensor.ne[0]) == Ok(capture.width);
    if let (true, Ok(rows)) = (fits, usize::try_from(tensor.ne[1])) {
        let start = capture.rows.len();
        capture.rows.resize(start + rows * capture.width, 0.0);
        let out = &mut capture.rows[start..];
        // SAFETY: the tensor is contiguous f32 of width × rows values (a sum of two such tensors),
        // computed before this call; `out` holds as many.
        unsafe {
            sys::ggml_backend_tensor_get(tensor, out.as_mut_ptr().cast(), 0, size_of_val(out));
        }
    }
    true
}
