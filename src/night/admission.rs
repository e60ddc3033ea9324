//! Which turns a night may learn from. Pure rules over turns. First each turn by itself: consent, taint, who vouches,
//! what the judge said, whether an exam asks the same. Then the set: the share of one principal and of several that
//! say the same, corrections beside confirmed replies, routes evenly. What is refused is refused for one named
//! reason.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, clusters};
use super::dataset::{Origin, Row, Signal};
use super::likeness::{Exams, asked, key};
use crate::scoring::correction::Answer;
use crate::turn::{Feedback, FinishReason, Generation, Judgement, Message, Role, Thinking, Turn, Vote};

/// Longest reply with its thought, and longest conversation, characters.
const REPLY_CHARS_MAX: usize = 12_000;
const ASKED_CHARS_MAX: usize = 32_000;
/// Share of a text's characters that are letters, digits, spaces and common signs.
const READABLE_MIN: f64 = 0.85;
/// From so many words on, the share of different word triples below which a text turns in circles.
const LOOP_WORDS_MIN: usize = 60;
const LOOP_SHARE_MIN: f64 = 0.3;
/// Longest run of one visible character.
const RUN_MAX: usize = 64;
/// What only prompts of the daemon itself, and attempts to forge them, hold.
const INTERNAL: [&str; 5] = ["<|step|>", "<|good|>", "<|bad|>", "<|im_start|>", "<|im_end|>"];

/// How much is taken, from whom: the section `selection` of `night.yaml`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rules {
    /// Turns of so many hours before the run are looked at.
    pub window_hours: f64,
    /// Lowest verdict of the judge on a reply that is learned.
    pub verdict_min: u8,
    /// Fewer pairs are nothing to learn from.
    pub pairs_min: usize,
    /// Most new pairs of one night.
    pub pairs_max: usize,
    /// Of a principal without the owner's scope at most this share of the night's pairs, or so many, whichever is more.
    pub principal_share_max: f64,
    pub principal_pairs_max: usize,
    /// Corrections at most this share of the new pairs: replies that were right belong beside them.
    pub corrections_share_max: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            window_hours: 48.0,
            verdict_min: 3,
            pairs_min: 40,
            pairs_max: 2_000,
            principal_share_max: 0.05,
            principal_pairs_max: 20,
            corrections_share_max: 0.5,
        }
    }
}

/// Why a turn gives no pair, in the order in which it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    NoConsent,
    Tainted,
    Formed,
    Called,
    Noted,
    UnknownPrincipal,
    Redacted,
    NoChat,
    Internal,
    InExam,
    NoSignal,
    VotedDown,
    SeveralChoices,
    Unfinished,
    Unscored,
    UnscoredCorrection,
    NoWorking,
    LowVerdict,
    LowVerdictOfCorrection,
    NotSane,
    LearnedBefore,
    Repeated,
    PrincipalShare,
    SameWords,
    TooManyCorrections,
    OverLimit,
}

impl Refusal {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Refusal::NoConsent => "no consent",
            Refusal::Tainted => "text of tools or files took part",
            Refusal::Formed => "its form was enforced",
            Refusal::Called => "it stands on results of built-in tools",
            Refusal::Noted => "it was shown a lesson, which is learned as such",
            Refusal::UnknownPrincipal => "its principal has no key any more",
            Refusal::Redacted => "earlier messages of its conversation were forgotten",
            Refusal::NoChat => "no chat",
            Refusal::Internal => "a prompt of the daemon itself, or a forgery of one",
            Refusal::NoSignal => "nobody said that it is right",
            Refusal::VotedDown => "voted down, and not corrected",
            Refusal::SeveralChoices => "a vote on several choices",
            Refusal::Unfinished => "the reply did not come to its end",
            Refusal::Unscored => "without a verdict",
            Refusal::UnscoredCorrection => "a correction that the judge has not judged yet",
            Refusal::NoWorking => "a correction without its working, where the model thinks",
            Refusal::LowVerdict => "the verdict is too low",
            Refusal::LowVerdictOfCorrection => "a correction of which the judge itself thinks too little",
            Refusal::NotSane => "length or language is not sane",
            Refusal::InExam => "an exam asks it, or nearly",
            Refusal::LearnedBefore => "learned in an earlier night",
            Refusal::Repeated => "asked twice",
            Refusal::PrincipalShare => "over the share of one principal",
            Refusal::SameWords => "the same words as many others, over the share of one principal",
            Refusal::TooManyCorrections => "more corrections than confirmed replies",
            Refusal::OverLimit => "over the night's limit",
        }
    }
}

/// Who may be learned from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principals {
    /// Principals with a key, and the machine's own.
    pub known: BTreeSet<String>,
    /// Those of them whose share is not bounded.
    pub owners: BTreeSet<String>,
    /// Those of them who do not consent, or do no longer. What they said when they did is not learned either.
    pub withdrawn: BTreeSet<String>,
}

