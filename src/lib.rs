//! Chimère.
