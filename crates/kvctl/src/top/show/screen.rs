//! Screen layout: a function of the cluster's metrics and the user's choices.
//!
//! ```text
//!   leader, term, reachable members, cluster
//!   alarms, size of the data
//!   rates of all members, or of a single one
//!   views
//!   table, or tables of the overview
//!   keys, or the filter
//! ```
//!
//! Colors do not add information to the text.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::super::figures::{ClusterFigures, Headline, Scope};
use super::state::{HELP, ScreenState};
use super::table::{Mood, Table, TableRow};
use super::views::{ScreenView, VIEWS, holdings, totals};

pub const WIDTH_MIN: u16 = 60;
pub const HEIGHT_MIN: u16 = 15;
/// Height of the part above the tables.
const HEAD: u16 = 4;
/// Minimum height of a table in the overview: an empty line, the column names, a row.
const PART_MIN: u16 = 3;
/// Maximum rows of a table in the output of `--once`.
const LISTED_MAX: usize = 200;

/// Use of colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    Colored,
    Plain,
}

impl Theme {
    fn of(self, mood: Mood) -> Style {
        let (color, modifier) = match mood {
            Mood::Plain => return Style::new(),
            Mood::Good => (Color::Green, Modifier::empty()),
            Mood::Bad => (Color::Red, Modifier::BOLD),
            Mood::Faint => (Color::Reset, Modifier::DIM),
        };
        self.colored(color).add_modifier(modifier)
    }

    fn colored(self, color: Color) -> Style {
        match (self, color) {
            (Theme::Plain, _) | (_, Color::Reset) => Style::new(),
            (Theme::Colored, color) => Style::new().fg(color),
        }
    }

    fn title(self) -> Style {
        self.colored(Color::Cyan).add_modifier(Modifier::BOLD)
    }
}

struct Canvas<'a> {
    buffer: &'a mut Buffer,
    theme: Theme,
}

fn columns_of(text: &str) -> u16 {
    u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX)
}

/// Joins as many names and values as fit into `width`.
fn joined(begin: &str, values: Vec<(&str, String)>, width: u16) -> String {
    let mut line = String::new();
    for (name, value) in values {
        let separator = if line.is_empty() { begin } else { " · " };
        let next = format!("{line}{separator}{name} {value}");
        if columns_of(&next) > width {
            break;
        }
        line = next;
    }
    line
}