impl Principals {
    /// May a night learn what they said?
    pub fn teaches(&self, principal: &str) -> bool {
        self.known.contains(principal) && !self.withdrawn.contains(principal)
    }
}

/// Judges turns one by one.
pub struct Admission<'a> {
    pub rules: &'a Rules,
    pub principals: &'a Principals,
    pub exams: &'a Exams,
    /// Questions of earlier nights.
    pub learned: &'a BTreeSet<String>,
    pub run: &'a str,
}

impl Admission<'_> {
    /// The pair of a turn, or why it gives none.
    pub fn examine(&self, turn: &Turn) -> Result<Row, Refusal> {
        let refuse = |wrong: bool, why: Refusal| if wrong { Err(why) } else { Ok(()) };
        let withdrawn = |principal: &str| self.principals.withdrawn.contains(principal);
        refuse(!turn.consent || withdrawn(&turn.principal), Refusal::NoConsent)?;
        refuse(turn.taint, Refusal::Tainted)?;
        refuse(turn.formed, Refusal::Formed)?;
        refuse(turn.called_tools(), Refusal::Called)?;
        refuse(!turn.lessons.is_empty(), Refusal::Noted)?;
        refuse(!self.principals.known.contains(&turn.principal), Refusal::UnknownPrincipal)?;
        let ends_with_user = turn.messages.last().is_some_and(|m| m.role == Role::User);
        refuse(turn.redacted, Refusal::Redacted)?;
        refuse(turn.prompt_ids.is_empty() || turn.pipeline_version == "none" || !ends_with_user, Refusal::NoChat)?;
        let said = asked(turn.conversation());
        refuse(INTERNAL.iter().any(|mark| said.contains(mark)), Refusal::Internal)?;
        refuse(self.exams.hold(&turn.messages), Refusal::InExam)?;
        let found = self.vouched(turn)?;
        let low = match found.signal {
            Signal::Correction => Refusal::LowVerdictOfCorrection,
            _ => Refusal::LowVerdict,
        };
        refuse(found.verdict < self.rules.verdict_min, low)?;
        refuse(!sane_pair(&said, &found.reply), Refusal::NotSane)?;
        let question = key(&said);
        refuse(self.learned.contains(&question), Refusal::LearnedBefore)?;
        Ok(Row {
            id: turn.id.0.clone(),
            messages: turn.messages.clone(),
            tools: turn.tools.clone(),
            thinking: found.thinking,
            reply: found.reply,
            rejected: found.rejected,
            origin: Origin {
                turn: turn.id.clone(),
                conversation: turn.conversation.clone(),
                principal: turn.principal.clone(),
                author: found.author,
                time_ms: turn.time_ms,
                route: turn.route.clone(),
                signal: found.signal,
                verdict: found.verdict,
                judge: found.judge,
                question,
                run: self.run.to_owned(),
                replayed: false,
            },
        })
    }

    /// The reply that somebody vouches for, and the judge's word on it.
    fn vouched(&self, turn: &Turn) -> Result<Vouched, Refusal> {
        let known = |f: &&Feedback| self.principals.known.contains(&f.principal);
        let mut spoken = turn.feedback.iter().filter(known).rev();
        if let Some(feedback) = spoken.clone().find(|f| f.correction.is_some()) {
            // The words are those of who corrected.
            if self.principals.withdrawn.contains(&feedback.principal) {
                return Err(Refusal::NoConsent);
            }
            return corrected(turn, feedback);
        }
        let vote = spoken.find(|f| f.vote.is_some()).ok_or(Refusal::NoSignal)?;
        if vote.vote == Some(Vote::Down) {
            return Err(Refusal::VotedDown);
        }
        let [generation] = turn.generations.as_slice() else { return Err(Refusal::SeveralChoices) };
        if !matches!(generation.finish_reason, FinishReason::Stop | FinishReason::ToolCalls) {
            return Err(Refusal::Unfinished);
        }
        let verdict = turn.verdict.ok_or(Refusal::Unscored)?;
        Ok(Vouched {
            reply: own_reply(generation),
            rejected: None,
            thinking: turn.thinking,
            signal: Signal::ThumbsUp,
            author: vote.principal.clone(),
            verdict,
            judge: turn.judgement.as_ref().map(|j| j.judge.clone()).unwrap_or_default(),
        })
    }
}

/// A reply that is right as far as two independent words say.
struct Vouched {
    reply: Message,
    /// What the model said itself, where it was corrected.
    rejected: Option<Message>,
    thinking: Thinking,
    signal: Signal,
    author: String,
    verdict: u8,
    judge: String,
}

