//! A request's plan: defaults < pipeline < what the client asked for. History, the caller's system message
//! and parameters are kept. Ranges are checked here, once, for files and requests alike.

use std::sync::Arc;

use serde_json::Value;

use super::Pipeline;
use super::cost::Ceilings;
use super::program::{ANSWER, JUDGE, Program, ProgramStep, ProgramWork, Terms};
use super::{retrieve, web};
use crate::engine::protocol::{Hosted, STOP_BYTES_MAX, STOPS_MAX};
use crate::engine::sampler::{LOGIT_BIAS_MAX, LOGPROBS_MAX};
use crate::engram::blend::LAMBDA_MAX;
use crate::engram::dynamic::PASSAGES_MAX;
use crate::engram::format::check_name;
use crate::service::{DocumentsWish, EngramWish, SamplingOverrides, ServiceError, StepsWish, WebWish};
use crate::turn::{
    Branch, Draft, Message, Plan, PromptEnd, PromptForm, QualityGate, Role, Sampling, Step, Thinking, ThoughtPolicy,
    Tier, ToolLimits, ToolLoop, Work,
};

/// Tables that one reply may use, and bytes of its passages together.
pub const TABLES_MAX: usize = 8;
const PASSAGE_BYTES_MAX: usize = 256 << 10;

/// What the client asked for, beside the conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    pub tier: Option<Tier>,
    pub thinking: Option<Thinking>,
    /// One without a rule: none, whatever the pipeline says.
    pub thought: Option<ThoughtPolicy>,
    pub prompt: PromptForm,
    pub sampling: SamplingOverrides,
    pub max_tokens: Option<u32>,
    pub stop: Vec<String>,
    pub tools: Vec<Value>,
    /// Built-in tools that the answer may call; absent: those of the program.
    pub built_in: Option<Vec<String>>,
    pub engram: EngramWish,
    pub quality_gate: Option<bool>,
    pub steps: StepsWish,
    pub documents: DocumentsWish,
    pub web: WebWish,
    /// Tokens of a reply where neither request nor pipeline says.
    pub max_tokens_default: u32,
    /// Answers that it wants, and what a reply may cost.
    pub choices: u32,
    pub ceilings: Ceilings,
    /// The model that will answer, whose defaults a pipeline may follow.
    pub model: Option<Arc<Hosted>>,
}

/// The plan of a chat request on a route.
pub fn plan(
    pipeline: &Pipeline,
    because: String,
    messages: Vec<Message>,
    wishes: Wishes,
) -> Result<Plan, ServiceError> {
    let said_by_file = pipeline.max_tokens;
    let followed = wishes.model.as_deref().map(|hosted| pipeline.for_model(hosted));
    let pipeline = followed.as_ref().unwrap_or(pipeline);
    let program = match wishes.steps {
        StepsWish::None => &Program::default(),
        StepsWish::Program | StepsWish::Events => &pipeline.program,
    };
    let tools = built_in(program, &wishes)?;
    let documents = retrieve::terms(program, &wishes.documents);
    let web = web::terms(program, wishes.web);
    let evidence = documents.is_some() || web.is_some();
    if (program.instructs() || tools.is_some() || evidence) && wishes.prompt.end != PromptEnd::Opened {
        let message = format!(
            "the route `{}` works in steps, which ask something behind the conversation: a reply that goes on with the \
             last message needs `chimere.steps: \"none\"`, no built-in tools, no documents and no web",
            pipeline.name
        );
        return Err(ServiceError::Invalid { message, param: Some("chimere.steps".to_owned()) });
    }
    let own = Terms::default();
    let own = program.answer().unwrap_or(&own);
    let tier = wishes.tier.or(own.tier).unwrap_or(pipeline.tier);
    let base = own.sampling.as_ref().unwrap_or(&pipeline.sampling).clone();
    let sampling = overridden(base, wishes.sampling);
    let gate = match wishes.steps {
        StepsWish::None => None,
        StepsWish::Program | StepsWish::Events => gate(program, tier, wishes.quality_gate),
    };
    let steps = steps(pipeline, program, &messages, &sampling, tier, tools, gate);
    let steps = web::placed(retrieve::placed(steps, documents), web);
    let usual = || {
        let room = wishes.ceilings.answer_tokens(&steps, wishes.choices.max(1));
        pipeline.max_tokens.unwrap_or(wishes.max_tokens_default).min(room)
    };
    let max_tokens = wishes.max_tokens.or(own.max_tokens).or(said_by_file).unwrap_or_else(usual);
    let thinking = wishes.thinking.unwrap_or_else(|| thinking(pipeline, own, tier, max_tokens));
    let mut stop = wishes.stop;
    stop.extend(pipeline.stop.iter().cloned());
    finish(Plan {
        route: pipeline.name.clone(),
        because,
        tier,
        pipeline_version: pipeline.version.clone(),
        messages: assemble(pipeline, own.system.as_deref(), messages),
        examples: pipeline.demonstrations.len() as u32,
        tools: wishes.tools,
        sampling,
        thinking,
        thought: wishes.thought.or(pipeline.thought).filter(|policy| *policy != ThoughtPolicy::default()),
        max_tokens,
        stop,
        engram: match wishes.engram {
            EngramWish::Pipeline => pipeline.engram.clone(),
            EngramWish::Off => None,
            EngramWish::Use(choice) => Some(choice),
        },
        steps,
        retrieve: pipeline.retrieve,
        recall: pipeline.recall,
        notes: Vec::new(),
        prompt: wishes.prompt,
    })
}