impl Canvas<'_> {
    /// Draws a text of at most `width` columns. A truncated text ends with an ellipsis.
    fn put(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let area = self.buffer.area;
        if y < area.top() || y >= area.bottom() || x < area.left() || x >= area.right() || width == 0 {
            return;
        }
        let width = width.min(area.right() - x);
        if columns_of(text) <= width {
            self.buffer.set_stringn(x, y, text, width.into(), style);
        } else {
            let (end, _) = self.buffer.set_stringn(x, y, text, usize::from(width) - 1, style);
            self.buffer.set_stringn(end, y, "…", 1, style);
        }
    }

    fn put_right(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let free = width.saturating_sub(columns_of(text));
        self.put(x + free, y, width - free, text, style);
    }

    fn headline(&mut self, y: u16, area: Rect, headline: &Headline) {
        let mood = if headline.is_well { Mood::Good } else { Mood::Bad };
        self.put(area.x, y, area.width, &headline.text, self.theme.of(mood));
    }

    /// Draws the part above the tables, without the views.
    fn head(&mut self, area: Rect, cluster: &ClusterFigures, scope: Scope) {
        self.headline(area.y, area, &cluster.headline());
        let alarms = cluster.alarms();
        self.headline(area.y + 1, area, &alarms);
        let used = columns_of(&alarms.text).min(area.width);
        let line = joined(" · ", holdings(cluster), area.width - used);
        self.put(area.x + used, area.y + 1, area.width - used, &line, Style::new());
        let line = joined("per second: ", totals(cluster, scope), area.width);
        self.put(area.x, area.y + 2, area.width, &line, Style::new());
    }

    /// Draws the view names, or only their numbers on a narrow screen. The current view is in brackets.
    fn views(&mut self, y: u16, area: Rect, state: &ScreenState, scope: &str) {
        let name = |is_named: bool, at: usize, view: ScreenView| match (view == state.view, is_named) {
            (true, _) => format!("[{} {}]", at + 1, view.name()),
            (false, true) => format!(" {} {} ", at + 1, view.name()),
            (false, false) => format!(" {} ", at + 1),
        };
        let line = |is_named| -> Vec<String> {
            VIEWS.iter().enumerate().map(|(at, view)| name(is_named, at, *view)).collect()
        };
        let scope_width = columns_of(scope);
        let width = |texts: &[String]| texts.iter().map(|text| columns_of(text)).sum::<u16>();
        let named = line(true);
        let texts = if width(&named) + scope_width < area.width { named } else { line(false) };
        let mut x = area.x;
        for (text, view) in texts.iter().zip(VIEWS) {
            let style = if view == state.view { self.theme.title() } else { Style::new() };
            self.put(x, y, area.right().saturating_sub(x), text, style);
            x = x.saturating_add(columns_of(text));
        }
        let left = area.right().saturating_sub(x + 1);
        self.put_right(x + 1, y, left, scope, self.theme.of(Mood::Faint));
    }

    /// Draws the column names, and as many rows as fit after skipping `skip`.
    fn table(&mut self, area: Rect, table: &Table, sorted: (usize, bool), skip: usize) {
        if area.height == 0 {
            return;
        }
        let fitted = table.fit(area.width);
        let shown = usize::from(area.height - 1);
        let is_cut = table.rows.len() > shown;
        let mut x = area.x;
        for (at, width) in &fitted {
            let column = &table.columns[*at];
            let mark = match (*at == sorted.0, sorted.1) {
                (true, false) => "▼",
                (true, true) => "▲",
                (false, _) => "",
            };
            let name = match *at == 0 && is_cut {
                true => format!("{}{mark} {shown} of {}", column.name, table.rows.len()),
                false => format!("{}{mark}", column.name),
            };
            let style = self.theme.title();
            match column.is_left {
                true => self.put(x, area.y, *width, &name, style),
                false => self.put_right(x, area.y, *width, &name, style),
            }
            x += width + 1;
        }
        if table.rows.is_empty() {
            let indent = 2.min(area.width);
            let width = area.width - indent;
            self.put(area.x + indent, area.y + 1, width, table.empty, self.theme.of(Mood::Faint));
        }
        for (row, y) in table.rows.iter().skip(skip).zip(area.y + 1..area.bottom()) {
            self.row(Rect { y, height: 1, ..area }, table, row, &fitted);
        }
    }

    fn row(&mut self, area: Rect, table: &Table, row: &TableRow, fitted: &[(usize, u16)]) {
        let style = self.theme.of(row.mood);
        let mut x = area.x;
        for (at, width) in fitted {
            if let (1.., Some(text)) = (*at, &row.instead) {
                return self.put(x, area.y, area.right() - x, text, style);
            }
            let Some(cell) = row.cells.get(*at) else { return };
            match table.columns[*at].is_left {
                true => self.put(x, area.y, *width, &cell.text, style),
                false => self.put_right(x, area.y, *width, &cell.text, style),
            }
            x += width + 1;
        }
    }

    fn keys(&mut self, y: u16, area: Rect, state: &ScreenState) {
        let order = state.order(state.active());
        let mark = if order.is_reversed { "▲" } else { "▼" };
        let sorted = state.active().columns().get(order.column).map_or("", |column| column.name);
        let paused = if state.is_paused { "PAUSED  " } else { "" };
        let (text, style) = if state.is_typing {
            (format!("/{}_   Enter keep · Esc drop", state.filter), self.theme.title())
        } else if state.filter.is_empty() {
            let text = format!("{paused}q quit  ? help  s sort: {sorted}{mark}  / filter  m member  p pause");
            (text, self.theme.of(Mood::Faint))
        } else {
            let text =
                format!("{paused}rows with {:?}  Esc all rows  s sort: {sorted}{mark}  ? help", state.filter);
            (text, self.theme.title())
        };
        self.put(area.x, y, area.width, &text, style);
    }

    fn help(&mut self, area: Rect) {
        for ((keys, what), y) in HELP.iter().zip(area.y..area.bottom()) {
            self.put(area.x, y, 15, keys, self.theme.title());
            self.put(area.x + 16, y, area.width.saturating_sub(16), what, Style::new());
        }
    }
}

/// Returns the table, filtered and sorted as the user chose.
fn chosen(view: ScreenView, cluster: &ClusterFigures, state: &ScreenState) -> Table {
    let mut table = view.table(cluster, state.scope);
    table.filter(&state.filter);
    table.sort(state.order(view));
    table
}

fn sorted(view: ScreenView, state: &ScreenState) -> (usize, bool) {
    let order = state.order(view);
    (order.column, order.is_reversed)
}