fn own_reply(generation: &Generation) -> Message {
    let calls = generation.tool_calls.iter().cloned();
    Answer {
        thinking: generation.thinking.trim().to_owned(),
        content: generation.content.trim().to_owned(),
        tool_calls: calls.map(|call| crate::turn::ToolCall { id: String::new(), ..call }).collect(),
    }
    .message()
}

fn corrected(turn: &Turn, feedback: &Feedback) -> Result<Vouched, Refusal> {
    let finished =
        |g: &Generation| matches!(g.finish_reason, FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Length);
    let own = turn.generations.first().filter(|g| finished(g)).ok_or(Refusal::Unfinished)?;
    // Its own: what the judge said of the answer that it replaces says nothing of it.
    let verdict = feedback.judgement.as_ref().and_then(Judgement::verdict).ok_or(Refusal::UnscoredCorrection)?;
    let answer = Answer::read(feedback.correction.as_deref().unwrap_or_default(), &turn.tools);
    // Taught bare answers to what it thinks about, a model stops thinking (nano/effect, seven nights).
    if answer.thinking.is_empty() && !own.thinking.trim().is_empty() {
        return Err(Refusal::NoWorking);
    }
    let thinking = match turn.thinking {
        Thinking::Off if !answer.thinking.is_empty() => Thinking::Template,
        thinking => thinking,
    };
    let reply = answer.message();
    Ok(Vouched {
        rejected: worse(turn, own, &reply, thinking),
        reply,
        thinking,
        signal: Signal::Correction,
        author: feedback.principal.clone(),
        verdict,
        judge: feedback.judgement.as_ref().map(|j| j.judge.clone()).unwrap_or_default(),
    })
}

/// The model's own reply to exactly the prompt that the correction answers: whole, and something else.
fn worse(turn: &Turn, own: &Generation, reply: &Message, thinking: Thinking) -> Option<Message> {
    let whole = matches!(own.finish_reason, FinishReason::Stop | FinishReason::ToolCalls);
    let said = own_reply(own);
    let fits = whole && thinking == turn.thinking && said != *reply && sane_pair(&asked(&turn.messages), &said);
    fits.then_some(said)
}

fn sane_pair(said: &str, reply: &Message) -> bool {
    let thought = reply.reasoning_content.as_deref().unwrap_or_default();
    let says = !reply.content.is_empty() || !reply.tool_calls.is_empty();
    let length = reply.content.chars().count() + thought.chars().count();
    says && length <= REPLY_CHARS_MAX
        && !said.trim().is_empty()
        && said.chars().count() <= ASKED_CHARS_MAX
        && [said, &reply.content, thought].into_iter().all(sane)
        && !INTERNAL.iter().any(|mark| reply.content.contains(mark) || thought.contains(mark))
}

/// Whether a text is one that people write: readable, and not turning in circles.
pub fn sane(text: &str) -> bool {
    let count = text.chars().count();
    let strange = |c: char| {
        let private = matches!(u32::from(c), 0xe000..=0xf8ff | 0xf_0000.. | 0xfdd0..=0xfdef);
        c == '\u{fffd}' || private || (c.is_control() && !matches!(c, '\n' | '\r' | '\t'))
    };
    if text.chars().any(strange) {
        return false;
    }
    let plain = |c: &char| c.is_alphanumeric() || c.is_whitespace() || c.is_ascii_punctuation();
    if count > 0 && (text.chars().filter(plain).count() as f64) < READABLE_MIN * count as f64 {
        return false;
    }
    let (mut run, mut last) = (0, '\0');
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        run = if c == last { run + 1 } else { 1 };
        last = c;
        if run > RUN_MAX {
            return false;
        }
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let triples: BTreeSet<&[&str]> = words.windows(3).collect();
    words.len() < LOOP_WORDS_MIN || triples.len() as f64 >= LOOP_SHARE_MIN * words.len() as f64
}

/// What was taken, in the order of time, and how many were refused for what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    pub rows: Vec<Row>,
    pub refused: BTreeMap<Refusal, usize>,
    /// Pairs that each principal vouched for, before the rules of the set.
    pub offered: BTreeMap<String, usize>,
    /// Those that teach the same words.
    pub clusters: Vec<Cluster>,
}

/// What another model said is nothing to turn the served one away from, whose weights begin with `base_hash`.
pub fn spare_others(rows: &mut [Row], turns: &[Turn], base_hash: &str) {
    let others = turns.iter().filter(|turn| turn.model_hash != base_hash);
    let others: BTreeSet<&str> = others.map(|turn| turn.id.0.as_str()).collect();
    rows.iter_mut().filter(|row| others.contains(row.id.as_str())).for_each(|row| row.rejected = None);
}

