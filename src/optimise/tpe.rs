//! The tree-structured Parzen estimator (Bergstra et al., "Algorithms for hyper-parameter optimization", 2011) over
//! categories. The points seen so far are parted into the best and the rest. Each part gives every category of every
//! dimension a density with a prior. Some points are drawn from the good density; the next point is the one of them where
//! good over rest is largest. Scores are noisy: a point seen again counts with its mean.

use std::collections::BTreeMap;

use super::random::Random;

/// Share of the points that count as good.
const GOOD_SHARE: f64 = 0.25;
/// Points drawn from the good density for each suggestion.
const DRAWS: usize = 24;
/// Pseudo-observations that every dimension starts with, spread over its categories.
const PRIOR: f64 = 1.0;
/// Of so many suggestions one is drawn blindly, so that no category is given up for bad luck.
const BLIND_EVERY: usize = 8;

pub struct Tpe {
    /// Categories of each dimension.
    sizes: Vec<usize>,
    /// Suggestions before there is anything to go by.
    first: usize,
    /// For those: categories of each dimension that were not suggested yet, in random order.
    fresh: Vec<Vec<usize>>,
    suggested: usize,
    /// By point: sum of the scores, and how many.
    seen: BTreeMap<Vec<usize>, (f64, usize)>,
    random: Random,
}

impl Tpe {
    /// `sizes`: categories of each dimension, at least one each. `first`: suggestions made before any is judged by; they
    /// take every category of a dimension once before any of them twice.
    pub fn new(sizes: Vec<usize>, first: usize, seed: u64) -> Tpe {
        let fresh = vec![Vec::new(); sizes.len()];
        Tpe { sizes, first, fresh, suggested: 0, seen: BTreeMap::new(), random: Random::new(seed) }
    }

    /// The next point to look at.
    pub fn suggest(&mut self) -> Vec<usize> {
        self.suggested += 1;
        if self.suggested <= self.first {
            return self.even();
        }
        if self.seen.len() < 2 || self.suggested % BLIND_EVERY == 0 {
            return self.blind();
        }
        let (good, rest) = self.densities();
        let mut best: Option<(f64, Vec<usize>)> = None;
        for _ in 0..DRAWS {
            let point: Vec<usize> = good.iter().map(|density| draw(density, &mut self.random)).collect();
            let ratio: f64 = point.iter().enumerate().map(|(d, &c)| (good[d][c] / rest[d][c]).ln()).sum();
            if best.as_ref().is_none_or(|(most, _)| ratio > *most) {
                best = Some((ratio, point));
            }
        }
        best.map_or_else(|| self.blind(), |(_, point)| point)
    }

    /// What a point was worth; larger is better.
    pub fn tell(&mut self, point: Vec<usize>, score: f64) {
        let (sum, n) = self.seen.entry(point).or_default();
        *sum += score;
        *n += 1;
    }

    /// Points with their mean scores and how often each was seen, the best first.
    pub fn ranking(&self) -> Vec<(Vec<usize>, f64, usize)> {
        let mut all: Vec<_> = self.seen.iter().map(|(point, (sum, n))| (point.clone(), sum / *n as f64, *n)).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| b.2.cmp(&a.2)));
        all
    }

    fn even(&mut self) -> Vec<usize> {
        let mut point = Vec::with_capacity(self.sizes.len());
        for (&size, fresh) in self.sizes.iter().zip(&mut self.fresh) {
            if fresh.is_empty() {
                *fresh = self.random.some_of(size, size);
            }
            point.push(fresh.pop().unwrap_or(0));
        }
        point
    }

    fn blind(&mut self) -> Vec<usize> {
        self.sizes.iter().map(|&size| self.random.below(size)).collect()
    }

    /// For each dimension the densities of its categories among the good points and among the rest.
    fn densities(&self) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
        let ranking = self.ranking();
        let good = ((ranking.len() as f64 * GOOD_SHARE).ceil() as usize).clamp(1, ranking.len() - 1);
        (self.density(&ranking[..good]), self.density(&ranking[good..]))
    }

    fn density(&self, points: &[(Vec<usize>, f64, usize)]) -> Vec<Vec<f64>> {
        let of = |(d, &size): (usize, &usize)| {
            let mut mass = vec![PRIOR / size as f64; size];
            points.iter().for_each(|(point, ..)| mass[point[d]] += 1.0);
            let sum: f64 = mass.iter().sum();
            mass.iter_mut().for_each(|m| *m /= sum);
            mass
        };
        self.sizes.iter().enumerate().map(of).collect()
    }
}

