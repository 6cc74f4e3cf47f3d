//! Line charts as SVG, with nothing but text: readable in a diff and shown by every browser.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;
/// Lines on each axis, about.
const TICKS: f64 = 6.0;
/// Told apart also by those who see few colours, and by their markers on paper.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"];

/// One curve.
pub struct Curve {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub dashed: bool,
}

/// A chart; both axes begin at zero.
pub struct Chart {
    pub title: String,
    pub x: String,
    pub y: String,
    pub curves: Vec<Curve>,
}

/// 1, 2 or 5 times a power of ten, so that about `TICKS` of it reach `most`.
fn step(most: f64) -> f64 {
    let raw = (most / TICKS).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(raw.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw)
        .unwrap_or(10.0 * power)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

impl Chart {
    /// The chart's file.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let most_x = points().map(|point| point.0).fold(0.0, f64::max).max(1e-9);
        let most_y = points().map(|point| point.1).fold(0.0, f64::max).max(1e-9);
        let (step_x, step_y) = (step(most_x), step(most_y));
        let end_y = (most_y / step_y).ceil() * step_y;
        let at_x = |x: f64| LEFT + x / most_x * (WIDTH - LEFT - RIGHT);
        let at_y = |y: f64| HEIGHT - BOTTOM - y / end_y * (HEIGHT - TOP - BOTTOM);
        let mut svg = String::new();
        // Writing to a string does not fail.
        let mut line = |text: String| {
            let _ = writeln!(svg, "{text}");
        };
        line(format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"#
        ));
        line(format!(
            r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#
        ));
        line(format!(
            r#"<text x="{}" y="22" text-anchor="middle" font-size="14">{}</text>"#,
            WIDTH / 2.0,
            escaped(&self.title)
        ));
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in 0..=(end_y / step_y).round() as u32 {
            let value = f64::from(tick) * step_y;
            let y = at_y(value);
            line(format!(
                r##"<line x1="{LEFT}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#ddd"/>"##
            ));
            line(format!(
                r#"<text x="{}" y="{:.1}" text-anchor="end">{}</text>"#,
                LEFT - 8.0,
                y + 4.0,
                number(value)
            ));
        }
        for tick in 0..=(most_x / step_x + 1e-9).floor() as u32 {
            let value = f64::from(tick) * step_x;
            let x = at_x(value);
            line(format!(
                r#"<line x1="{x:.1}" y1="{bottom}" x2="{x:.1}" y2="{}" stroke="black"/>"#,
                bottom + 5.0
            ));
            line(format!(
                r#"<text x="{x:.1}" y="{}" text-anchor="middle">{}</text>"#,
                bottom + 19.0,
                number(value)
            ));
        }
        line(format!(
            r#"<path d="M{LEFT} {TOP} V{bottom} H{right}" fill="none" stroke="black"/>"#
        ));
        line(format!(
            r#"<text x="{}" y="{}" text-anchor="middle">{}</text>"#,
            (LEFT + right) / 2.0,
            HEIGHT - 16.0,
            escaped(&self.x)
        ));
        line(format!(
            r#"<text transform="translate(18 {}) rotate(-90)" text-anchor="middle">{}</text>"#,
            (TOP + bottom) / 2.0,
            escaped(&self.y)
        ));
        for (index, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let path: Vec<String> = curve
                .points
                .iter()
                .map(|(x, y)| format!("{:.1},{:.1}", at_x(*x), at_y(*y)))
                .collect();
            let dash = if curve.dashed {
                r#" stroke-dasharray="6 4""#
            } else {
                ""
            };
            line(format!(
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>"#,
                path.join(" ")
            ));
            for (x, y) in &curve.points {
                line(format!(
                    r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"/>"#,
                    at_x(*x),
                    at_y(*y)
                ));
            }
            let y = TOP + 8.0 + 16.0 * index as f64;
            let x = right - 190.0;
            line(format!(
                r#"<line x1="{x}" y1="{y}" x2="{}" y2="{y}" stroke="{colour}" stroke-width="2"{dash}/>"#,
                x + 26.0
            ));
            line(format!(
                r#"<text x="{}" y="{}">{}</text>"#,
                x + 32.0,
                y + 4.0,
                escaped(&curve.name)
            ));
        }
        line("</svg>".to_owned());
        svg
    }
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Chart, Curve, step};

    #[test]
    fn axes_are_divided_by_round_numbers() {
        for (most, expected) in [(100.0, 20.0), (6.0, 1.0), (0.7, 0.2), (1300.0, 500.0)] {
            assert!((step(most) - expected).abs() < 1e-9, "{most}: {}", step(most));
        }
    }

    #[test]
    fn a_chart_has_every_point_and_escapes_its_words() {
        let chart = Chart {
            title: "a < b & c".into(),
            x: "x".into(),
            y: "y".into(),
            curves: vec![Curve {
                name: "one".into(),
                points: vec![(0.0, 0.0), (1.0, 2.0), (2.0, 4.0)],
                dashed: true,
            }],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &lt; b &amp; c") && svg.contains("stroke-dasharray"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