/// Draws the screen. Returns the maximum scroll position.
pub fn draw(buffer: &mut Buffer, cluster: &ClusterFigures, state: &ScreenState, theme: Theme) -> usize {
    let area = buffer.area;
    let mut canvas = Canvas { buffer, theme };
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let size = format!("{}x{}", area.width, area.height);
        let lines = [
            "Too small".to_owned(),
            format!("needed {WIDTH_MIN}x{HEIGHT_MIN}"),
            format!("here {size}"),
            "q quits".to_owned(),
        ];
        for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
            canvas.put(area.x, y, area.width, line, Style::new());
        }
        return 0;
    }
    let scope = match state.scope {
        Scope::All => String::new(),
        Scope::One(at) => format!("rates of {}", cluster.name_at(at)),
    };
    canvas.head(area, cluster, state.scope);
    canvas.views(area.y + 3, area, state, &scope);
    let bottom = area.bottom() - 1;
    canvas.keys(bottom, area, state);
    let body = Rect { y: area.y + HEAD, height: bottom - area.y - HEAD, ..area };
    if state.is_help {
        canvas.help(body);
        return 0;
    }
    match state.view.parts() {
        [only] => {
            let table = chosen(*only, cluster, state);
            let scroll_max = table.rows.len().saturating_sub(usize::from(body.height - 1));
            canvas.table(body, &table, sorted(*only, state), state.scroll.min(scroll_max));
            scroll_max
        }
        parts => overview(&mut canvas, body, parts, cluster, state),
    }
}

/// Draws tables below each other. Each gets the height it needs, up to an equal share of the remaining
/// height.
fn overview(
    canvas: &mut Canvas<'_>,
    body: Rect,
    parts: &[ScreenView],
    cluster: &ClusterFigures,
    state: &ScreenState,
) -> usize {
    let mut y = body.y;
    let mut scroll_max = 0;
    for (at, view) in parts.iter().enumerate() {
        let table = chosen(*view, cluster, state);
        let rows = u16::try_from(table.rows.len().max(1)).unwrap_or(u16::MAX);
        let left = body.bottom() - y;
        let gap = u16::from(at > 0);
        let wanted = rows.saturating_add(1 + gap);
        // The first table, of members, is not limited to a share.
        let share = if at == 0 { left } else { left / u16::try_from(parts.len() - at).unwrap_or(1) };
        let height = wanted.min(share.max(PART_MIN)).min(left);
        if height < 2 + gap {
            break;
        }
        let part = Rect { y: y + gap, height: height - gap, ..body };
        let mut skip = 0;
        if at == 0 {
            scroll_max = table.rows.len().saturating_sub(usize::from(part.height - 1));
            skip = state.scroll.min(scroll_max);
        }
        canvas.table(part, &table, sorted(*view, state), skip);
        y += height;
    }
    scroll_max
}

/// Renders the head and all tables, or only one, in full length.
pub fn draw_all(
    width: u16,
    only: Option<ScreenView>,
    cluster: &ClusterFigures,
    state: &ScreenState,
    theme: Theme,
) -> Vec<Buffer> {
    let mut head = Buffer::empty(Rect::new(0, 0, width, HEAD - 1));
    let area = head.area;
    Canvas { buffer: &mut head, theme }.head(area, cluster, state.scope);
    let mut all = vec![head];
    for view in VIEWS.into_iter().filter(|view| view.parts() == [*view]) {
        if only.is_some_and(|only| !only.parts().contains(&view)) {
            continue;
        }
        let table = chosen(view, cluster, state);
        let rows = u16::try_from(table.rows.len().clamp(1, LISTED_MAX)).unwrap_or(u16::MAX);
        let mut part = Buffer::empty(Rect::new(0, 0, width, rows + 3));
        let mut canvas = Canvas { buffer: &mut part, theme };
        canvas.put(0, 1, width, table.title, canvas.theme.title());
        canvas.table(Rect::new(0, 2, width, rows + 1), &table, sorted(view, state), 0);
        all.push(part);
    }
    all
}

/// Converts a buffer to text without trailing spaces, with or without colors.
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
        // Skip the empty cells after a wide character.
        x += u16::try_from(Span::raw(cell.symbol()).width()).unwrap_or(1).max(1);
    }
    if !set.is_empty() {
        text.push_str("\u{1b}[0m");
    }
}

/// Returns the SGR codes of the few styles in use.
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
