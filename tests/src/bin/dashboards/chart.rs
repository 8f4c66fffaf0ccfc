//! Series over time.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tart_kubelet_tests::prometheus::Range;

use super::data::Series;
use super::svg::{Rectangle, Svg};
use super::unit::Unit;

/// The colours of series, in their order.
pub(crate) const COLORS: [&str; 10] = [
    "#2da44e", "#0969da", "#bf8700", "#cf222e", "#8250df", "#1b7c83", "#bc4c00", "#bf3989", "#6e7781",
    "#4d2d00",
];
const HEAD: f64 = 30.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const LEGEND_LINE: f64 = 14.0;
const LEGEND_LINES: usize = 3;
/// What a letter of the legend takes.
const LETTER: f64 = 6.0;
const TICKS: usize = 4;
/// Values that are farther apart than so many steps have nothing between them.
const GAP: f64 = 2.5;

/// Draws series into a panel.
pub(crate) fn draw(series: &[Series], unit: Unit, range: Range, place: Rectangle, svg: &mut Svg) {
    let legend = legend_lines(series, place.width);
    #[expect(clippy::cast_precision_loss, reason = "a few lines")]
    let legend_height = legend.len() as f64 * LEGEND_LINE + 8.0;
    let plot = Rectangle {
        x: place.x + LEFT,
        y: place.y + HEAD,
        width: place.width - LEFT - RIGHT,
        height: place.height - HEAD - legend_height - 18.0,
    };
    let highest = series.iter().flat_map(|one| &one.values).map(|(_, value)| *value).fold(0.0, f64::max);
    let step = step_of(highest);
    let top = (highest / step).ceil().max(1.0) * step;
    let y_of = |value: f64| plot.y + plot.height * (1.0 - value.max(0.0) / top);
    let x_of = |time: f64| plot.x + plot.width * (time - range.start) / (range.end - range.start);

    let mut value = 0.0;
    while value <= top * 1.001 {
        let y = y_of(value);
        svg.grid((plot.x, y), (plot.x + plot.width, y));
        svg.text(plot.x - 6.0, y + 4.0, &unit.write(value), "", "end");
        value += step;
    }
    for tick in 0..=TICKS {
        #[expect(clippy::cast_precision_loss, reason = "a few ticks")]
        let time = range.start + (range.end - range.start) * tick as f64 / TICKS as f64;
        let anchor = if tick == TICKS { "end" } else { "middle" };
        svg.text(x_of(time), plot.y + plot.height + 14.0, &clock(time), "", anchor);
    }
    for (number, one) in series.iter().enumerate() {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut before = None;
        for (time, value) in &one.values {
            if before.is_some_and(|before| time - before > GAP * range.step) {
                svg.line(&points, color(number));
                points.clear();
            }
            points.push((x_of(*time), y_of(*value)));
            before = Some(*time);
        }
        svg.line(&points, color(number));
    }
    let mut y = plot.y + plot.height + 32.0;
    for line in legend {
        for (x, number, name) in line {
            svg.swatch(place.x + x, y - 6.0, color(number));
            svg.text(place.x + x + 14.0, y, &name, "", "start");
        }
        y += LEGEND_LINE;
    }
}

fn color(number: usize) -> &'static str {
    COLORS[number % COLORS.len()]
}

/// The distance between two lines of the grid: one, two or five of a power of ten.
fn step_of(highest: f64) -> f64 {
    if highest <= 0.0 {
        return 1.0;
    }
    let rough = highest / 4.0;
    let power = 10f64.powf(rough.log10().floor());
    let fits = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * power).find(|step| *step >= rough);
    fits.unwrap_or(rough)
}

/// The entries of the legend, by line: where each begins, its number and its name.
fn legend_lines(series: &[Series], width: f64) -> Vec<Vec<(f64, usize, String)>> {
    let mut lines: Vec<Vec<(f64, usize, String)>> = vec![Vec::new()];
    let mut x = 12.0;
    for (number, one) in series.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "a short name")]
        let length = one.name.chars().count() as f64 * LETTER + 26.0;
        if x + length > width && x > 12.0 {
            if lines.len() == LEGEND_LINES {
                break;
            }
            lines.push(Vec::new());
            x = 12.0;
        }
        if let Some(line) = lines.last_mut() {
            line.push((x, number, one.name.clone()));
        }
        x += length;
    }
    lines
}

/// The time of day, in UTC.
fn clock(time: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "seconds since 1970")]
    let time = Timestamp::from_second(time as i64).unwrap_or_default();
    time.to_zoned(TimeZone::UTC).strftime("%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_round_figures() {
        for (highest, step) in [(0.0, 1.0), (3.0, 1.0), (4.0, 1.0), (0.07, 0.02), (130.0, 50.0)] {
            assert!((step_of(highest) - step).abs() < 1e-9, "{highest}");
        }
    }
}
