//! One line on the terminal that tells how things stand.

use std::io::Write;

const WIDTH_DEFAULT: usize = 80;

/// One line that is drawn over, and wiped when it is no longer needed, however that comes.
#[derive(Debug, Default)]
pub(crate) struct Line {
    drawn: bool,
}

impl Line {
    /// Draws what `fit` makes of a width: a line that wraps could not be drawn over.
    pub(crate) fn draw(&mut self, fit: impl FnOnce(usize) -> String) {
        let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 { WIDTH_DEFAULT } else { width };
        let fitting = fit(width - 1);
        self.drawn = true;
        let _ = write!(std::io::stderr(), "\r\x1b[K{fitting}");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.drawn {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
