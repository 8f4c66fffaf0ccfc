//! How long things take, counted by how long they took at most.

use std::time::Duration;

use super::exposition::{Page, number};

/// Times in buckets, as Prometheus wants them.
#[derive(Debug)]
pub(crate) struct Histogram {
    /// Upper ends of the buckets.
    ends: &'static [Duration],
    counts: Vec<usize>,
    total: usize,
    sum: Duration,
}

impl Histogram {
    pub(crate) fn new(ends: &'static [Duration]) -> Self {
        Self { ends, counts: vec![0; ends.len()], total: 0, sum: Duration::ZERO }
    }

    pub(crate) fn add(&mut self, took: Duration) {
        for (count, end) in self.counts.iter_mut().zip(self.ends) {
            if took <= *end {
                *count += 1;
            }
        }
        self.total += 1;
        self.sum = self.sum.saturating_add(took);
    }

    /// Writes the figures of one set of labels; the family is begun already.
    pub(crate) fn write(&self, page: &mut Page, name: &str, labels: &[(&str, &str)]) {
        let bucket = format!("{name}_bucket");
        let mut sample = |end: &str, count: usize| {
            let mut labels = labels.to_vec();
            labels.push(("le", end));
            page.sample(&bucket, &labels, number(count));
        };
        for (count, end) in self.counts.iter().zip(self.ends) {
            sample(&end.as_secs_f64().to_string(), *count);
        }
        sample("+Inf", self.total);
        page.sample(&format!("{name}_sum"), labels, self.sum.as_secs_f64());
        page.sample(&format!("{name}_count"), labels, number(self.total));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_every_bucket_that_it_fits() {
        const ENDS: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
        let mut histogram = Histogram::new(&ENDS);
        for millis in [500, 501, 3000] {
            histogram.add(Duration::from_millis(millis));
        }
        let mut page = Page::default();
        histogram.write(&mut page, "a", &[("b", "c")]);
        assert_eq!(
            page.text(),
            "a_bucket{b=\"c\",le=\"0.5\"} 1\na_bucket{b=\"c\",le=\"2\"} 2\na_bucket{b=\"c\",le=\"+Inf\"} 3\n\
             a_sum{b=\"c\"} 4.001\na_count{b=\"c\"} 3\n"
        );
    }
}
