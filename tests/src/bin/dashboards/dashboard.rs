//! A dashboard of Grafana, as far as these use it.

use anyhow::Result;
use serde::Deserialize;
use tart_kubelet_tests::prometheus::{Client, Range};

use super::panel;
use super::svg::{Rectangle, Svg};
use super::unit::Unit;

/// A dashboard.
#[derive(Debug, Deserialize)]
pub(crate) struct Dashboard {
    pub(crate) title: String,
    pub(crate) panels: Vec<Panel>,
}

/// A panel, with what it asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Panel {
    pub(crate) title: String,
    #[serde(rename = "type")]
    pub(crate) kind: PanelKind,
    pub(crate) grid_pos: Grid,
    pub(crate) field_config: FieldConfig,
    #[serde(default)]
    pub(crate) options: Options,
    pub(crate) targets: Vec<Target>,
}

/// How a panel shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PanelKind {
    Stat,
    Gauge,
    Timeseries,
    Table,
}

/// Where a panel is: columns of 24, and rows.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Grid {
    x: f64,
    y: f64,
    w: f64,
    h: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct FieldConfig {
    pub(crate) defaults: Defaults,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Defaults {
    pub(crate) unit: Unit,
    #[serde(default)]
    pub(crate) thresholds: Thresholds,
    pub(crate) max: Option<f64>,
}

/// From which value on a figure has which colour.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Thresholds {
    #[serde(default)]
    pub(crate) steps: Vec<Threshold>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Threshold {
    pub(crate) color: String,
    pub(crate) value: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Options {
    pub(crate) text_mode: Option<String>,
}

/// An expression, and how its series are called.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Target {
    expr: String,
    #[serde(default)]
    pub(crate) legend_format: String,
}

impl Target {
    /// The expression with everything selected.
    pub(crate) fn expression(&self) -> String {
        self.expr.replace("$instance", ".*").replace("$fleet", ".*")
    }
}

const WIDTH: f64 = 1200.0;
const ROW: f64 = 30.0;
const HEAD: f64 = 44.0;
const GAP: f64 = 4.0;

impl Dashboard {
    /// The picture, and the titles of panels that have nothing to show.
    pub(crate) async fn draw(&self, client: Client, range: Range) -> Result<(String, Vec<String>)> {
        let rows = self.panels.iter().map(|panel| panel.grid_pos.y + panel.grid_pos.h).fold(0.0, f64::max);
        let mut svg = Svg::new(WIDTH, HEAD + rows * ROW + GAP);
        svg.text(12.0, 28.0, &self.title, "title", "start");
        let mut empty = Vec::new();
        for panel in &self.panels {
            let Grid { x, y, w, h } = panel.grid_pos;
            let column = WIDTH / 24.0;
            let place = Rectangle {
                x: x * column + GAP,
                y: HEAD + y * ROW + GAP,
                width: w * column - 2.0 * GAP,
                height: h * ROW - 2.0 * GAP,
            };
            if !panel::draw(panel, client, range, place, &mut svg).await? {
                empty.push(panel.title.clone());
            }
        }
        Ok((svg.finish(), empty))
    }
}