/// How long a generation of a tier may think.
fn thinking(pipeline: &Pipeline, own: &Terms, tier: Tier, max_tokens: u32) -> Thinking {
    let budget = own.thinking_tokens.or(pipeline.thinking.map(|budget| budget.of(tier)));
    match (budget, tier) {
        (None, Tier::Fast) => Thinking::Off,
        (None, _) => Thinking::Template,
        // Thought and answer share `max_tokens`: a short reply must not be all thought.
        (Some(budget), _) => match budget.min(max_tokens / 2) {
            0 => Thinking::Off,
            budget_tokens => Thinking::On { budget_tokens },
        },
    }
}

/// The built-in tools of a reply and how far it may go with them: what the request says, or else the program.
fn built_in(program: &Program, wishes: &Wishes) -> Result<Option<(Vec<String>, ToolLimits)>, ServiceError> {
    let own = program.steps.iter().find_map(|step| match &step.work {
        ProgramWork::Tools(_, allowed, limits) => Some((allowed, *limits)),
        _ => None,
    });
    let limits = own.map(|(_, limits)| limits).unwrap_or_default();
    let offered = wishes.built_in.as_ref().or(own.map(|(allowed, _)| allowed));
    let Some(offered) = offered.filter(|names| !names.is_empty()) else { return Ok(None) };
    let named = wishes.tools.iter().filter_map(|tool| tool["function"]["name"].as_str());
    for (at, name) in named.enumerate() {
        if offered.iter().any(|own| own == name) {
            let message = format!("`{name}` is the name of a built-in tool that this reply may call: rename yours");
            return Err(ServiceError::Invalid { message, param: Some(format!("tools[{at}].function.name")) });
        }
    }
    Ok(Some((offered.clone(), limits)))
}

/// The program's steps for one reply.
fn steps(
    pipeline: &Pipeline,
    program: &Program,
    messages: &[Message],
    sampling: &Sampling,
    tier: Tier,
    tools: Option<(Vec<String>, ToolLimits)>,
    gate: Option<QualityGate>,
) -> Vec<Step> {
    let answer = |own: &Terms| match tools.clone() {
        Some((offered, limits)) => Work::Tools(ToolLoop { instruction: own.instruction.clone(), offered, limits }),
        None => Work::Answer { instruction: own.instruction.clone() },
    };
    let draft = |own: &Terms, max_tokens: u32| Draft {
        system: system_text(own.system.as_deref().unwrap_or(&pipeline.system), messages),
        instruction: own.instruction.clone(),
        sampling: Sampling {
            logit_bias: Vec::new(),
            logprobs: None,
            ..own.sampling.as_ref().unwrap_or(sampling).clone()
        },
        thinking: thinking(pipeline, own, own.tier.unwrap_or(tier), max_tokens),
        max_tokens,
    };
    let judge = gate.map(|gate| Step { name: JUDGE.to_owned(), work: Work::Judge(gate) });
    planned(&program.steps, &answer, &draft).into_iter().chain(judge).collect()
}

