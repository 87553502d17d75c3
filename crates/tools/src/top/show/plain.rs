//! One picture as text: lines without trailing spaces, with or without colors.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use ratatui::text::Span;

use super::screen::Theme;

/// The lines of a picture.
pub fn text(buffer: &Buffer, theme: Theme) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let is_blank = |x: u16| buffer[(x, y)].symbol() == " ";
        let end = (area.left()..area.right()).rev().find(|x| !is_blank(*x)).map_or(area.left(), |x| x + 1);
        line(&mut text, buffer, y, end, theme);
        text.push('\n');
    }
    text
}

fn line(text: &mut String, buffer: &Buffer, y: u16, end: u16, theme: Theme) {
    let mut x = buffer.area.left();
    let mut set = "";
    while x < end {
        let cell = &buffer[(x, y)];
        let wanted = if theme == Theme::Colored { codes(cell) } else { "" };
        if wanted != set {
            let reset = if set.is_empty() { "" } else { "\u{1b}[0m" };
            let begin = if wanted.is_empty() { String::new() } else { format!("\u{1b}[{wanted}m") };
            let _always_written = write!(text, "{reset}{begin}");
            set = wanted;
        }
        text.push_str(cell.symbol());
        // The columns after the first one of a wide character are empty.
        x += u16::try_from(Span::raw(cell.symbol()).width()).unwrap_or(1).max(1);
    }
    if !set.is_empty() {
        text.push_str("\u{1b}[0m");
    }
}

/// Of SGR, for the few styles that the screen uses.
fn codes(cell: &Cell) -> &'static str {
    let (is_bold, is_dim) = (cell.modifier.contains(Modifier::BOLD), cell.modifier.contains(Modifier::DIM));
    match (cell.fg, is_bold, is_dim) {
        (Color::Red, ..) => "1;31",
        (Color::Green, ..) => "32",
        (Color::Cyan, ..) => "1;36",
        (_, true, _) => "1",
        (_, _, true) => "2",
        _ => "",
    }
}
