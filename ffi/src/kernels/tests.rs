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

/// The numbers of an array of a kernel's source.
fn numbers(source: &str, name: &str) -> Vec<u16> {
    let (_, rest) = source.split_once(&format!("{name}[")).unwrap();
    let (_, rest) = rest.split_once('{').unwrap();
    let (list, _) = rest.split_once('}').unwrap();
    let hex = |n: &str| u16::from_str_radix(n.trim().strip_prefix("0x").unwrap(), 16).unwrap();
    list.trim().trim_end_matches(',').split(',').map(hex).collect()
}

#[test]
fn the_codebooks_are_those_of_the_processor() {
    let source = include_str!("../../../kernels/books.cuh");
    assert_eq!(numbers(source, "IQ3S_BOOK"), crate::cpu::grids::IQ3_S);
    assert_eq!(numbers(source, "IQ3XXS_BOOK"), crate::cpu::grids::IQ3_XXS);
}
