//! Scoring. An answer is split into steps, and a process reward model judges each step, after a short verification
//! thought if it writes one. The weakest step gives the answer's probability and its verdict 1–5. Plain functions of
//! texts and numbers: who runs the judge's engine is somebody else's business.

pub mod correction;
pub mod form;
pub mod judge;
pub mod measure;
pub mod prompt;
pub mod reading;
pub mod reflect;
pub mod steps;

pub use form::{Form, Labels};
pub use judge::{JudgeError, Judging};
pub use reading::Reading;
pub use steps::Steps;
