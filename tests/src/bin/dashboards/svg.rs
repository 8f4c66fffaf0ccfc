//! A picture, as text.

use std::fmt::Write as _;

/// A place in a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rectangle {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// A picture that is being drawn.
#[derive(Debug)]
pub(crate) struct Svg {
    text: String,
}

/// Readable on white and on black pages.
const STYLE: &str = "text{font-family:Helvetica,Arial,sans-serif;font-size:11px;fill:#57606a}.title{font-size:18px;font-weight:bold;fill:#24292f}\
.panel{font-size:12px;font-weight:bold;fill:#24292f}.figure{font-size:32px;font-weight:bold}.head{font-weight:bold}\
.grid{stroke:#d0d7de;stroke-width:0.5}.line{fill:none;stroke-width:1.5;stroke-linejoin:round}";

impl Svg {
    /// An empty picture.
    pub(crate) fn new(width: f64, height: f64) -> Self {
        let mut svg = Self { text: String::new() };
        svg.add(&format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">"#
        ));
        svg.add(&format!("<style>{STYLE}</style>"));
        svg.add(&format!(r##"<rect width="{width}" height="{height}" fill="#f6f8fa"/>"##));
        svg
    }

    /// The frame of a panel.
    pub(crate) fn frame(&mut self, place: Rectangle) {
        let Rectangle { x, y, width, height } = place;
        self.add(&format!(
            r##"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="3" fill="#fff" stroke="#d0d7de"/>"##
        ));
    }

    /// A word, with the class of its style; `anchor` is `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, x: f64, y: f64, text: &str, class: &str, anchor: &str) {
        let text = escape(text);
        self.add(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" class="{class}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    /// A large figure in a colour.
    pub(crate) fn figure(&mut self, x: f64, y: f64, text: &str, color: &str) {
        let text = escape(text);
        self.add(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" class="figure" text-anchor="middle" style="fill:{color}">{text}</text>"#
        ));
    }

    /// A thin line of the grid.
    pub(crate) fn grid(&mut self, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(&format!(r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="grid"/>"#));
    }

    /// A line through points; one point becomes a dot.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], color: &str) {
        if let [(x, y)] = points {
            self.add(&format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="2" fill="{color}"/>"#));
            return;
        }
        let points = points.iter().fold(String::new(), |mut text, (x, y)| {
            let _ = write!(text, "{x:.1},{y:.1} ");
            text
        });
        self.add(&format!(r#"<polyline points="{}" class="line" stroke="{color}"/>"#, points.trim_end()));
    }

    /// The colour of a series in its legend.
    pub(crate) fn swatch(&mut self, x: f64, y: f64, color: &str) {
        self.add(&format!(r#"<rect x="{x:.1}" y="{y:.1}" width="10" height="4" fill="{color}"/>"#));
    }

    /// The arc of a gauge, as an SVG path.
    pub(crate) fn arc(&mut self, path: &str, color: &str) {
        self.add(&format!(r#"<path d="{path}" fill="none" stroke="{color}" stroke-width="12"/>"#));
    }

    /// The picture.
    pub(crate) fn finish(mut self) -> String {
        self.add("</svg>");
        self.text
    }

    fn add(&mut self, element: &str) {
        self.text.push_str(element);
        self.text.push('\n');
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
