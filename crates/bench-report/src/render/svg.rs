//! Plots as SVG, drawn at a width of 420 units so that their text is readable on a phone.
//!
//! * Colours come from the page's style sheet by class, so a plot follows the page's light or dark theme.
//! * Each side has a colour, a dash and a separate marker.
//! * Each plot has a title and a description for screen readers.

use super::axis::FittedAxis;
use crate::number;
use crate::page::{Figure, LinePlot, Owner, Point, Series};
use maud::{Markup, html};
use std::fmt::Write;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 40.0;
/// More points than pixels add no information.
const POINTS_MAX: usize = 400;

/// Draws a figure. `id` is unique within the page.
pub fn draw(figure: &Figure, id: &str) -> Markup {
    let lines = &figure.plot;
    let points = || lines.series.iter().flat_map(|series| &series.points);
    let heights = points().flat_map(|point| {
        let (low, high) = point.spread.unwrap_or((point.y, point.y));
        [point.y, low, high]
    });
    let x = FittedAxis::new(lines.x.scale, points().map(|point| point.x));
    let y = FittedAxis::new(lines.y.scale, heights);
    let frame = PlotAxes { x, y };
    html! {
        svg.plot viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-labelledby={ (id) "-t " (id) "-d" } {
            title id={ (id) "-t" } { (figure.title) }
            desc id={ (id) "-d" } { (figure.description) }
            (frame.axes(lines))
            @for series in &lines.series { (frame.series(series)) }
        }
    }
}

/// The two axes of a plot, and their position.
struct PlotAxes {
    x: FittedAxis,
    y: FittedAxis,
}

impl PlotAxes {
    fn left(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self, lines: &LinePlot) -> Markup {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        html! {
            @for tick in &self.y.ticks {
                @let top = self.top(tick.value);
                path.grid d=(format!("M{LEFT} {top:.1}H{right}")) {}
                (text("tick end", LEFT - 6.0, top + 4.0, &tick.label))
            }
            @for tick in &self.x.ticks {
                @let left = self.left(tick.value);
                path.grid d=(format!("M{left:.1} {TOP}V{bottom}")) {}
                // Centred labels would overflow at the ends.
                @if left > right - 14.0 {
                    (text("tick end", WIDTH - 1.0, bottom + 15.0, &tick.label))
                } @else {
                    (text("tick mid", left, bottom + 15.0, &tick.label))
                }
            }
            path.axis d=(format!("M{LEFT} {TOP}V{bottom}H{right}")) {}
            (text("label mid", (LEFT + right) / 2.0, HEIGHT - 6.0, &lines.x.label))
            (text("label", 2.0, 12.0, &lines.y.label))
        }
    }

    fn series(&self, series: &Series) -> Markup {
        let shown = thinned(&series.points);
        let points: Vec<_> = shown.iter().map(|point| (self.left(point.x), self.top(point.y))).collect();
        html! {
            g class=(class(series)) {
                title { (series.name) }
                path.line d=(line(&points)) {}
                @if series.stroke.is_marked() || shown.len() == 1 {
                    @for point in &shown { (self.marker(series, point)) }
                }
            }
        }
    }

    fn marker(&self, series: &Series, point: &Point) -> Markup {
        let (left, top) = (self.left(point.x), self.top(point.y));
        let words = format!("{}: {} at {}", series.name, number::quantity(point.y), number::count(point.x));
        html! {
            @if let Some((low, high)) = point.spread {
                path.bar d=(format!("M{left:.1} {:.1}V{:.1}", self.top(low), self.top(high))) {}
            }
            (mark(series.owner, left, top, &words))
        }
    }
}

/// Encodes the path of a line. A page has thousands of points, so points are relative, in tenths of a unit,
/// and interior points of level parts are dropped.
fn line(points: &[(f64, f64)]) -> String {
    let tenths: Vec<_> =
        points.iter().map(|(x, y)| ((x * 10.0).round() as i64, (y * 10.0).round() as i64)).collect();
    let is_within = |at: usize| {
        tenths.get(at.wrapping_sub(1)..at + 2).is_some_and(|near| near.iter().all(|(_, y)| *y == near[0].1))
    };
    let corners = (0..tenths.len()).filter(|at| !is_within(*at)).map(|at| tenths[at]);
    let (mut path, mut last) = (String::new(), None);
    for (x, y) in corners {
        let (command, from) = last.map_or(('M', (0, 0)), |last| ('l', last));
        let (right, down) = ((x - from.0) as f64 / 10.0, (y - from.1) as f64 / 10.0);
        write!(path, "{command}{right} {down}").expect("a String grows");
        last = Some((x, y));
    }
    path
}

fn text(class: &str, left: f64, baseline: f64, words: &str) -> Markup {
    html! { text class=(class) x=(format!("{left:.1}")) y=(format!("{baseline:.1}")) { (words) } }
}

/// Draws a circle for the first system, a square for the second, a diamond for a published value.
pub fn mark(owner: Owner, left: f64, top: f64, words: &str) -> Markup {
    let place = |value: f64| format!("{value:.1}");
    let title = html! { @if !words.is_empty() { title { (words) } } };
    html! {
        @match owner {
            Owner::A => { circle.mark cx=(place(left)) cy=(place(top)) r="3.6" { (title) } }
            Owner::B => {
                rect.mark x=(place(left - 3.3)) y=(place(top - 3.3)) width="6.6" height="6.6" { (title) }
            }
            Owner::Published => {
                path.mark d=(format!("M{left:.1} {top:.1}m0 -4.6l4.6 4.6l-4.6 4.6l-4.6 -4.6z")) { (title) }
            }
        }
    }
}

/// Returns the CSS classes for the colour and dash of a line.
pub fn class(series: &Series) -> String {
    let dashed = if series.stroke.is_dashed() { " second" } else { "" };
    format!("{}{dashed}", series.owner.class())
}

/// Reduces to about [`POINTS_MAX`] points: the first and the highest point of each interval.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Axis, Scale, Stroke};

    fn lines(points: Vec<Point>, stroke: Stroke) -> Figure {
        let axis = |scale| Axis { label: "a & b".into(), scale };
        let series = Series { name: "one <1>".into(), owner: Owner::B, stroke, points };
        let plot = LinePlot { x: axis(Scale::Percentile), y: axis(Scale::Linear), series: vec![series] };
        Figure { title: "T".into(), caption: "C".into(), description: "D".into(), plot }
    }

    #[test]
    fn a_plot_names_itself_and_escapes_its_words() {
        let points = vec![Point::new(1.0, 1.0), Point { spread: Some((2.0, 4.0)), ..Point::new(100.0, 3.0) }];
        let svg = draw(&lines(points, Stroke::Marked), "f1").into_string();
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
            let svg = draw(&lines(points, Stroke::Plain), "f").into_string();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn a_line_is_said_by_distances_and_level_parts_by_their_ends() {
        let points = [(50.0, 187.04), (52.5, 84.6), (60.0, 84.6), (70.0, 84.6), (80.01, 84.6), (81.0, 90.0)];
        assert_eq!(line(&points), "M50 187l2.5 -102.4l27.5 0l1 5.4");
        assert_eq!(line(&points[..1]), "M50 187");
    }

    #[test]
    fn thinning_keeps_the_peak() {
        let mut points: Vec<_> = (0..10_000).map(|x| Point::new(f64::from(x), 1.0)).collect();
        points[7_777].y = 99.0;
        let kept = thinned(&points);
        assert!(kept.len() <= POINTS_MAX + 2 && kept.iter().any(|point| point.y == 99.0), "{}", kept.len());
    }
}
