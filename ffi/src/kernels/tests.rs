//! The checks of the kernels, on the emulated device.

use std::path::Path;

use super::check;
use crate::gpu::{Device, build_emulated};

#[test]
fn kernels_agree_with_plain_arithmetic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let library = build_emulated(&root.join("kernels"), &root.join("target")).unwrap();
    let device = Device::emulated(&library, None).unwrap();
    let findings = check::all(&device).unwrap();
    assert!(findings.len() > 100);
    let bad: Vec<_> = findings.iter().filter(|f| !f.good()).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}
