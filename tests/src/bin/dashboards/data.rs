//! What Prometheus answers, as series with names.

use anyhow::{Context, Result};
use serde_json::Value;
use tart_kubelet_tests::prometheus::{Client, Range};

use super::dashboard::Target;

/// A series: its name, its labels, and its values by time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) values: Vec<(f64, f64)>,
}

impl Series {
    /// The last value.
    pub(crate) fn last(&self) -> Option<f64> {
        self.values.last().map(|(_, value)| *value)
    }
}

/// The series of all targets over a time.
pub(crate) async fn over(targets: &[Target], client: Client, range: Range) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    for target in targets {
        for answer in client.query_range(&target.expression(), range).await? {
            all.push(series(&answer, &answer["values"], target)?);
        }
    }
    all.retain(|series| !series.values.is_empty());
    Ok(all)
}

/// The series of all targets at the end of a time.
pub(crate) async fn at_end(targets: &[Target], client: Client, range: Range) -> Result<Vec<Series>> {
    let mut all = Vec::new();
    for target in targets {
        for answer in client.query(&target.expression(), Some(range.end)).await? {
            all.push(series(&answer, &Value::Array(vec![answer["value"].clone()]), target)?);
        }
    }
    Ok(all)
}

fn series(answer: &Value, values: &Value, target: &Target) -> Result<Series> {
    let labels: Vec<(String, String)> = answer["metric"]
        .as_object()
        .context("a series without labels")?
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect();
    let values = values.as_array().context("a series without values")?;
    let values = values.iter().map(|pair| {
        let time = pair[0].as_f64().context("a value without a time")?;
        let value: f64 = pair[1].as_str().context("a time without a value")?.parse()?;
        Ok((time, value))
    });
    let values: Vec<(f64, f64)> = values.collect::<Result<_>>()?;
    let name = name(&target.legend_format, &labels);
    Ok(Series { name, labels, values: values.into_iter().filter(|(_, value)| value.is_finite()).collect() })
}

/// `{{label}}` stands for the value of a label.
fn name(format: &str, labels: &[(String, String)]) -> String {
    labels
        .iter()
        .fold(format.to_owned(), |name, (label, value)| name.replace(&format!("{{{{{label}}}}}"), value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_series_has_its_name_by_its_labels_and_no_value_that_is_none() {
        let target = serde_json::from_value(json!({"expr": "up", "legendFormat": "{{zone}}: {{reason}}"}));
        let answer = json!({"metric": {"zone": "a", "reason": "b"}, "values": [[1, "2"], [2, "NaN"]]});
        let read = series(&answer, &answer["values"], &target.unwrap()).unwrap();
        assert_eq!((read.name.as_str(), read.values), ("a: b", vec![(1.0, 2.0)]));
    }
}
