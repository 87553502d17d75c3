//! Choices of the user: view, order, filter, scope. They are changed by keys only.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::figures::Scope;
use super::table::Order;
use super::views::{ScreenView, VIEWS};

/// Maximum characters of a filter.
const FILTER_MAX: usize = 64;
/// Rows per PageUp or PageDown.
const PAGE: usize = 10;

/// Help text: keys and their actions.
pub const HELP: [(&str, &str); 10] = [
    ("1 … 7, Tab", "next view; Shift-Tab previous view"),
    ("s, S", "sort by the next, previous column"),
    ("r", "reverse the order"),
    ("/", "show rows with a text; Esc shows all again"),
    ("m", "statistics of one member, or of all"),
    ("↑ ↓ PgUp PgDn", "scroll; also k and j, Home and End"),
    ("p", "pause"),
    ("?", "this help; any key closes it"),
    ("q, Ctrl-C", "quit"),
    ("DOWN", "unreachable endpoint, and why"),
];

/// Action after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    GoOn,
    Quit,
}

#[derive(Clone, Debug)]
pub struct ScreenState {
    pub view: ScreenView,
    pub scope: Scope,
    pub filter: String,
    pub is_typing: bool,
    pub is_help: bool,
    pub is_paused: bool,
    /// Number of rows scrolled off the top.
    pub scroll: usize,
    orders: [Order; VIEWS.len()],
}

impl ScreenState {
    pub fn new(view: ScreenView) -> ScreenState {
        ScreenState {
            view,
            scope: Scope::All,
            filter: String::new(),
            is_typing: false,
            is_help: false,
            is_paused: false,
            scroll: 0,
            orders: VIEWS.map(ScreenView::order),
        }
    }

    pub fn order(&self, view: ScreenView) -> Order {
        self.orders[position(view)]
    }

    /// Returns the table that keys apply to.
    pub fn active(&self) -> ScreenView {
        self.view.parts()[0]
    }

    /// Handles a key. `endpoints` is their number, `scroll_max` that of the last drawn screen.
    pub fn key(&mut self, key: KeyEvent, endpoints: usize, scroll_max: usize) -> Next {
        if key.kind == KeyEventKind::Release {
            return Next::GoOn;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::GoOn };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return Next::GoOn;
        }
        if std::mem::take(&mut self.is_help) {
            return if key.code == KeyCode::Char('q') { Next::Quit } else { Next::GoOn };
        }
        self.scroll = self.scroll.min(scroll_max);
        self.command(key.code, endpoints, scroll_max)
    }

    fn command(&mut self, code: KeyCode, endpoints: usize, scroll_max: usize) -> Next {
        match code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?') => self.is_help = true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.turn_column(1),
            KeyCode::Char('S') => self.turn_column(self.columns() - 1),
            KeyCode::Char('r') => {
                let order = &mut self.orders[position(self.active())];
                order.is_reversed = !order.is_reversed;
            }
            KeyCode::Char('m') => self.scope = next_scope(self.scope, endpoints),
            KeyCode::Tab => self.show(VIEWS[(position(self.view) + 1) % VIEWS.len()]),
            KeyCode::BackTab => self.show(VIEWS[(position(self.view) + VIEWS.len() - 1) % VIEWS.len()]),
            KeyCode::Char(digit @ '1'..='9') => {
                let at = digit as usize - '1' as usize;
                if let Some(view) = VIEWS.get(at) {
                    self.show(*view);
                }
            }
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = (self.scroll + 1).min(scroll_max),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll = (self.scroll + PAGE).min(scroll_max),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = scroll_max,
            _ => {}
        }
        Next::GoOn
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(character) if self.filter.chars().count() < FILTER_MAX => {
                self.filter.push(character);
            }
            _ => {}
        }
        self.scroll = 0;
    }

    fn show(&mut self, view: ScreenView) {
        (self.view, self.scroll) = (view, 0);
    }

    fn columns(&self) -> usize {
        self.active().columns().len()
    }

    fn turn_column(&mut self, by: usize) {
        let columns = self.columns();
        let order = &mut self.orders[position(self.active())];
        *order = Order { column: (order.column + by) % columns, is_reversed: false };
    }
}

