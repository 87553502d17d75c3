//! Plots as SVG, drawn for a width of 420 units so that their letters are readable on a phone.
//!
//! * Colours come from the page's style sheet by class, so a plot is light or dark as its page is.
//! * Who is who shows three times: by colour, by dash, by marker.
//! * Each plot carries its title and its description for whoever does not see it.

use super::axis::Fitted;
use super::escape::escape;
use super::number;
use super::page::{Figure, Lines, Point, Series, Who};
use std::fmt::Write;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 40.0;
/// More points than pixels say nothing more.
const POINTS_MAX: usize = 400;

/// The figure's plot. `id` is unique within the page.
pub fn draw(figure: &Figure, id: &str) -> String {
    let lines = &figure.plot;
    let points = || lines.series.iter().flat_map(|series| &series.points);
    let heights = points().flat_map(|point| {
        let (low, high) = point.spread.unwrap_or((point.y, point.y));
        [point.y, low, high]
    });
    let x = Fitted::new(lines.x.scale, points().map(|point| point.x));
    let y = Fitted::new(lines.y.scale, heights);
    let frame = Frame { x, y };
    let mut out = String::new();
    let (title, description) = (escape(&figure.title), escape(&figure.description));
    put(
        &mut out,
        format_args!(
            "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>"
        ),
    );
    frame.draw_axes(&mut out, lines);
    for series in &lines.series {
        frame.draw_series(&mut out, series);
    }
    out.push_str("</svg>");
    out
}

/// The two axes of a plot, and where they lie.
struct Frame {
    x: Fitted,
    y: Fitted,
}

impl Frame {
    fn left(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw_axes(&self, out: &mut String, lines: &Lines) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for tick in &self.y.ticks {
            let top = self.top(tick.value);
            put(out, format_args!("<path class=\"grid\" d=\"M{LEFT} {top:.1}H{right}\"/>"));
            let (left, baseline) = (LEFT - 6.0, top + 4.0);
            put(
                out,
                format_args!(
                    "<text class=\"tick end\" x=\"{left}\" y=\"{baseline:.1}\">{}</text>",
                    tick.label
                ),
            );
        }
        for tick in &self.x.ticks {
            let left = self.left(tick.value);
            put(out, format_args!("<path class=\"grid\" d=\"M{left:.1} {TOP}V{bottom}\"/>"));
            // Labels at the ends would be cut off if they were centred.
            let class = if left > right - 14.0 { "tick end" } else { "tick mid" };
            let left = if left > right - 14.0 { WIDTH - 1.0 } else { left };
            let baseline = bottom + 15.0;
            put(
                out,
                format_args!(
                    "<text class=\"{class}\" x=\"{left:.1}\" y=\"{baseline}\">{}</text>",
                    tick.label
                ),
            );
        }
        put(out, format_args!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>"));
        let (x_label, y_label) = (escape(&lines.x.label), escape(&lines.y.label));
        let (middle, baseline) = ((LEFT + right) / 2.0, HEIGHT - 6.0);
        put(out, format_args!("<text class=\"label mid\" x=\"{middle}\" y=\"{baseline}\">{x_label}</text>"));
        put(out, format_args!("<text class=\"label\" x=\"2\" y=\"12\">{y_label}</text>"));
    }

    fn draw_series(&self, out: &mut String, series: &Series) {
        let who = class(series.who);
        let shown = thinned(&series.points);
        let mut path = String::new();
        for (index, point) in shown.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            put(&mut path, format_args!("{command}{:.1} {:.1}", self.left(point.x), self.top(point.y)));
        }
        let dashed = if series.stroke.is_dashed() { " second" } else { "" };
        let name = escape(&series.name);
        put(
            out,
            format_args!(
                "<g class=\"{who}{dashed}\"><title>{name}</title><path class=\"line\" d=\"{path}\"/>"
            ),
        );
        if series.stroke.is_marked() || shown.len() == 1 {
            for point in &shown {
                self.draw_marker(out, series, point);
            }
        }
        out.push_str("</g>");
    }

