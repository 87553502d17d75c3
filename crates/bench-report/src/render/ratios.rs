//! The overview: a line per row of the suites, with a dot at the ratio and a bar over its spread; 1 is in
//! the middle.
//!
//! Built of boxes instead of SVG, to adapt to the width of the screen.

use super::axis::FittedAxis;
use crate::number;
use crate::page::{RatioRow, Ratios, Scale};
use maud::{Markup, html};

pub fn html(ratios: &Ratios) -> Markup {
    let rows = ratios.groups.iter().flat_map(|group| &group.rows);
    let reach = rows.flat_map(|row| [row.ratio, row.spread.0, row.spread.1]);
    let reach = reach.filter(|value| value.is_finite() && *value > 0.0);
    // Half and twice are always shown, so that a small lead looks small.
    let axis = FittedAxis::new(Scale::Log, reach.chain([0.5, 2.0]));
    let Ratios { title, caption, sides: [worse, better], groups } = ratios;
    let lines = format!("--one:{:.2}%;--lines:{}", axis.place(1.0) * 100.0, grid_lines(&axis));
    html! {
        figure.overview aria-label=(title) {
            h2 { (title) }
            div.ratios style=(lines) {
                p.sides { span.t { i { "◀ " (worse) } i { (better) " ▶" } } }
                p.scale aria-hidden="true" { span.t {
                    @for tick in &axis.ticks {
                        i style=(format!("left:{:.2}%", axis.place(tick.value) * 100.0)) { (tick.label) "×" }
                    }
                } }
                @for group in groups {
                    h3 { (group.title) }
                    ul { @for row in &group.rows { (line(row, &axis)) } }
                }
            }
            figcaption { span.caption { (caption) } }
        }
    }
}

fn line(row: &RatioRow, axis: &FittedAxis) -> Markup {
    let place = |value: f64| axis.place(value) * 100.0;
    let (low, high, middle) = (place(row.spread.0), place(row.spread.1), place(row.ratio));
    let width = (high - low).max(0.0);
    html! {
        li class=(row.verdict.class()) {
            span.name { (row.name) }
            span.t aria-hidden="true" {
                i.bar style=(format!("left:{low:.2}%;width:{width:.2}%")) {}
                i.dot style=(format!("left:{middle:.2}%")) {}
            }
            span.value { (number::ratio(row.ratio)) " " small { (row.verdict.word()) } }
        }
    }
}

/// Returns the vertical lines under all dots as a single background.
fn grid_lines(axis: &FittedAxis) -> String {
    let line = |value: f64, colour: &str| {
        let place = axis.place(value) * 100.0;
        format!("linear-gradient(var({colour}),var({colour})) {place:.2}% 0/1px 100% no-repeat")
    };
    let ticks = axis.ticks.iter().filter(|tick| tick.value != 1.0).map(|tick| line(tick.value, "--rule"));
    std::iter::once(line(1.0, "--muted")).chain(ticks).collect::<Vec<_>>().join(",")
}
