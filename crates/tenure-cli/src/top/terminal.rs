//! The terminal while `top` has it, and giving it back as it was.

use std::io::{IsTerminal, Stdout, stdin, stdout};

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};

use crate::exit::Exit;
use crate::failure::Failure;

/// The other screen of the terminal, without the line discipline. Dropping it gives the terminal back.
pub(super) struct Screen {
    pub(super) terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal. It is given back also when a panic ends the process.
    pub(super) fn take() -> Result<Self, Failure> {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
        let refused = |error: std::io::Error| {
            restore();
            Failure::new(Exit::Unavailable, format!("the terminal cannot be used: {error}"))
        };
        enable_raw_mode().map_err(refused)?;
        execute!(stdout(), EnterAlternateScreen).map_err(refused)?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout())).map_err(refused)?;
        Ok(Self { terminal })
    }
}

/// Refuses what is no terminal.
pub(super) fn check() -> Result<(), Failure> {
    if stdin().is_terminal() && stdout().is_terminal() {
        return Ok(());
    }
    Err(Failure::usage("top needs a terminal, for keys and for the screen").hint("try `tenure watch`"))
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Does no harm when it is called again, or when the terminal is gone.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}
