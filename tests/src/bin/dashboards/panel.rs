//! A panel: a figure, a gauge, series over time or a table.

use std::fmt::Write as _;

use anyhow::Result;
use tart_kubelet_tests::prometheus::{Client, Range};

use super::chart;
use super::dashboard::{Panel, PanelKind};
use super::data::{self, Series};
use super::svg::{Rectangle, Svg};

const GREEN: &str = "#1a7f37";
const RED: &str = "#cf222e";
const GREY: &str = "#8c959f";
const TABLE_ROW: f64 = 18.0;
const TABLE_HEAD: f64 = 46.0;

/// Draws a panel; whether there was anything to show.
pub(crate) async fn draw(
    panel: &Panel,
    client: Client,
    range: Range,
    place: Rectangle,
    svg: &mut Svg,
) -> Result<bool> {
    svg.frame(place);
    svg.text(place.x + 10.0, place.y + 18.0, &panel.title, "panel", "start");
    let series = match panel.kind {
        PanelKind::Timeseries => data::over(&panel.targets, client, range).await?,
        PanelKind::Stat | PanelKind::Gauge | PanelKind::Table => {
            data::at_end(&panel.targets, client, range).await?
        }
    };
    if series.is_empty() {
        svg.text(place.x + place.width / 2.0, place.y + place.height / 2.0 + 8.0, "No data", "", "middle");
        return Ok(false);
    }
    match panel.kind {
        PanelKind::Timeseries => chart::draw(&series, panel.field_config.defaults.unit, range, place, svg),
        PanelKind::Stat => stat(panel, &series, place, svg),
        PanelKind::Gauge => gauge(panel, &series, place, svg),
        PanelKind::Table => table(panel, &series, place, svg),
    }
    Ok(true)
}

/// The colour of a value by the panel's thresholds.
fn color(panel: &Panel, value: f64) -> &'static str {
    let steps = &panel.field_config.defaults.thresholds.steps;
    let reached = steps.iter().rev().find(|step| step.value.is_none_or(|from| value >= from));
    match reached.map(|step| step.color.as_str()) {
        Some("red") => RED,
        None | Some("green") => GREEN,
        Some(_) => GREY,
    }
}

fn stat(panel: &Panel, series: &[Series], place: Rectangle, svg: &mut Svg) {
    let by_name = panel.options.text_mode.as_deref() == Some("name");
    let unit = panel.field_config.defaults.unit;
    let text = |one: &Series| {
        if by_name { one.name.clone() } else { one.last().map(|value| unit.write(value)).unwrap_or_default() }
    };
    #[expect(clippy::cast_precision_loss, reason = "a few figures")]
    let width = place.width / series.len() as f64;
    for (one, number) in series.iter().zip(0u16..) {
        let x = place.x + width * (f64::from(number) + 0.5);
        svg.figure(
            x,
            place.y + place.height / 2.0 + 24.0,
            &text(one),
            color(panel, one.last().unwrap_or(0.0)),
        );
    }
}

fn gauge(panel: &Panel, series: &[Series], place: Rectangle, svg: &mut Svg) {
    let defaults = &panel.field_config.defaults;
    let value = series.first().and_then(Series::last).unwrap_or(0.0);
    let share = (value / defaults.max.unwrap_or(1.0)).clamp(0.0, 1.0);
    let (x, y) = (place.x + place.width / 2.0, place.y + place.height - 24.0);
    let radius = (place.height - 60.0).min(place.width / 2.5);
    let arc = |share: f64| {
        let angle = std::f64::consts::PI * (1.0 - share);
        let (end_x, end_y) = (x + radius * angle.cos(), y - radius * angle.sin());
        let mut path = String::new();
        let _ =
            write!(path, "M{:.1} {y:.1} A{radius:.1} {radius:.1} 0 0 1 {end_x:.1} {end_y:.1}", x - radius);
        path
    };
    svg.arc(&arc(1.0), "#eaeef2");
    svg.arc(&arc(share), color(panel, value));
    svg.figure(x, y, &defaults.unit.write(value), color(panel, value));
}

/// A row for each series: its labels, and its value.
fn table(panel: &Panel, series: &[Series], place: Rectangle, svg: &mut Svg) {
    let mut columns: Vec<&str> = Vec::new();
    for (label, _) in series.iter().flat_map(|one| &one.labels) {
        if !columns.contains(&label.as_str()) {
            columns.push(label);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a few columns")]
    let width = (place.width - 20.0) / (columns.len() + 1) as f64;
    let x_of = |column: usize| {
        #[expect(clippy::cast_precision_loss, reason = "a few columns")]
        let column = column as f64;
        place.x + 10.0 + width * column
    };
    let mut y = place.y + TABLE_HEAD;
    for (number, column) in columns.iter().copied().chain(["Value"]).enumerate() {
        svg.text(x_of(number), y, column, "head", "start");
    }
    for one in series {
        svg.grid((place.x + 10.0, y + 5.0), (place.x + place.width - 10.0, y + 5.0));
        y += TABLE_ROW;
        if y > place.y + place.height - 4.0 {
            break;
        }
        for (number, column) in columns.iter().enumerate() {
            let value = one.labels.iter().find(|(label, _)| label == column);
            svg.text(
                x_of(number),
                y,
                value.map(|(_, value)| value.as_str()).unwrap_or_default(),
                "",
                "start",
            );
        }
        let value = one.last().map(|value| panel.field_config.defaults.unit.write(value)).unwrap_or_default();
        svg.text(x_of(columns.len()), y, &value, "", "start");
    }
}