fn draw(density: &[f64], random: &mut Random) -> usize {
    let mut left = random.unit();
    for (category, mass) in density.iter().enumerate() {
        left -= mass;
        if left < 0.0 {
            return category;
        }
    }
    density.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 2] = [16, 12];
    const LOOKS: usize = 40;

    /// Worth of a point: two dimensions that add up, as an instruction and its demonstrations mostly do, each with one
    /// category that stands out; 0 … 1.
    fn worth(point: &[usize]) -> f64 {
        let part = |at: usize, best: usize| if at == best { 0.5 } else { 0.02 * ((at * 7 + best) % 11) as f64 };
        part(point[0], 11) + part(point[1], 5)
    }

    /// The true worth of the point that a search liked best, with noise of a minibatch in every look.
    fn search(seed: u64, mut next: impl FnMut(&mut Tpe, &mut Random) -> Vec<usize>) -> f64 {
        let mut chance = Random::new(seed ^ 0xabcd);
        let mut tpe = Tpe::new(SIZES.to_vec(), 10, seed);
        for _ in 0..LOOKS {
            let point = next(&mut tpe, &mut chance);
            // About normal, with a deviation of 0.08: 40 items.
            let noise: f64 = (0..12).map(|_| chance.unit() - 0.5).sum::<f64>() * 0.08;
            let score = worth(&point) + noise;
            tpe.tell(point, score);
        }
        worth(&tpe.ranking()[0].0)
    }

    #[test]
    fn on_a_known_function_it_finds_more_than_blind_search() {
        let seeds = 200;
        let (mut ours, mut blind, mut won, mut lost) = (0.0, 0.0, 0, 0);
        for seed in 0..seeds {
            let a = search(seed, |tpe, _| tpe.suggest());
            let b = search(seed, |tpe, _| tpe.blind());
            (ours, blind) = (ours + a / seeds as f64, blind + b / seeds as f64);
            (won, lost) = (won + u32::from(a > b), lost + u32::from(b > a));
        }
        assert!(ours > blind + 0.1, "mean worth {ours:.3} against {blind:.3}");
        assert!(won > 2 * lost, "{won} won, {lost} lost");
    }

    #[test]
    fn the_first_suggestions_leave_no_category_out() {
        let mut tpe = Tpe::new(SIZES.to_vec(), 16, 5);
        let points: Vec<Vec<usize>> = (0..16).map(|_| tpe.suggest()).collect();
        for (d, size) in SIZES.into_iter().enumerate() {
            let seen: std::collections::BTreeSet<usize> = points.iter().map(|point| point[d]).collect();
            assert_eq!(seen.len(), size);
        }
    }

    #[test]
    fn one_category_and_one_point_are_no_trouble() {
        let mut tpe = Tpe::new(vec![1, 1], 0, 1);
        for _ in 0..5 {
            let point = tpe.suggest();
            assert_eq!(point, [0, 0]);
            tpe.tell(point, 0.5);
        }
        assert_eq!(tpe.ranking(), [(vec![0, 0], 0.5, 5)]);
    }

    #[test]
    fn the_same_seed_makes_the_same_search() {
        let path = |seed| {
            let mut tpe = Tpe::new(SIZES.to_vec(), 5, seed);
            let points: Vec<Vec<usize>> = (0..20)
                .map(|_| {
                    let point = tpe.suggest();
                    tpe.tell(point.clone(), worth(&point));
                    point
                })
                .collect();
            points
        };
        assert_eq!(path(1), path(1));
        assert_ne!(path(1), path(2));
    }
}
