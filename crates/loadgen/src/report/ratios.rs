//! The overview: one line per row of the suites, a dot where the ratio lies, a bar over its spread, 1 in the middle.
//!
//! Boxes instead of SVG, so that it flows with the width of the screen.

use super::axis::Fitted;
use super::escape::escape;
use super::number;
use super::page::{RatioRow, Ratios, Scale, Verdict};
use std::fmt::Write;

/// The overview as a figure.
pub fn html(ratios: &Ratios) -> String {
    let rows = ratios.groups.iter().flat_map(|group| &group.rows);
    let reach = rows.flat_map(|row| [row.ratio, row.spread.0, row.spread.1]);
    let reach = reach.filter(|value| value.is_finite() && *value > 0.0);
    // Half and twice are always there, so that a small lead looks small.
    let axis = Fitted::new(Scale::Log, reach.chain([0.5, 2.0]));
    let mut out = String::new();
    let mut put = |text: std::fmt::Arguments<'_>| out.write_fmt(text).expect("a String grows");
    let (title, caption) = (escape(&ratios.title), escape(&ratios.caption));
    let [worse, better] = ratios.sides.each_ref().map(|side| escape(side));
    put(format_args!("<figure class=\"overview\" aria-label=\"{title}\"><h2>{title}</h2>\n"));
    let one = axis.place(1.0) * 100.0;
    put(format_args!("<div class=\"ratios\" style=\"--one:{one:.2}%;--lines:{}\">\n", grid_lines(&axis)));
    put(format_args!("<p class=\"sides\"><span class=\"t\"><i>◀ {worse}</i><i>{better} ▶</i></span></p>\n"));
    put(format_args!("<p class=\"scale\" aria-hidden=\"true\"><span class=\"t\">"));
    for tick in &axis.ticks {
        put(format_args!("<i style=\"left:{:.2}%\">{}×</i>", axis.place(tick.value) * 100.0, tick.label));
    }
    put(format_args!("</span></p>\n"));
    for group in &ratios.groups {
        put(format_args!("<h3>{}</h3>\n<ul>\n", escape(&group.title)));
        for row in &group.rows {
            put(format_args!("{}\n", line(row, &axis)));
        }
        put(format_args!("</ul>\n"));
    }
    put(format_args!("</div><figcaption><span class=\"caption\">{caption}</span></figcaption></figure>\n"));
    out
}

fn line(row: &RatioRow, axis: &Fitted) -> String {
    let (name, ratio) = (escape(&row.name), number::ratio(row.ratio));
    let (class, word) = (verdict_class(row.verdict), row.verdict.word());
    let place = |value: f64| axis.place(value) * 100.0;
    let (low, high, middle) = (place(row.spread.0), place(row.spread.1), place(row.ratio));
    let width = (high - low).max(0.0);
    format!(
        "<li class=\"{class}\"><span class=\"name\">{name}</span><span class=\"t\" aria-hidden=\"true\">\
         <i class=\"bar\" style=\"left:{low:.2}%;width:{width:.2}%\"></i><i class=\"dot\" style=\"left:{middle:.2}%\"></i></span>\
         <span class=\"value\">{ratio} <small>{word}</small></span></li>"
    )
}

/// The vertical lines behind all dots, as one background.
fn grid_lines(axis: &Fitted) -> String {
    let line = |value: f64, colour: &str| {
        let place = axis.place(value) * 100.0;
        format!("linear-gradient(var({colour}),var({colour})) {place:.2}% 0/1px 100% no-repeat")
    };
    let ticks = axis.ticks.iter().filter(|tick| tick.value != 1.0).map(|tick| line(tick.value, "--rule"));
    std::iter::once(line(1.0, "--muted")).chain(ticks).collect::<Vec<_>>().join(",")
}

/// The style of a verdict, by the name it has in the style sheet.
pub fn verdict_class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Even => "even",
        Verdict::Neutral => "neutral",
    }
}