/// Steps as they are run; the judge is the reply's own affair.
fn planned(steps: &[ProgramStep], answer: &dyn Fn(&Terms) -> Work, draft: &dyn Fn(&Terms, u32) -> Draft) -> Vec<Step> {
    let planned = steps.iter().filter_map(|step| {
        let work = match &step.work {
            ProgramWork::Answer(own) | ProgramWork::Tools(own, ..) => answer(own),
            ProgramWork::Draft(own, max_tokens) => Work::Draft(Box::new(draft(own, *max_tokens))),
            ProgramWork::Branch(when, steps, otherwise) => Work::Branch(Box::new(Branch {
                when: when.clone(),
                steps: planned(steps, answer, draft),
                otherwise: planned(otherwise, answer, draft),
            })),
            ProgramWork::Retrieve(terms) => Work::Retrieve(terms.clone()),
            ProgramWork::Web(terms) => Work::Web(*terms),
            ProgramWork::Judge(_) => return None,
        };
        Some(Step { name: step.name.clone(), work })
    });
    planned.collect()
}

/// The quality gate of a reply. Whoever asks for `fast` wants no second look.
fn gate(program: &Program, tier: Tier, wish: Option<bool>) -> Option<QualityGate> {
    let own = program.gate();
    match (tier, wish) {
        (Tier::Fast, _) | (_, Some(false)) => None,
        (_, Some(true)) => Some(own.map(|own| own.gate).unwrap_or_default()),
        (_, None) => own.filter(|own| own.tiers.contains(&tier)).map(|own| own.gate),
    }
}

/// The plan of a completion, which has no pipeline.
pub fn plain_plan(wishes: Wishes) -> Result<Plan, ServiceError> {
    let steps = vec![Step { name: ANSWER.to_owned(), work: Work::Answer { instruction: String::new() } }];
    let room = wishes.ceilings.answer_tokens(&steps, wishes.choices.max(1));
    finish(Plan {
        route: "completion".to_owned(),
        because: "no chat".to_owned(),
        tier: wishes.tier.unwrap_or_default(),
        pipeline_version: "none".to_owned(),
        messages: Vec::new(),
        examples: 0,
        tools: Vec::new(),
        sampling: overridden(Sampling::default(), wishes.sampling),
        thinking: Thinking::Off,
        thought: None,
        max_tokens: wishes.max_tokens.unwrap_or(wishes.max_tokens_default.min(room)),
        stop: wishes.stop,
        engram: match wishes.engram {
            EngramWish::Pipeline | EngramWish::Off => None,
            EngramWish::Use(choice) => Some(choice),
        },
        steps,
        retrieve: None,
        recall: false,
        notes: Vec::new(),
        prompt: wishes.prompt,
    })
}

/// Pipeline's or step's system text, then the caller's own; demonstrations; the conversation. Templates allow one
/// system message, at the start.
fn assemble(pipeline: &Pipeline, own: Option<&str>, messages: Vec<Message>) -> Vec<Message> {
    let callers = messages.iter().take_while(|m| m.role == Role::System).count();
    let system = system_text(own.unwrap_or(&pipeline.system), &messages);
    let mut all = Vec::with_capacity(messages.len() + pipeline.demonstrations.len() + 1);
    if !system.is_empty() {
        all.push(Message::new(Role::System, system));
    }
    all.extend(pipeline.demonstrations.iter().cloned());
    all.extend(messages.into_iter().skip(callers));
    all
}

fn system_text(own: &str, messages: &[Message]) -> String {
    let callers = messages.iter().take_while(|m| m.role == Role::System).map(|m| m.content.as_str());
    let callers = callers.filter(|text| !text.trim().is_empty());
    Some(own).filter(|own| !own.is_empty()).into_iter().chain(callers).collect::<Vec<_>>().join("\n\n")
}

