//! The metrics of the daemon: name, unit, description and the function that counts, one place for all. The HTTP
//! server's own (requests, connections, tokens) are in `http::metrics`. Prometheus style: unit last, `_total` on
//! counters.

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use crate::engine::backend::Offloaded;
use crate::engine::grammar::FormStats;
use crate::engine::protocol::EngineStats;
use crate::turn::{HiddenUsage, Timings, Usage};

const TOKENS_CACHED: &str = "chimere_prompt_tokens_cached_total";
const QUEUED_SECONDS: &str = "chimere_queued_seconds";
const ENGINE_STARTS: &str = "chimere_engine_starts_total";
const ENGINE_ENDS: &str = "chimere_engine_ends_total";
const ENGINE_READY: &str = "chimere_engine_ready";
const ENGINE_RUNNING: &str = "chimere_engine_requests_running";
const ENGINE_WAITING: &str = "chimere_engine_requests_waiting";
const ENGINE_SUSPENDED: &str = "chimere_engine_suspended_total";
const ENGINE_RESUMED: &str = "chimere_engine_resumed_total";
const ENGINE_RESIDENT: &str = "chimere_engine_resident_bytes";
const SNAPSHOTS: &str = "chimere_engine_snapshots";
const SNAPSHOT_BYTES: &str = "chimere_engine_snapshot_bytes";
const PREFIX_HITS: &str = "chimere_prefix_hits_total";
const MODELS_LOADED: &str = "chimere_models_loaded";
const MODEL_LOADS: &str = "chimere_model_loads_total";
const MODEL_UNLOADS: &str = "chimere_model_unloads_total";
const EXPERTS_USED: &str = "chimere_experts_used_total";
const FORMS: &str = "chimere_forms_total";
const ACTOR_RESTARTS: &str = "chimere_actor_restarts_total";
const TURNS_APPENDED: &str = "chimere_turns_appended_total";
const TURNS_LOST: &str = "chimere_turns_lost_total";
const TURNS_DROPPED: &str = "chimere_turns_dropped_total";
const TURNS_SCORED: &str = "chimere_turns_scored_total";
const TURNS_UNSCORED: &str = "chimere_turns_unscored_total";
const QUALITY_GATE: &str = "chimere_quality_gate_total";
const SCORER_QUEUE: &str = "chimere_scorer_queue";
const ROUTES: &str = "chimere_routes_total";
const ROUTE_FALLBACKS: &str = "chimere_route_fallbacks_total";
const RETRIEVALS: &str = "chimere_retrievals_total";
const STEPS: &str = "chimere_steps_total";
const TOOL_CALLS: &str = "chimere_tool_calls_total";
const HIDDEN_TOKENS: &str = "chimere_hidden_tokens_total";
const DOCUMENTS: &str = "chimere_documents";
const DOCUMENT_PASSAGES: &str = "chimere_document_passages";
const DOCUMENT_SEARCH: &str = "chimere_document_search_seconds";
const RELOADS: &str = "chimere_reloads_total";

