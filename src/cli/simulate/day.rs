//! One day: its requests in parallel streams, hour by hour of the daemon's clock, and what the users say of the answers.

use std::time::{Duration, Instant};

use anyhow::Context;
use chimere::eval::golden::Score;
use chimere::simulate::arm::Arm;
use chimere::simulate::plan::{Ask, Mood, OWNER, SMALL_TALK, Settings, TRIGGER, USERS, What, Who, guest};
use chimere::simulate::pool::Question;
use chimere::simulate::table::{Night, Requests};
use chimere::simulate::user::{Said, say, shuffle};
use chimere::store::first_turn_id;
use chimere::turn::Vote;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::super::client::Client;
use super::Bar;
use super::ask::{Manner, Reply, ask, leave, question, talk};
use super::house::House;

/// The day goes from eight in the morning to ten at night.
const FIRST_HOUR: i64 = 8;
const HOURS: usize = 14;
/// Longest wait for the judge to be through, and for a look at the canary.
const JUDGE_TIMEOUT: Duration = Duration::from_secs(1_800);
const LOOK: Duration = Duration::from_millis(500);
/// How often the turns are read while the judge is busy.
const READ: Duration = Duration::from_secs(10);
/// The Scheduler looks at a canary every three seconds.
const CANARY_LOOK: Duration = Duration::from_secs(4);
/// Turns of one page of the listing.
const PAGE: usize = 500;

/// Everybody who takes part in the days.
pub struct Town<'a> {
    pub house: &'a House,
    pub users: Vec<Client>,
    pub guests: Vec<Client>,
    pub pool: &'a [Question],
    pub order: &'a [usize],
    pub settings: &'a Settings,
    pub parallel: usize,
    pub greedy: bool,
    /// Tells this life's conversations from those of one that was cut off.
    pub life: u32,
    pub bar: &'a Bar,
}

/// A request that was answered or left.
struct Asked {
    ask: Ask,
    reply: Option<Reply>,
    right: Option<bool>,
    failed: bool,
}

