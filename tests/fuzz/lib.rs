//! What is fuzzed, instrumented. The core comes as a library. Of the daemon only the modules under test are compiled
//! in, with stand-ins for the little that they take from elsewhere. So the build takes minutes, and needs no libraries
//! for storage, actors and the command line.

#![allow(dead_code, unused_imports, unreachable_pub)]

pub use chimere_core::fuzz::{engram as engram_table, gguf, prompt, stop, template};
pub use chimere_core::{engine, engram, turn};
pub use fuzz::{body, stream, toolcall as calls};

#[path = "../../src/fuzz/mod.rs"]
mod fuzz;

#[path = "../../src/service.rs"]
mod service;

#[path = "../../src/toolcall/mod.rs"]
mod toolcall;

#[path = "../../src/http"]
mod http {
    mod body;
    mod error;
    pub mod fuzz;
    mod limits;
    mod reply;
    mod sse;
    mod wire;

    mod metrics {
        use std::time::Duration;

        use crate::turn::Usage;

        pub fn reply_first_event(_: Duration) {}
        pub fn reply_inter_token(_: Duration) {}
        pub fn reply_ended(_: &'static str, _: Duration, _: Option<&Usage>) {}
    }

    mod routes {
        pub struct Door {
            pub service: std::sync::Arc<dyn crate::service::Service>,
        }
    }
}

mod night {
    pub mod phase {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Job;
    }
}