/// Says what each metric means; after the recorder is installed.
pub fn describe() {
    describe_counter!(TOKENS_CACHED, Unit::Count, "Prompt tokens that a kept prefix held.");
    describe_counter!(PREFIX_HITS, Unit::Count, "Replies whose prompt began with a kept prefix.");
    describe_histogram!(QUEUED_SECONDS, Unit::Seconds, "Waiting in the engine before the prompt is read.");
    describe_counter!(ENGINE_STARTS, Unit::Count, "Engine processes started.");
    describe_counter!(ENGINE_ENDS, Unit::Count, "Engine processes that ended, by why.");
    describe_gauge!(ENGINE_READY, Unit::Count, "1 while the engine can produce a token.");
    describe_gauge!(ENGINE_RUNNING, Unit::Count, "Requests decoding in the engine.");
    describe_gauge!(ENGINE_WAITING, Unit::Count, "Requests queued in the engine.");
    describe_counter!(ENGINE_SUSPENDED, Unit::Count, "Replies that gave their sequence to another key's request.");
    describe_counter!(ENGINE_RESUMED, Unit::Count, "Replies that got a sequence again.");
    describe_gauge!(ENGINE_RESIDENT, Unit::Bytes, "Resident memory of the engine.");
    describe_gauge!(SNAPSHOTS, Unit::Count, "Prompt prefixes that the engine keeps.");
    describe_gauge!(SNAPSHOT_BYTES, Unit::Bytes, "Memory of the prompt prefixes that the engine keeps.");
    describe_gauge!(MODELS_LOADED, Unit::Count, "Further models that are loaded.");
    describe_counter!(MODEL_LOADS, Unit::Count, "Loads of further models, by what came of them.");
    describe_counter!(MODEL_UNLOADS, Unit::Count, "Further models unloaded, by why.");
    describe_counter!(
        EXPERTS_USED,
        Unit::Count,
        "Uses of experts where some lie on the host, by where: `card`, `brought` to it, `host`."
    );
    describe_counter!(FORMS, Unit::Count, "Requests with a form, by what became of it and whether it was known.");
    describe_counter!(ACTOR_RESTARTS, Unit::Count, "Actor lives that ended, by actor.");
    describe_counter!(TURNS_APPENDED, Unit::Count, "Turns flushed to the turn log.");
    describe_counter!(TURNS_LOST, Unit::Count, "Turns that could not be written.");
    describe_counter!(TURNS_DROPPED, Unit::Count, "Oldest turns dropped because the log was over its limit.");
    describe_counter!(TURNS_SCORED, Unit::Count, "Verdicts written, by verdict.");
    describe_counter!(TURNS_UNSCORED, Unit::Count, "Turns left without a verdict for now, by why.");
    describe_counter!(
        QUALITY_GATE,
        Unit::Count,
        "Answers that were judged before their reply ended, by what came of it."
    );
    describe_gauge!(SCORER_QUEUE, Unit::Count, "Turns that wait for a verdict.");
    describe_counter!(ROUTES, Unit::Count, "Chats by route.");
    describe_counter!(ROUTE_FALLBACKS, Unit::Count, "Plans made by the default route because the Orchestrator failed.");
    describe_counter!(RETRIEVALS, Unit::Count, "Searches for examples of a reply, by what came of them.");
    describe_counter!(TOOL_CALLS, Unit::Count, "Calls of built-in tools, by tool and by what came of them.");
    describe_counter!(STEPS, Unit::Count, "Steps of replies, by kind and by what came of them.");
    describe_counter!(HIDDEN_TOKENS, Unit::Count, "Tokens of steps that no client sees, by direction.");
    describe_gauge!(DOCUMENTS, Unit::Count, "Documents in use.");
    describe_gauge!(DOCUMENT_PASSAGES, Unit::Count, "Passages of all documents.");
    describe_histogram!(DOCUMENT_SEARCH, Unit::Seconds, "Searching documents, the question's vector included.");
    describe_counter!(RELOADS, Unit::Count, "Reloads of a file, by what and whether it was accepted.");
}

pub fn actor_restarted(actor: &'static str) {
    counter!(ACTOR_RESTARTS, "actor" => actor).increment(1);
}

pub fn reply_finished(usage: &Usage, timings: &Timings) {
    counter!(TOKENS_CACHED).increment(usage.cached_tokens.into());
    counter!(PREFIX_HITS).increment((usage.cached_tokens > 0).into());
    histogram!(QUEUED_SECONDS).record(timings.queued_ms / 1e3);
}

pub fn documents(documents: usize, passages: usize) {
    gauge!(DOCUMENTS).set(documents as f64);
    gauge!(DOCUMENT_PASSAGES).set(passages as f64);
}

pub fn documents_searched(took: std::time::Duration) {
    histogram!(DOCUMENT_SEARCH).record(took.as_secs_f64());
}

pub fn route_taken(route: &str) {
    counter!(ROUTES, "route" => route.to_owned()).increment(1);
}

pub fn engine_started() {
    counter!(ENGINE_STARTS).increment(1);
}

pub fn engine_ended(why: &'static str) {
    counter!(ENGINE_ENDS, "why" => why).increment(1);
}

pub fn engine_ready(ready: bool) {
    gauge!(ENGINE_READY).set(if ready { 1.0 } else { 0.0 });
}

pub fn engine_load(stats: &EngineStats) {
    gauge!(ENGINE_RUNNING).set(stats.running);
    gauge!(ENGINE_WAITING).set(stats.waiting);
    gauge!(ENGINE_RESIDENT).set(stats.resident_bytes as f64);
    gauge!(SNAPSHOTS).set(stats.snapshots);
    gauge!(SNAPSHOT_BYTES).set(stats.snapshot_bytes as f64);
}

