//! Terminal modes and events, and the loop that shows metrics until the user quits.

use std::io::{self, Stdout, Write};
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{cursor, execute};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

use super::figures::{ClusterFigures, DocumentSource};
use super::show::{Next, ScreenState, Theme, draw};
use process::shutdown;

/// Raw mode and the alternate screen, until dropped.
struct Modes;

impl Modes {
    fn set() -> io::Result<Modes> {
        restore_before_panics();
        enable_raw_mode()?;
        let modes = Modes;
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(modes)
    }

    fn restore() {
        // Errors cannot be handled: the terminal is unusable.
        let _unrestored = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _unrestored = disable_raw_mode();
        let _unwritten = io::stdout().flush();
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        Modes::restore();
    }
}

/// Installs a panic hook that restores the terminal. A message on the alternate screen would be lost.
fn restore_before_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        Modes::restore();
        report(panic);
    }));
}

/// Polls all endpoints, and shows their metrics until a key or a signal.
pub async fn run(
    sources: &[DocumentSource],
    cluster: &mut ClusterFigures,
    state: &mut ScreenState,
    every: Duration,
    theme: Theme,
) -> io::Result<()> {
    // Register the handler before setting the modes: an earlier signal would leave them set.
    let mut signalled = Box::pin(shutdown::signalled()?);
    let _modes = Modes::set()?;
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    let mut events = EventStream::new();
    // Poll endpoints independently, so that they do not delay each other.
    let ask = |at: usize, pause: Duration| {
        let source = &sources[at];
        async move {
            tokio::time::sleep(pause).await;
            (at, source.document().await)
        }
    };
    let mut answers: FuturesUnordered<_> = (0..sources.len()).map(|at| ask(at, Duration::ZERO)).collect();
    loop {
        let scroll_max = show(&mut terminal, cluster, state, theme)?;
        tokio::select! {
            _signal = &mut signalled => return Ok(()),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) => {
                    if state.key(key, sources.len(), scroll_max) == Next::Quit {
                        return Ok(());
                    }
                }
                Some(Ok(_resized)) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            },
            Some((at, answer)) = answers.next() => {
                if !state.is_paused {
                    cluster.endpoints[at].record(answer);
                }
                answers.push(ask(at, every));
            }
        }
    }
}

fn show(
    terminal: &mut Terminal<CrosstermBackend<Stdout>>,
    cluster: &ClusterFigures,
    state: &ScreenState,
    theme: Theme,
) -> io::Result<usize> {
    let mut scroll_max = 0;
    terminal.draw(|frame| scroll_max = draw(frame.buffer_mut(), cluster, state, theme))?;
    Ok(scroll_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in a subprocess of this test, which panics in a terminal.
    const PANICS: &str = "KV_SERVER_TOP_PANICS";

    #[test]
    fn a_panic_restores_the_terminal_before_it_is_reported() {
        if std::env::var_os(PANICS).is_some() {
            let _modes = Modes::set().unwrap();
            panic!("on purpose");
        }
        let own = std::env::current_exe().unwrap();
        let name = "top::terminal::tests::a_panic_restores_the_terminal_before_it_is_reported";
        let arguments = ["--exact", name, "--nocapture", "--test-threads=1"];
        let mut terminal =
            testkit::Terminal::start(own.to_str().unwrap(), &arguments, &[(PANICS, "1")], 80, 24);
        terminal.wait_for("on purpose");
        assert!(!terminal.wait_end().success());
        let seen = terminal.seen();
        let (set, restored) = (seen.find("\u{1b}[?1049h").unwrap(), seen.find("\u{1b}[?1049l").unwrap());
        assert!(set < restored && restored < seen.find("on purpose").unwrap(), "{seen:?}");
        assert!(!terminal.is_raw());
    }
}
