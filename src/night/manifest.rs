//! The manifest of a generation: what it is made of and why it was let in, signed with this installation's key.
//! A generation whose manifest, signature or adapter differs by one bit is not served.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use ed25519_dalek::{Signature, Signer, SigningKey};
use serde::{Deserialize, Serialize};

use super::inspect::hex;
use crate::store::files::{read_bounded, write_durable};

/// Format of manifest, signature and key files.
pub const FORMAT: u32 = 1;
/// The key's file in the state folder.
pub const KEY_FILE: &str = "night.key";
const KEY_HEAD: &str = "chimere-ed25519 1 ";
/// Opens a signature file.
const SIGNATURE_HEAD: [u8; 8] = *b"CHSIG\x01\r\n";
/// Signed before the manifest's bytes: a signature means this and nothing else.
const CONTEXT: &[u8] = b"chimere generation manifest 1\n";
pub const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// The adapter file of a generation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterFile {
    pub bytes: u64,
    pub sha256: String,
    pub rank: u32,
    pub alpha: f32,
    pub targets: usize,
}

/// What the gate measured, as shares and ratios.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    pub golden_items: usize,
    pub golden_champion: f64,
    pub golden_candidate: f64,
    pub golden_low: f64,
    pub slice_items: usize,
    pub slice_difference: f64,
    pub kl: Option<f64>,
    pub update_rms: Option<f64>,
    pub speed: Option<f64>,
    /// Loss of pairs kept out of training, nats a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_before: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_after: Option<f64>,
}

/// Where a generation comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    pub generation: u64,
    /// The generation that served when this one was made.
    pub parent: u64,
    pub base_model: String,
    pub base_hash: String,
    pub adapter: AdapterFile,
    /// SHA-256 of what it was trained on; empty for an adapter made elsewhere.
    pub data_hash: String,
    pub seeds: Vec<u64>,
    pub code_version: String,
    /// The run that made it.
    pub run: String,
    /// Unix milliseconds.
    pub created_ms: i64,
    pub metrics: Metrics,
    /// What the gate said.
    pub verdict: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the key file {0} can be read by others: set its mode to 0600")]
    Exposed(String),
    #[error("the key file {0} is damaged: put it back from a copy, or remove it and begin again at the base model")]
    Key(String),
    #[error("there is no random source for a new key")]
    Random,
    #[error("the signature is not of this installation's key, or the manifest was changed")]
    Signature,
    #[error("the manifest is not readable: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the manifest has format {0}; this version reads {FORMAT}")]
    Format(u32),
}

/// Signs and verifies with the key of this installation.
pub struct Seal {
    key: SigningKey,
}

impl Seal {
    /// Reads the key at `path`, or makes one (0600) where there is none.
    pub fn open(path: &Path) -> Result<Seal, ManifestError> {
        if let Some(seal) = Seal::look(path)? {
            return Ok(seal);
        }
        let mut seed = [0u8; 32];
        getrandom::fill(&mut seed).map_err(|_| ManifestError::Random)?;
        write_durable(path, format!("{KEY_HEAD}{}\n", hex(&seed)).as_bytes())?;
        Ok(Seal { key: SigningKey::from_bytes(&seed) })
    }

    /// The key in the file, if there is one; nothing is written.
    pub fn look(path: &Path) -> Result<Option<Seal>, ManifestError> {
        let name = || path.display().to_string();
        let Some(text) = read_bounded(path, 1_024)? else { return Ok(None) };
        if std::fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
            return Err(ManifestError::Exposed(name()));
        }
        let digits = text.strip_prefix(KEY_HEAD).map(str::trim_end).filter(|d| d.len() == 64 && d.is_ascii());
        let mut seed = [0u8; 32];
        for (byte, pair) in seed.iter_mut().zip(digits.ok_or_else(|| ManifestError::Key(name()))?.as_bytes().chunks(2))
        {
            let pair = std::str::from_utf8(pair).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ManifestError::Key(name()))?;
        }
        Ok(Some(Seal { key: SigningKey::from_bytes(&seed) }))
    }

    /// The bytes of a manifest file and of its signature file. The same manifest gives the same bytes.
    pub fn seal(&self, manifest: &Manifest) -> Result<(Vec<u8>, Vec<u8>), ManifestError> {
        let mut bytes = serde_json::to_vec_pretty(manifest)?;
        bytes.push(b'\n');
        let signature = self.key.sign(&[CONTEXT, &bytes].concat());
        Ok((bytes, [&SIGNATURE_HEAD[..], &signature.to_bytes()].concat()))
    }

    /// The manifest in `bytes`, when the signature is this key's.
    pub fn open_sealed(&self, bytes: &[u8], signature: &[u8]) -> Result<Manifest, ManifestError> {
        let raw = signature.strip_prefix(&SIGNATURE_HEAD).and_then(|s| <[u8; 64]>::try_from(s).ok());
        let signature = Signature::from_bytes(&raw.ok_or(ManifestError::Signature)?);
        let whole = [CONTEXT, bytes].concat();
        self.key.verifying_key().verify_strict(&whole, &signature).map_err(|_| ManifestError::Signature)?;
        let manifest: Manifest = serde_json::from_slice(bytes)?;
        if manifest.format != FORMAT {
            return Err(ManifestError::Format(manifest.format));
        }
        Ok(manifest)
    }
}

