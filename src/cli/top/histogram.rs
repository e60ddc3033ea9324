//! A histogram of the metrics page: read, subtracted, and asked for quantiles as Prometheus' `histogram_quantile` does.

/// Counts up to each bound, in ascending order; the last bound is infinite.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// The histogram `name` of a page, all its series together.
    pub(super) fn read(page: &str, name: &str) -> Histogram {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for line in page.lines() {
            let Some(rest) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix("_bucket{")) else { continue };
            let bound = rest.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
            let count = rest.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
            let (Some(bound), Some(count)) = (bound.and_then(bound_of), count) else { continue };
            match buckets.iter_mut().find(|(b, _)| *b == bound) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Histogram { buckets }
    }

    /// What came since `before`; everything, where this one has counted from nothing since.
    pub(super) fn since(&self, before: &Histogram) -> Histogram {
        let of = |bound: f64| before.buckets.iter().find(|(b, _)| *b == bound).map_or(0, |(_, count)| *count);
        let less: Option<Vec<_>> =
            self.buckets.iter().map(|&(bound, count)| Some((bound, count.checked_sub(of(bound))?))).collect();
        less.map_or_else(|| self.clone(), |buckets| Histogram { buckets })
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.last().map_or(0, |(_, count)| *count)
    }

    /// The value that a share `q` of all is at most, taken to lie evenly between the bounds; the largest finite bound
    /// for what lies beyond it. `None` where nothing was counted.
    pub(super) fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let at = self.buckets.iter().position(|&(_, count)| count > 0 && count as f64 >= rank)?;
        let (low, below) = at.checked_sub(1).map_or((0.0, 0), |before| self.buckets[before]);
        let (high, count) = self.buckets[at];
        if !high.is_finite() {
            return Some(low);
        }
        Some(low + (high - low) * (rank - below as f64) / (count - below).max(1) as f64)
    }
}

fn bound_of(text: &str) -> Option<f64> {
    if text == "+Inf" { Some(f64::INFINITY) } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# TYPE x_seconds histogram\n\
        x_seconds_bucket{route=\"a\",le=\"0.1\"} 10\nx_seconds_bucket{route=\"a\",le=\"0.2\"} 20\n\
        x_seconds_bucket{route=\"a\",le=\"+Inf\"} 20\nx_seconds_bucket{le=\"0.1\"} 0\nx_seconds_bucket{le=\"0.2\"} 0\n\
        x_seconds_bucket{le=\"+Inf\"} 5\nx_seconds_sum 3\nx_seconds_count 5\nx_seconds_more_bucket{le=\"0.1\"} 9\n";

    #[test]
    fn quantiles_lie_evenly_between_the_bounds() {
        let all = Histogram::read(PAGE, "x_seconds");
        assert_eq!(all.buckets, [(0.1, 10), (0.2, 20), (f64::INFINITY, 25)]);
        assert!((all.quantile(0.2).unwrap() - 0.05).abs() < 1e-9);
        assert!((all.quantile(0.6).unwrap() - 0.15).abs() < 1e-9);
        assert_eq!(all.quantile(0.99), Some(0.2), "beyond the last bound nothing is known");
        assert_eq!(Histogram::read(PAGE, "y_seconds").quantile(0.5), None);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let before = Histogram { buckets: vec![(0.1, 4), (f64::INFINITY, 5)] };
        let now = Histogram { buckets: vec![(0.1, 4), (f64::INFINITY, 8)] };
        assert_eq!(now.since(&before).buckets, [(0.1, 0), (f64::INFINITY, 3)]);
        assert_eq!(before.since(&now), before, "it began again");
        assert_eq!(now.since(&now).quantile(0.5), None);
    }
}
