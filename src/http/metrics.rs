//! The metrics page in Prometheus format, its recorder, and the HTTP server's own metrics with their help and units.
//! Those of the other parts are in `meters`.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Content type of the exposition format that the page is in.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How often the recorder folds samples into its histograms, so that nobody scraping costs no memory.
pub(crate) const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Upper bounds of the duration histograms, seconds: from a health check to a long generation.
const SECONDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error("metrics recorder: {0}")]
    Build(#[from] metrics_exporter_prometheus::BuildError),
}

/// Installs the process's recorder (once; later calls return the same handle). Call it before the first
/// metric is counted, so that none is lost.
pub fn install_recorder() -> Result<PrometheusHandle, MetricsError> {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    static INSTALL: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one_at_a_time = INSTALL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(handle) = HANDLE.get() {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .install_recorder()?;
    describe();
    gauge!("chimere_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(HANDLE.get_or_init(|| handle).clone())
}

fn describe() {
    describe_gauge!("chimere_build_info", Unit::Count, "Constant 1, labelled with the version of the daemon.");
    describe_counter!("chimere_http_requests_total", Unit::Count, "Requests answered, by route, method and status.");
    describe_histogram!(
        "chimere_http_request_duration_seconds",
        Unit::Seconds,
        "From the end of a request's headers to the start of its response."
    );
    describe_gauge!("chimere_http_connections", Unit::Count, "Connections open now.");
    describe_counter!(
        "chimere_http_connections_closed_total",
        Unit::Count,
        "Connections refused or closed by the daemon, by reason."
    );
    describe_histogram!("chimere_reply_first_event_seconds", Unit::Seconds, "From a reply request to its first token.");
    describe_histogram!(
        "chimere_reply_inter_token_seconds",
        Unit::Seconds,
        "From one piece of a choice's text to the next, as they leave: most pieces are a token."
    );
    describe_histogram!("chimere_reply_duration_seconds", Unit::Seconds, "From a reply request to its last token.");
    describe_counter!("chimere_reply_tokens_total", Unit::Count, "Tokens of finished replies, by kind.");
    describe_counter!("chimere_replies_total", Unit::Count, "Replies that ended, by outcome.");
}

pub(crate) fn request(route: &'static str, method: &str, status: u16, took: Duration) {
    let method = method.to_owned();
    counter!("chimere_http_requests_total", "route" => route, "method" => method, "status" => status.to_string())
        .increment(1);
    histogram!("chimere_http_request_duration_seconds", "route" => route).record(took.as_secs_f64());
}

pub(crate) fn connections(open: usize) {
    gauge!("chimere_http_connections").set(open as f64);
}

pub(crate) fn connection_closed(reason: &'static str) {
    counter!("chimere_http_connections_closed_total", "reason" => reason).increment(1);
}

pub(crate) fn reply_first_event(took: Duration) {
    histogram!("chimere_reply_first_event_seconds").record(took.as_secs_f64());
}

pub(crate) fn reply_inter_token(took: Duration) {
    histogram!("chimere_reply_inter_token_seconds").record(took.as_secs_f64());
}

pub(crate) fn reply_ended(outcome: &'static str, took: Duration, usage: Option<&crate::turn::Usage>) {
    counter!("chimere_replies_total", "outcome" => outcome).increment(1);
    histogram!("chimere_reply_duration_seconds").record(took.as_secs_f64());
    let Some(usage) = usage else { return };
    for (kind, tokens) in [
        ("prompt", usage.prompt_tokens),
        ("cached", usage.cached_tokens),
        ("completion", usage.completion_tokens),
        ("thinking", usage.thinking_tokens),
    ] {
        counter!("chimere_reply_tokens_total", "kind" => kind).increment(u64::from(tokens));
    }
}