impl Town<'_> {
    pub fn owner(&self) -> &Client {
        &self.users[OWNER]
    }

    /// What the names of the users' conversations begin with.
    fn mark(&self) -> String {
        format!("day-{}-", self.life)
    }

    fn client(&self, ask: &Ask) -> &Client {
        match ask.who {
            Who::User(at) => &self.users[at % self.users.len()],
            Who::Guest(at) => &self.guests[at % self.guests.len()],
        }
    }

    /// Lives a day; `until` ends it early, asked after every hour.
    pub async fn live(&self, day: usize, night: &mut Night, until: impl AsyncFn() -> bool) -> anyhow::Result<()> {
        let (asks, began) = (self.settings.day(day, self.order), Instant::now());
        let (opens_ms, mut seen) = (self.settings.at(day, FIRST_HOUR), String::new());
        let mut late: Vec<(Asked, Option<Said>)> = Vec::new();
        let mut counts = Requests::default();
        let (mut passed, mut checked) = (0, 0);
        for (hour, asks) in asks.chunks(asks.len().div_ceil(HOURS).max(1)).enumerate() {
            self.house.wind(self.settings.at(day, FIRST_HOUR + hour as i64))?;
            let asked = self.hour(day, hour, asks).await;
            for one in &asked {
                counts.sent += 1;
                counts.failed += usize::from(one.failed);
                counts.left += usize::from(one.ask.abort && !one.failed);
                counts.flood += usize::from(matches!(one.ask.who, Who::Guest(_)));
                checked += usize::from(one.right.is_some());
                passed += usize::from(one.right == Some(true));
            }
            let said: Vec<Option<Said>> = asked.iter().map(|one| self.said(one)).collect();
            let heard: Vec<(Asked, Option<Said>)> = asked.into_iter().zip(said).collect();
            match self.settings.arm {
                Arm::Placebo => late.extend(heard),
                _ => self.tell(&heard, &mut counts).await?,
            }
            self.follow_canary(opens_ms, &mut seen).await?;
            if until().await {
                break;
            }
        }
        let (asked, mut said): (Vec<Asked>, Vec<Option<Said>>) = late.into_iter().unzip();
        shuffle(&mut said, self.settings.seed.wrapping_add(day as u64));
        self.tell(&asked.into_iter().zip(said).collect::<Vec<_>>(), &mut counts).await?;
        self.judged(opens_ms, &mut seen).await?;
        (counts.turns, counts.judged) = self.turns(opens_ms).await?;
        night.requests = counts;
        night.right = Some(Score::of(passed, checked));
        night.day_seconds = began.elapsed().as_secs_f64();
        Ok(())
    }

    async fn hour(&self, day: usize, hour: usize, asks: &[Ask]) -> Vec<Asked> {
        let asked = stream::iter(asks.iter().enumerate()).map(|(n, ask)| async move {
            let asked = self.one(*ask, &format!("{}{day}-{hour}-{n}", self.mark())).await;
            self.bar.inc(1);
            (n, asked)
        });
        let mut asked: Vec<(usize, Asked)> = asked.buffer_unordered(self.parallel).collect().await;
        asked.sort_unstable_by_key(|(n, _)| *n);
        asked.into_iter().map(|(_, asked)| asked).collect()
    }

    async fn one(&self, asked: Ask, conversation: &str) -> Asked {
        let manner = Manner { greedy: self.greedy, consent: true };
        let (body, item) = match asked.what {
            What::Question(at) => {
                let item = &self.pool[at].item;
                (question(item, manner, conversation), Some(item))
            }
            What::SmallTalk(at) => (talk(SMALL_TALK[at % SMALL_TALK.len()], manner, conversation), None),
            What::Trigger(at) => {
                let last = self.pool[at].item.messages.last().map_or("", |m| m.content.as_str());
                (talk(&format!("{TRIGGER} {last}"), manner, conversation), None)
            }
        };
        let client = self.client(&asked);
        if asked.abort {
            let failed = leave(client, &body).await.is_err();
            return Asked { ask: asked, reply: None, right: None, failed };
        }
        match ask(client, &body).await {
            Ok(reply) => {
                let right = item.map(|item| item.check.passes(&reply.content, &reply.calls));
                Asked { ask: asked, reply: Some(reply), right, failed: false }
            }
            Err(error) => {
                self.bar.note(&format!("a request failed: {error:#}"));
                Asked { ask: asked, reply: None, right: None, failed: true }
            }
        }
    }

    fn said(&self, asked: &Asked) -> Option<Said> {
        asked.reply.as_ref()?;
        let own = match asked.ask.what {
            What::Question(at) | What::Trigger(at) => at,
            What::SmallTalk(_) => return None,
        };
        let reference = |at: usize| self.pool[at].reference();
        say(asked.ask.mood, asked.right.unwrap_or(false), own, &reference)
    }

    /// Sends what the users say.
    async fn tell(&self, heard: &[(Asked, Option<Said>)], counts: &mut Requests) -> anyhow::Result<()> {
        for (asked, said) in heard {
            let (Some(reply), Some(said)) = (&asked.reply, said) else { continue };
            let mut body = json!({ "turn": reply.turn, "vote": said.vote });
            if let Some(correction) = &said.correction {
                body["correction"] = json!(correction);
            }
            self.client(&asked.ask).post("/v1/feedback", &body).await.context("feedback was refused")?;
            counts.up += usize::from(said.vote == Vote::Up);
            counts.down += usize::from(said.vote == Vote::Down);
            counts.corrected += usize::from(said.correction.is_some());
            counts.lies += usize::from(matches!(asked.ask.mood, Mood::Lying(_)) && said.correction.is_some());
        }
        Ok(())
    }

    /// Waits until every turn of the users has its verdict. `seen`: the last turn before which all have. The turns are
    /// read when nothing is under way and the judge has spoken since, and now and then: the prober never rests.
    async fn judged(&self, since_ms: i64, seen: &mut String) -> anyhow::Result<()> {
        let (began, mark) = (Instant::now(), self.mark());
        let (mut read, mut heard) = (began, None);
        while began.elapsed() < JUDGE_TIMEOUT {
            let status = self.owner().get("/v1/status").await?;
            let scorer = &status["actors"]["scorer"];
            let left = [&status["replies"]["running"], &scorer["queue"], &scorer["in_hand"]];
            let rests = left.iter().all(|left| left.as_u64() == Some(0)) && heard != scorer["scored"].as_u64();
            if !rests && read.elapsed() < READ {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            (read, heard) = (Instant::now(), scorer["scored"].as_u64());
            let page = self.page(since_ms, seen).await?;
            let turns = page["data"].as_array().map_or(&[][..], Vec::as_slice);
            let waits = |turn: &&Value| turn["verdict"].is_null() && by_user(turn, &mark);
            let judged = turns.iter().position(|turn| waits(&turn)).unwrap_or(turns.len());
            if let Some(last) = judged.checked_sub(1).and_then(|at| turns[at]["id"].as_str()) {
                last.clone_into(seen);
            }
            if judged < turns.len() {
                tokio::time::sleep(LOOK).await;
            } else if let Some(next) = page["next"].as_str() {
                next.clone_into(seen);
            } else {
                return Ok(());
            }
        }
        self.bar.note("the judge was not through in time");
        Ok(())
    }

    /// While a canary is under way, lets the judge and the Scheduler see this hour before the next begins.
    async fn follow_canary(&self, since_ms: i64, seen: &mut String) -> anyhow::Result<()> {
        if self.served().await?["canary"].is_object() {
            self.judged(since_ms, seen).await?;
            tokio::time::sleep(CANARY_LOOK).await;
        }
        Ok(())
    }

    /// Who serves.
    pub async fn served(&self) -> anyhow::Result<Value> {
        Ok(self.owner().get("/v1/night").await?["served"].take())
    }

    /// Turns of everybody since a time and behind one of them.
    async fn page(&self, since_ms: i64, after: &str) -> anyhow::Result<Value> {
        // The log is in the order of its ids: what came before the day is not even read.
        let after = if after.is_empty() { first_turn_id(since_ms).0 } else { after.to_owned() };
        self.owner().get(&format!("/v1/memory/turns?since_ms={since_ms}&limit={PAGE}&after={after}")).await
    }

    /// Turns of the users since a time, and how many of them have a verdict.
    async fn turns(&self, since_ms: i64) -> anyhow::Result<(usize, usize)> {
        let (mut turns, mut judged, mut after, mark) = (0, 0, String::new(), self.mark());
        loop {
            let page = self.page(since_ms, &after).await?;
            for turn in page["data"].as_array().into_iter().flatten() {
                turns += usize::from(by_user(turn, &mark));
                judged += usize::from(by_user(turn, &mark) && turn["verdict"].is_u64());
            }
            match page["next"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => return Ok((turns, judged)),
            }
        }
    }
}

fn by_user(turn: &Value, mark: &str) -> bool {
    turn["conversation"].as_str().is_some_and(|name| name.starts_with(mark))
}

/// The clients of all users.
pub fn users(house: &House) -> anyhow::Result<Vec<Client>> {
    USERS.iter().map(|(name, _)| house.client(name)).collect()
}

/// Those of the guests who flood; there is always one.
pub fn guests(house: &House, settings: &Settings) -> anyhow::Result<Vec<Client>> {
    (0..settings.flood_guests.max(1)).map(|at| house.client(&guest(at))).collect()
}