fn overridden(base: Sampling, wish: SamplingOverrides) -> Sampling {
    Sampling {
        temperature: wish.temperature.unwrap_or(base.temperature),
        top_p: wish.top_p.unwrap_or(base.top_p),
        top_k: wish.top_k.unwrap_or(base.top_k),
        min_p: wish.min_p.unwrap_or(base.min_p),
        repetition_penalty: wish.repetition_penalty.unwrap_or(base.repetition_penalty),
        frequency_penalty: wish.frequency_penalty.unwrap_or(base.frequency_penalty),
        presence_penalty: wish.presence_penalty.unwrap_or(base.presence_penalty),
        penalty_window_tokens: base.penalty_window_tokens,
        seed: wish.seed.or(base.seed),
        logit_bias: if wish.logit_bias.is_empty() { base.logit_bias } else { wish.logit_bias },
        logprobs: wish.logprobs.or(base.logprobs),
    }
}

fn finish(plan: Plan) -> Result<Plan, ServiceError> {
    let invalid = |param: &str, message: String| Err(ServiceError::Invalid { message, param: Some(param.to_owned()) });
    if let Err(message) = check_sampling(&plan.sampling) {
        let param = message.split(' ').next().unwrap_or_default().to_owned();
        return invalid(&param, message);
    }
    if plan.max_tokens == 0 {
        return invalid("max_tokens", "max_tokens must be at least 1".to_owned());
    }
    if plan.stop.len() > STOPS_MAX {
        return invalid("stop", format!("stop may hold at most {STOPS_MAX} strings"));
    }
    if plan.stop.iter().any(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
        return invalid("stop", format!("stop strings must have 1 to {STOP_BYTES_MAX} bytes"));
    }
    if let Some(Err(message)) = plan.thought.map(ThoughtPolicy::check) {
        return invalid("chimere.thought", message);
    }
    if let Some(engram) = &plan.engram
        && let Err(message) = check_engram(&engram.tables, Some(engram.lambda_max), &engram.passages)
    {
        return invalid("chimere.engram", message);
    }
    Ok(plan)
}

/// Names, weight and passages in their ranges.
pub(super) fn check_engram(tables: &[String], lambda: Option<f32>, passages: &[String]) -> Result<(), String> {
    if tables.len() > TABLES_MAX {
        return Err(format!("engram names {} tables, but a reply uses at most {TABLES_MAX}", tables.len()));
    }
    if let Some(Err(error)) = tables.iter().map(|name| check_name(name)).find(Result::is_err) {
        return Err(format!("engram.tables: {error}"));
    }
    if lambda.is_some_and(|lambda| !(0.0..=LAMBDA_MAX).contains(&lambda)) {
        return Err(format!("engram.lambda must be 0 to {LAMBDA_MAX}"));
    }
    let bytes: usize = passages.iter().map(String::len).sum();
    if passages.len() > PASSAGES_MAX || bytes > PASSAGE_BYTES_MAX {
        return Err(format!("engram.passages may hold {PASSAGES_MAX} texts of {PASSAGE_BYTES_MAX} bytes together"));
    }
    Ok(())
}

