//! From figures and the user's choices to a picture. No sockets, no terminal, no clock.

mod format; // numbers as text
mod table; // rows and columns

mod views; // tables of figures

mod state; // view, order, filter, keys

mod screen; // the picture

pub use screen::{HEIGHT_MIN, Theme, WIDTH_MIN, draw, draw_all, text};
pub use state::{Next, ScreenState};
pub use views::ScreenView;

#[cfg(test)]
mod tests; // whole screens