impl Seal {
    /// Signs what is no manifest (an Engram table): a signature for one purpose is none for another.
    pub fn sign(&self, purpose: &str, message: &[u8]) -> String {
        hex(&self.key.sign(&framed(purpose, message)).to_bytes())
    }

    /// Whether `signature` is this key's over `message` for `purpose`.
    pub fn verifies(&self, purpose: &str, message: &[u8], signature: &str) -> bool {
        let mut raw = [0u8; 64];
        let digits = signature.trim().as_bytes();
        if digits.len() != 128 || !digits.is_ascii() {
            return false;
        }
        for (byte, pair) in raw.iter_mut().zip(digits.chunks(2)) {
            match std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
                Some(value) => *byte = value,
                None => return false,
            }
        }
        let signature = Signature::from_bytes(&raw);
        self.key.verifying_key().verify_strict(&framed(purpose, message), &signature).is_ok()
    }
}

fn framed(purpose: &str, message: &[u8]) -> Vec<u8> {
    [b"chimere ", purpose.as_bytes(), b" 1\n", message].concat()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn manifest(generation: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            generation,
            parent: generation.saturating_sub(1),
            base_model: "nano".into(),
            base_hash: "base-hash".into(),
            adapter: AdapterFile { bytes: 1, sha256: "00".into(), rank: 2, alpha: 4.0, targets: 1 },
            data_hash: String::new(),
            seeds: vec![7],
            code_version: "0".into(),
            run: "2026-01-01".into(),
            created_ms: 5,
            metrics: Metrics::default(),
            verdict: "promoted".into(),
        }
    }

    #[test]
    fn the_same_manifest_gives_the_same_bytes_and_any_flipped_bit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let seal = Seal::open(&dir.path().join("night.key")).unwrap();
        let (bytes, signature) = seal.seal(&manifest(3)).unwrap();
        assert_eq!(seal.seal(&manifest(3)).unwrap(), (bytes.clone(), signature.clone()));
        assert_eq!(seal.open_sealed(&bytes, &signature).unwrap(), manifest(3));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.open_sealed(&flipped, &signature).is_err(), "bit {bit} of the manifest");
        }
        for bit in 0..signature.len() * 8 {
            let mut flipped = signature.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(seal.open_sealed(&bytes, &flipped).is_err(), "bit {bit} of the signature");
        }
        assert!(seal.open_sealed(&bytes, &signature[..20]).is_err());
    }

    #[test]
    fn a_signature_is_for_one_purpose_one_message_and_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let seal = Seal::open(&dir.path().join("a.key")).unwrap();
        let signature = seal.sign("engram", b"digest");
        assert!(seal.verifies("engram", b"digest", &signature));
        assert!(!seal.verifies("other", b"digest", &signature));
        assert!(!seal.verifies("engram", b"digesu", &signature));
        assert!(!Seal::open(&dir.path().join("b.key")).unwrap().verifies("engram", b"digest", &signature));
        for bad in ["", "00", &"0".repeat(128), &"z".repeat(128), &signature[..126]] {
            assert!(!seal.verifies("engram", b"digest", bad), "{bad}");
        }
    }

    #[test]
    fn the_key_is_private_stays_and_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("night.key");
        let (bytes, signature) = Seal::open(&path).unwrap().seal(&manifest(1)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Seal::open(&path).unwrap().open_sealed(&bytes, &signature).is_ok());
        let other = Seal::open(&dir.path().join("other.key")).unwrap();
        assert!(matches!(other.open_sealed(&bytes, &signature), Err(ManifestError::Signature)));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Seal::open(&path), Err(ManifestError::Exposed(_))));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "chimere-ed25519 1 zz\n").unwrap();
        assert!(matches!(Seal::open(&path), Err(ManifestError::Key(_))));
    }
}