/// Every field in its range; the message begins with the field's name.
pub(super) fn check_sampling(s: &Sampling) -> Result<(), String> {
    let within = |name: &str, value: f32, min: f32, max: f32| {
        // Also refuses NaN, which is within nothing.
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(format!("{name} is {value}, but must be {min} to {max}"))
        }
    };
    within("temperature", s.temperature, 0.0, 2.0)?;
    within("top_p", s.top_p, 0.0, 1.0)?;
    within("min_p", s.min_p, 0.0, 1.0)?;
    within("repetition_penalty", s.repetition_penalty, 0.1, 10.0)?;
    within("frequency_penalty", s.frequency_penalty, -2.0, 2.0)?;
    within("presence_penalty", s.presence_penalty, -2.0, 2.0)?;
    if s.logprobs.is_some_and(|n| n > LOGPROBS_MAX) {
        return Err(format!("logprobs must be at most {LOGPROBS_MAX}"));
    }
    if s.logit_bias.len() > LOGIT_BIAS_MAX {
        return Err(format!("logit_bias may hold at most {LOGIT_BIAS_MAX} tokens"));
    }
    s.logit_bias.iter().try_for_each(|(_, bias)| within("logit_bias", *bias, -100.0, 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipeline() -> Pipeline {
        let text = "name: code\nversion: 3\nsystem: Be exact.\nsampling: {temperature: 0.2, top_k: 40}\n\
            thinking: {fast_tokens: 0, quality_tokens: 10, ultra_tokens: 20}\nmax_tokens: 300\nstop: [END]\n\
            demonstrations: [{user: hi, assistant: hello}]\n";
        Pipeline::parse(text, "code.yaml", "code", false).unwrap()
    }

    fn user(text: &str) -> Vec<Message> {
        vec![Message::new(Role::User, text)]
    }

    #[test]
    fn the_client_wins_over_the_pipeline_over_the_defaults() {
        let wishes = Wishes {
            sampling: SamplingOverrides { temperature: Some(0.0), seed: Some(7), ..SamplingOverrides::default() },
            stop: vec!["x".to_owned()],
            ..Wishes::default()
        };
        let plan = plan(&pipeline(), "why".to_owned(), user("q"), wishes).unwrap();
        assert_eq!((plan.sampling.temperature, plan.sampling.top_k, plan.sampling.top_p), (0.0, 40, 1.0));
        assert_eq!(plan.sampling.seed, Some(7));
        assert_eq!(plan.max_tokens, 300);
        assert_eq!(plan.stop, ["x", "END"]);
        assert_eq!(plan.thinking, Thinking::On { budget_tokens: 10 });
    }

    #[test]
    fn the_tier_picks_the_budget() {
        let with = |tier| {
            let wishes = Wishes { tier: Some(tier), ..Wishes::default() };
            plan(&pipeline(), String::new(), user("q"), wishes).unwrap().thinking
        };
        assert_eq!(with(Tier::Fast), Thinking::Off);
        assert_eq!(with(Tier::Ultra), Thinking::On { budget_tokens: 20 });
        let short = Wishes { tier: Some(Tier::Ultra), max_tokens: Some(12), ..Wishes::default() };
        let short = plan(&pipeline(), String::new(), user("q"), short).unwrap();
        assert_eq!(short.thinking, Thinking::On { budget_tokens: 6 }, "half is left for the answer");
    }

    #[test]
    fn the_callers_system_message_and_history_are_kept() {
        let mut messages = vec![Message::new(Role::System, "Be kind.")];
        messages.extend(user("one"));
        messages.push(Message::new(Role::Assistant, "two"));
        messages.extend(user("three"));
        let plan = plan(&pipeline(), String::new(), messages, Wishes::default()).unwrap();
        let texts: Vec<_> = plan.messages.iter().map(|m| (m.role, m.content.as_str())).collect();
        assert_eq!(texts[0], (Role::System, "Be exact.\n\nBe kind."));
        assert_eq!(texts[1..3], [(Role::User, "hi"), (Role::Assistant, "hello")]);
        assert_eq!(texts[3..], [(Role::User, "one"), (Role::Assistant, "two"), (Role::User, "three")]);
    }

    #[test]
    fn values_out_of_range_name_the_parameter() {
        let refused = |change: fn(&mut Wishes)| {
            let mut wishes = Wishes { max_tokens_default: 10, ..Wishes::default() };
            change(&mut wishes);
            match plain_plan(wishes) {
                Err(ServiceError::Invalid { param, .. }) => param.unwrap(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused(|w| w.sampling.temperature = Some(f32::NAN)), "temperature");
        assert_eq!(refused(|w| w.sampling.top_p = Some(-0.1)), "top_p");
        assert_eq!(refused(|w| w.sampling.logprobs = Some(21)), "logprobs");
        assert_eq!(refused(|w| w.sampling.logit_bias = vec![(1, f32::INFINITY)]), "logit_bias");
        assert_eq!(refused(|w| w.max_tokens = Some(0)), "max_tokens");
        assert_eq!(refused(|w| w.stop = vec![String::new()]), "stop");
        assert_eq!(refused(|w| w.stop = vec!["a".to_owned(); 17]), "stop");
    }
}