fn position(view: ScreenView) -> usize {
    VIEWS.iter().position(|it| *it == view).unwrap_or_default()
}

fn next_scope(scope: Scope, endpoints: usize) -> Scope {
    match scope {
        Scope::All if endpoints > 1 => Scope::One(0),
        Scope::One(at) if at + 1 < endpoints => Scope::One(at + 1),
        Scope::All | Scope::One(_) => Scope::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words are names of keys, or characters that are typed individually.
    fn typed(line: &str) -> (ScreenState, Next) {
        let mut state = ScreenState::new(ScreenView::Overview);
        let mut next = Next::GoOn;
        let mut press = |code| next = state.key(KeyEvent::new(code, KeyModifiers::NONE), 3, 5);
        for word in line.split(' ') {
            match word {
                "tab" => press(KeyCode::Tab),
                "backtab" => press(KeyCode::BackTab),
                "enter" => press(KeyCode::Enter),
                "esc" => press(KeyCode::Esc),
                "back" => press(KeyCode::Backspace),
                "down" => press(KeyCode::Down),
                "up" => press(KeyCode::Up),
                "end" => press(KeyCode::End),
                "pgdn" => press(KeyCode::PageDown),
                text => text.chars().for_each(|character| press(KeyCode::Char(character))),
            }
        }
        (state, next)
    }

    #[test]
    fn keys_choose_views_orders_and_rows() {
        for (line, wanted) in [
            ("", "Overview All 0+ \"\" 0"),
            ("3", "Calls All 1+ \"\" 0"),
            ("9", "Overview All 0+ \"\" 0"),
            ("tab tab", "Calls All 1+ \"\" 0"),
            ("backtab", "Work All 0+ \"\" 0"),
            ("3s", "Calls All 2+ \"\" 0"),
            ("3Sr", "Calls All 0- \"\" 0"),
            ("3SSr", "Calls All 5- \"\" 0"),
            ("s2", "Members All 1+ \"\" 0"),
            ("mm", "Overview One(1) 0+ \"\" 0"),
            ("mmmm", "Overview All 0+ \"\" 0"),
            ("/qp enter p", "Overview All 0+ \"qp\" 0 paused"),
            ("/abc back back", "Overview All 0+ \"a\" 0 typing"),
            ("/abc esc", "Overview All 0+ \"\" 0"),
            ("/abc enter esc", "Overview All 0+ \"\" 0"),
            ("down down up", "Overview All 0+ \"\" 1"),
            ("pgdn", "Overview All 0+ \"\" 5"),
            ("end k", "Overview All 0+ \"\" 4"),
            ("end 4", "Clients All 1+ \"\" 0"),
            ("?", "Overview All 0+ \"\" 0 help"),
            ("?3", "Overview All 0+ \"\" 0"),
        ] {
            let (state, next) = typed(line);
            let order = state.order(state.active());
            let flags =
                [(state.is_typing, " typing"), (state.is_help, " help"), (state.is_paused, " paused")];
            let found = format!(
                "{:?} {:?} {}{} {:?} {}{}",
                state.view,
                state.scope,
                order.column,
                if order.is_reversed { "-" } else { "+" },
                state.filter,
                state.scroll,
                flags.iter().filter(|(is_on, _)| *is_on).map(|(_, name)| *name).collect::<String>(),
            );
            assert_eq!((found.as_str(), next), (wanted, Next::GoOn), "{line}");
        }
        assert_eq!([typed("q").1, typed("?q").1, typed("/q").1], [Next::Quit, Next::Quit, Next::GoOn]);
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(typed("/").0.key(end, 1, 0), Next::Quit);
    }
}