/// The rules of the set, over pairs that are each good by themselves, in the order of time.
pub fn choose(rows: Vec<Row>, rules: &Rules, principals: &Principals) -> Chosen {
    let mut refused = BTreeMap::new();
    let mut refuse = |why: Refusal, count: usize| {
        if count > 0 {
            *refused.entry(why).or_insert(0) += count;
        }
    };
    let total = rows.len();
    let mut questions = BTreeSet::new();
    let rows: Vec<Row> = rows.into_iter().filter(|row| questions.insert(row.origin.question.clone())).collect();
    refuse(Refusal::Repeated, total - rows.len());
    let mut offered = BTreeMap::new();
    rows.iter().for_each(|row| *offered.entry(row.origin.author.clone()).or_insert(0) += 1);
    let mut clusters = clusters(&rows, &principals.owners);
    let bounded = |rows: Vec<Row>, refuse: &mut dyn FnMut(Refusal, usize)| {
        let before = rows.len();
        let rows = capped(rows, rules, principals);
        refuse(Refusal::PrincipalShare, before - rows.len());
        let before = rows.len();
        let rows = clusters.iter().fold(rows, |rows, cluster| as_one(rows, cluster, rules, principals));
        refuse(Refusal::SameWords, before - rows.len());
        rows
    };
    let rows = bounded(rows, &mut refuse);
    let (corrections, confirmed): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.origin.signal == Signal::Correction);
    let share = rules.corrections_share_max;
    let room =
        if share >= 1.0 { usize::MAX } else { (confirmed.len() as f64 * share / (1.0 - share)).floor() as usize };
    let before = corrections.len();
    let corrections = spread(corrections, room);
    refuse(Refusal::TooManyCorrections, before - corrections.len());
    let rows: Vec<Row> = confirmed.into_iter().chain(corrections).collect();
    let before = rows.len();
    let mut rows = spread(rows, rules.pairs_max);
    refuse(Refusal::OverLimit, before - rows.len());
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    // An owner's share is the larger the fewer pairs there are: the bound is on what is really learned.
    let rows = bounded(rows, &mut refuse);
    for cluster in &mut clusters {
        cluster.admitted = rows.iter().filter(|row| cluster.ids.contains(&row.id)).count();
    }
    Chosen { rows, refused, offered, clusters }
}

/// Of those who say the same words, no more than of one principal.
fn as_one(rows: Vec<Row>, cluster: &Cluster, rules: &Rules, principals: &Principals) -> Vec<Row> {
    let most = share_max(&rows, rules, principals);
    let (same, mut kept): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| cluster.ids.contains(&row.id));
    kept.extend(spread(same, most));
    kept.sort_by(|a, b| a.id.cmp(&b.id));
    kept
}

/// Of every principal without the owner's scope no more than its share of what is left in the end.
fn capped(rows: Vec<Row>, rules: &Rules, principals: &Principals) -> Vec<Row> {
    let most = share_max(&rows, rules, principals);
    let (mut kept, theirs): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| principals.owners.contains(&row.origin.author));
    let mut others: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    theirs.into_iter().for_each(|row| others.entry(row.origin.author.clone()).or_default().push(row));
    kept.extend(others.into_values().flat_map(|own| spread(own, most)));
    kept.sort_by(|a, b| a.id.cmp(&b.id));
    kept
}

/// Pairs that one principal without the owner's scope may bring.
fn share_max(rows: &[Row], rules: &Rules, principals: &Principals) -> usize {
    let mut others: BTreeMap<&str, usize> = BTreeMap::new();
    let theirs = rows.iter().filter(|row| !principals.owners.contains(&row.origin.author));
    theirs.for_each(|row| *others.entry(&row.origin.author).or_insert(0) += 1);
    let owned = rows.len() - others.values().sum::<usize>();
    // The smallest share that is one of its own total: what a flood adds to the total does not raise its bound.
    let mut most = rules.principal_pairs_max;
    loop {
        let total = owned + others.values().map(|own| own.min(&most)).sum::<usize>();
        let wider = rules.principal_pairs_max.max((total as f64 * rules.principal_share_max).floor() as usize);
        if wider <= most {
            return most;
        }
        most = wider;
    }
}

/// At most `most` of the rows, the routes in turn, each route's oldest first.
fn spread(rows: Vec<Row>, most: usize) -> Vec<Row> {
    if rows.len() <= most {
        return rows;
    }
    let mut routes: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for row in rows {
        routes.entry(row.origin.route.clone()).or_default().push(row);
    }
    let mut ranked: Vec<(usize, Row)> =
        routes.into_values().flat_map(|own| own.into_iter().enumerate().collect::<Vec<_>>()).collect();
    ranked.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.origin.route.cmp(&y.origin.route)));
    ranked.truncate(most);
    ranked.into_iter().map(|(_, row)| row).collect()
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