    fn draw_marker(&self, out: &mut String, series: &Series, point: &Point) {
        let (left, top) = (self.left(point.x), self.top(point.y));
        if let Some((low, high)) = point.spread {
            let (low, high) = (self.top(low), self.top(high));
            put(out, format_args!("<path class=\"bar\" d=\"M{left:.1} {low:.1}V{high:.1}\"/>"));
        }
        let words = format!("{}: {} at {}", series.name, number::quantity(point.y), number::count(point.x));
        out.push_str(&mark(series.who, left, top, &words));
    }
}

/// A circle for the first system, a square for the second, a diamond for what was published.
pub fn mark(who: Who, left: f64, top: f64, words: &str) -> String {
    let words = escape(words);
    let title = if words.is_empty() { words } else { format!("<title>{words}</title>") };
    match who {
        Who::A => {
            format!("<circle class=\"mark\" cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3.6\">{title}</circle>")
        }
        Who::B => {
            let (left, top) = (left - 3.3, top - 3.3);
            format!(
                "<rect class=\"mark\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"6.6\" height=\"6.6\">{title}</rect>"
            )
        }
        Who::Published => {
            format!(
                "<path class=\"mark\" d=\"M{left:.1} {top:.1}m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z\">{title}</path>"
            )
        }
    }
}

/// At most about [`POINTS_MAX`] points, peaks kept: of each stretch the first point and the highest.
fn thinned(points: &[Point]) -> Vec<Point> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil(POINTS_MAX / 2);
    let mut kept = Vec::new();
    for stretch in points.chunks(stretch) {
        let highest = (0..stretch.len()).max_by(|&a, &b| stretch[a].y.total_cmp(&stretch[b].y)).unwrap_or(0);
        kept.push(stretch[0]);
        if highest > 0 {
            kept.push(stretch[highest]);
        }
    }
    kept
}

pub fn class(who: Who) -> &'static str {
    match who {
        Who::Published => "published",
        Who::A => "a",
        Who::B => "b",
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String grows");
}

#[cfg(test)]
mod tests {
    use super::super::page::{Axis, Scale, Stroke};
    use super::*;

    fn lines(points: Vec<Point>, stroke: Stroke) -> Figure {
        let axis = |scale| Axis { label: "a & b".into(), scale };
        let series = Series { name: "one <1>".into(), who: Who::B, stroke, points };
        let plot = Lines { x: axis(Scale::Percentile), y: axis(Scale::Linear), series: vec![series] };
        Figure { title: "T".into(), caption: "C".into(), description: "D".into(), plot }
    }

    #[test]
    fn a_plot_names_itself_and_escapes_its_words() {
        let points = vec![Point::new(1.0, 1.0), Point { spread: Some((2.0, 4.0)), ..Point::new(100.0, 3.0) }];
        let svg = draw(&lines(points, Stroke::Marked), "f1");
        for expected in [
            "aria-labelledby=\"f1-t f1-d\"",
            "<title id=\"f1-t\">T</title><desc id=\"f1-d\">D</desc>",
            "a &amp; b",
            "one &lt;1&gt;: 3.00 at 100",
            "class=\"b\"",
            "<rect class=\"mark\"",
            "class=\"bar\"",
        ] {
            assert!(svg.contains(expected), "{expected} in {svg}");
        }
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
    }

    #[test]
    fn no_number_of_a_plot_is_ever_infinite() {
        for points in [vec![], vec![Point::new(f64::NAN, f64::INFINITY)], vec![Point::new(1.0, 0.0)]] {
            let svg = draw(&lines(points, Stroke::Plain), "f");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn thinning_keeps_the_peak() {
        let mut points: Vec<_> = (0..10_000).map(|x| Point::new(f64::from(x), 1.0)).collect();
        points[7_777].y = 99.0;
        let kept = thinned(&points);
        assert!(kept.len() <= POINTS_MAX + 2 && kept.iter().any(|point| point.y == 99.0), "{}", kept.len());
    }
}
