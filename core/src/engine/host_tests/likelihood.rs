//! How likely the tokens of a prompt were: each of them once and in order, however the prompt is cut, beside others.

use super::*;

#[test]
fn every_token_of_a_prompt_is_told_once_with_its_likelihood() {
    let mut rig = Rig::start(4, 64, Duration::ZERO);
    // One that counts on, and one that stands still: the model counts, so the first is likely and the second is not.
    let counting: Vec<u32> = (0..700).map(|n| n % 40).collect();
    let still = vec![7; 300];
    for (id, ids) in [(1, counting.clone()), (2, still.clone()), (3, vec![5])] {
        rig.inputs.send(Input::Prepared(Box::new(Rig::job(id, ids, 2, Some(1))))).unwrap();
    }
    rig.generate(4, vec![9], 30);
    let log_sum = f64::from(9.0f32) + (1.0 + 63.0 * (-9.0f64).exp()).ln();
    let near = |found: Option<f32>, expected: f64| (f64::from(found.unwrap()) - expected).abs() < 1e-5;
    for (id, ids) in [(1, counting), (2, still), (3, vec![5])] {
        rig.until(ended(id));
        let read = rig.seen.iter().filter_map(|event| match event {
            Event::PromptRead { id: i, tokens } if *i == id => Some(tokens),
            _ => None,
        });
        let read: Vec<_> = read.flatten().collect();
        assert_eq!(read.iter().map(|token| token.id).collect::<Vec<_>>(), ids, "request {id}");
        assert_eq!(read[0].logprob, None);
        for (token, before) in read[1..].iter().zip(&ids) {
            let likely = token.id == before + 1;
            assert!(near(token.logprob, if likely { 9.0 } else { 0.0 } - log_sum), "{token:?} behind {before}");
            assert_eq!((token.top.len(), token.top[0].id), (1, before + 1));
            assert!(near(Some(token.top[0].logprob), 9.0 - log_sum));
        }
        let last = ids[ids.len() - 1];
        assert_eq!(rig.tokens_of(id), [last + 1, last + 2]);
    }
    rig.until(ended(4));
    assert!(!rig.seen.iter().any(|event| matches!(event, Event::PromptRead { id: 4, .. })));
}
