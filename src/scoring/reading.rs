//! How a judge's logits are read. P of a step is the softmax over the two labels. P of an answer comes from its
//! weakest step, through a calibration fitted on held-out tasks. Four cuts turn P into a verdict. Calibration and
//! cuts are stored with the adapter (`chimere.prm.*`).

use crate::engine::protocol::TokenEvent;
use crate::gguf::Gguf;

/// Tells the two labels apart by this much at most; beyond it both are as sure as can be.
const LOGIT_MAX: f32 = 30.0;
const FORM: &str = "labels/1";
/// Longest answer that a calibration is taken to hold for where an adapter does not say it (`chimere.prm.answer_chars`),
/// characters: 2,094 of nano's 2,100 answers to the golden exam have no more, and the six longer ones are wrong; the longest
/// reference of any exam has 104.
const ANSWER_CHARS_MAX: usize = 120;
/// The verdict of an answer beyond it, at most.
const VERDICT_BEYOND: u8 = 2;

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ReadingError {
    #[error("the adapter is no judge: it says nothing under `chimere.prm.form`")]
    NoJudge,
    #[error("the adapter judges in the form `{0}`, but this version reads `{FORM}`")]
    Form(String),
    #[error("the adapter's {0} is missing or no number that can be used")]
    Value(&'static str),
}

/// P = σ(scale · logit + bias) of the weakest step; verdict n + 1 from `cuts[n]` on. What was fitted on short answers says
/// nothing of long ones (wrong ones that are padded read as undecided), so those have at most verdict 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub scale: f32,
    pub bias: f32,
    pub cuts: [f32; 4],
    /// Longest answer that this holds for, characters; `None`: any.
    pub answer_chars_max: Option<usize>,
}

impl Default for Reading {
    /// For judges that bring no calibration.
    fn default() -> Self {
        Reading { scale: 1.0, bias: 0.0, cuts: [0.2, 0.5, 0.75, 0.9], answer_chars_max: None }
    }
}

impl Reading {
    /// Reads what an adapter file says of itself.
    pub fn of_adapter(gguf: &Gguf) -> Result<Reading, ReadingError> {
        let form = gguf.str("chimere.prm.form").map_err(|_| ReadingError::NoJudge)?;
        if form != FORM {
            return Err(ReadingError::Form(form.to_owned()));
        }
        let number = |key, name| gguf.f32(key).ok().filter(|v| v.is_finite()).ok_or(ReadingError::Value(name));
        let cuts = gguf.required::<&[f32]>("chimere.prm.cuts").ok().and_then(|cuts| <[f32; 4]>::try_from(cuts).ok());
        let cuts = cuts.ok_or(ReadingError::Value("cuts"))?;
        let rising = cuts.windows(2).all(|c| c[0] < c[1]) && cuts[0] > 0.0 && cuts[3] < 1.0;
        if !rising {
            return Err(ReadingError::Value("cuts"));
        }
        let longest = match gguf.get("chimere.prm.answer_chars") {
            Some(_) => gguf.u32("chimere.prm.answer_chars").map_err(|_| ReadingError::Value("answer_chars"))? as usize,
            None => ANSWER_CHARS_MAX,
        };
        let (scale, bias) = (number("chimere.prm.scale", "scale")?, number("chimere.prm.bias", "bias")?);
        let reading = Reading { scale, bias, cuts, answer_chars_max: Some(longest) };
        if reading.scale > 0.0 { Ok(reading) } else { Err(ReadingError::Value("scale")) }
    }

    /// P of an answer whose weakest step has this logit.
    pub fn p(&self, weakest: f32) -> f32 {
        sigmoid(self.scale * weakest + self.bias)
    }

    /// 1–5, of an answer of so many characters.
    pub fn verdict(&self, p: f32, answer_chars: usize) -> u8 {
        let verdict = 1 + self.cuts.iter().filter(|&&cut| p >= cut).count() as u8;
        if self.vouches_for(answer_chars) { verdict } else { verdict.min(VERDICT_BEYOND) }
    }

    /// The calibration says something of answers of so many characters.
    pub fn vouches_for(&self, answer_chars: usize) -> bool {
        self.answer_chars_max.is_none_or(|most| answer_chars <= most)
    }
}

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The logit of the good label against the bad one where the judge wrote one of the two; `None` for any other token.
pub fn label_logit(token: &TokenEvent, good: u32, bad: u32) -> Option<f32> {
    if token.token != good && token.token != bad {
        return None;
    }
    let seen = token.top.iter().chain(&token.logprob);
    let of = |id: u32| seen.clone().find(|p| p.id == id).map(|p| p.logprob);
    // A label outside the reported alternatives is less likely than the last of them.
    let floor = token.top.iter().map(|p| p.logprob).fold(0.0f32, f32::min) - 1.0;
    let logit = of(good).unwrap_or(floor) - of(bad).unwrap_or(floor);
    logit.is_finite().then(|| logit.clamp(-LOGIT_MAX, LOGIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::{Channel, TokenLogprob};

    fn token(id: u32, top: &[(u32, f32)]) -> TokenEvent {
        let describe =
            |&(id, logprob): &(u32, f32)| TokenLogprob { id, text: String::new(), bytes: Vec::new(), logprob };
        let logprob = top.iter().find(|(t, _)| *t == id).map(describe);
        let top = top.iter().map(describe).collect();
        TokenEvent { id: 1, token: id, channel: Channel::Answer, text: String::new(), forced: false, logprob, top }
    }

    #[test]
    fn the_labels_probability_is_their_softmax() {
        let (p, q) = (0.6f32, 0.2f32);
        let logit = label_logit(&token(6, &[(6, p.ln()), (9, -1.0), (7, q.ln())]), 6, 7).unwrap();
        assert!((sigmoid(logit) - p / (p + q)).abs() < 1e-6);
        assert_eq!(label_logit(&token(5, &[(5, -0.1)]), 6, 7), None);
        // The other label was too unlikely to be reported.
        let sure = label_logit(&token(7, &[(7, -0.001), (3, -9.0)]), 6, 7).unwrap();
        assert!((sure - (-10.0 + 0.001)).abs() < 1e-4, "{sure}");
    }

    #[test]
    fn verdicts_follow_the_cuts() {
        let reading = Reading::default();
        let verdicts: Vec<u8> = [0.0, 0.19, 0.2, 0.49, 0.5, 0.75, 0.95].map(|p| reading.verdict(p, 10_000)).into();
        assert_eq!(verdicts, [1, 1, 2, 2, 3, 4, 5]);
        let calibrated = Reading { scale: 0.5, bias: 1.0, ..reading };
        assert!((calibrated.p(-2.0) - 0.5).abs() < 1e-6);
    }

    #[test]
    fn an_answer_longer_than_the_calibrations_is_vouched_for_by_nobody() {
        let short = Reading { answer_chars_max: Some(240), ..Reading::default() };
        let verdict = |logit, chars| short.verdict(short.p(logit), chars);
        assert_eq!([verdict(9.0, 240), verdict(9.0, 241), verdict(0.1, 241), verdict(-9.0, 241)], [5, 2, 2, 1]);
    }
}