/// `outcome`: `ready`, `failed`, or `late` where nobody waited for the end.
pub fn model_load(outcome: &'static str) {
    counter!(MODEL_LOADS, "outcome" => outcome).increment(1);
}

/// `why`: `idle`, `room` (another needed its place), `asked` or `failed`.
pub fn model_unloaded(why: &'static str) {
    counter!(MODEL_UNLOADS, "why" => why).increment(1);
}

pub fn models_loaded(models: usize) {
    gauge!(MODELS_LOADED).set(models as f64);
}

/// What an engine has told of its experts on the host, now and the last time.
pub fn experts(now: &Offloaded, before: &Offloaded) {
    let of = |o: &Offloaded| [("card", o.hits), ("brought", o.misses), ("host", o.direct)];
    for ((place, now), (_, before)) in of(now).into_iter().zip(of(before)) {
        counter!(EXPERTS_USED, "place" => place).increment(now.saturating_sub(before));
    }
}

/// What an engine has told of sequences that changed hands, now and the last time.
pub fn shares(now: &EngineStats, before: &EngineStats) {
    counter!(ENGINE_SUSPENDED).increment(now.suspended.saturating_sub(before.suspended));
    counter!(ENGINE_RESUMED).increment(now.resumed.saturating_sub(before.resumed));
}

/// What an engine has told of its forms, now and the last time.
pub fn forms(now: &FormStats, before: &FormStats) {
    for (outcome, cache, now, before) in [
        ("taken", "miss", now.compiled, before.compiled),
        ("taken", "hit", now.compiled_kept, before.compiled_kept),
        ("refused", "miss", now.refused, before.refused),
        ("refused", "hit", now.refused_kept, before.refused_kept),
        ("failed", "miss", now.failed, before.failed),
    ] {
        counter!(FORMS, "outcome" => outcome, "cache" => cache).increment(now.saturating_sub(before));
    }
}

/// A form that no engine has seen: the schema was refused before.
pub fn form_refused() {
    counter!(FORMS, "outcome" => "refused", "cache" => "miss").increment(1);
}

pub fn turn_appended() {
    counter!(TURNS_APPENDED).increment(1);
}

pub fn turn_scored(verdict: u8) {
    counter!(TURNS_SCORED, "verdict" => verdict.to_string()).increment(1);
}

/// `why`: `overflow` (the queue was full) or `failed` (the judge gave no score).
pub fn turn_unscored(why: &'static str) {
    counter!(TURNS_UNSCORED, "why" => why).increment(1);
}

/// `outcome`: `passed`, `revised`, `kept` or `unjudged`.
pub fn quality_gate(outcome: &'static str) {
    counter!(QUALITY_GATE, "outcome" => outcome).increment(1);
}

pub fn scorer_queue(turns: usize) {
    gauge!(SCORER_QUEUE).set(turns as f64);
}

pub fn turn_lost() {
    counter!(TURNS_LOST).increment(1);
}

pub fn turns_dropped(count: u64) {
    counter!(TURNS_DROPPED).increment(count);
}

pub fn route_fallback() {
    counter!(ROUTE_FALLBACKS).increment(1);
}

/// `outcome`: `shown`, `none` (nothing is like it), `late`, `down` or `failed` (no vector: the reply went on without).
pub fn retrieval(outcome: &'static str) {
    counter!(RETRIEVALS, "outcome" => outcome).increment(1);
}

pub fn step(kind: &str, outcome: &'static str) {
    counter!(STEPS, "kind" => kind.to_owned(), "outcome" => outcome).increment(1);
}

pub fn tool_call(tool: &str, outcome: &'static str) {
    counter!(TOOL_CALLS, "tool" => tool.to_owned(), "outcome" => outcome).increment(1);
}

pub fn hidden_tokens(usage: HiddenUsage) {
    counter!(HIDDEN_TOKENS, "direction" => "prompt").increment(usage.prompt_tokens.into());
    counter!(HIDDEN_TOKENS, "direction" => "completion").increment(usage.completion_tokens.into());
}

pub fn reloaded(what: &'static str, accepted: bool) {
    counter!(RELOADS, "what" => what, "accepted" => if accepted { "yes" } else { "no" }).increment(1);
}
