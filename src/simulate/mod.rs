//! A made-up week in the life of a daemon: who asks what on which day, what the users say of the answers, and who
//! lies. Also the sums of what the nights brought. Nothing runs here; `chimere simulate` lives them through a real
//! daemon.

pub mod arm;
pub mod compare;
pub mod plan;
pub mod pool;
pub mod table;
pub mod trend;
pub mod user;
