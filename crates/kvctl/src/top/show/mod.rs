//! Rendering of metrics and user choices to a screen. Does not use sockets, a terminal or a clock.

mod format; // number formatting
mod table; // rows and columns

mod views; // tables of metrics

mod state; // view, order, filter, keys

mod screen; // layout

pub use screen::{HEIGHT_MIN, Theme, WIDTH_MIN, draw, draw_all, text};
pub use state::{Next, ScreenState};
pub use views::ScreenView;

#[cfg(test)]
mod tests; // whole screens
