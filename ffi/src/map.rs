//! Read-only memory maps of model files.
