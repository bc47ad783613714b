//! The line that is shown on a terminal while a claim waits: who holds the lock, and how far off our turn is.

use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use tenure::machine::NameView;
use tenure::{Name, Owner, Tenure};

use crate::duration;

/// How long a wait may be before it is worth a line.
const QUIET: Duration = Duration::from_millis(300);
const REFRESH: Duration = Duration::from_secs(1);
const WIDTH_DEFAULT: usize = 80;

/// Awaits `work`, showing meanwhile what it waits for. Silent where stderr is no terminal.
pub(crate) async fn shown<T>(tenure: &Tenure, name: &Name, owner: &Owner, work: impl Future<Output = T>) -> T {
    if !std::io::stderr().is_terminal() {
        return work.await;
    }
    let mut work = pin!(work);
    let mut line = Line { drawn: false };
    let mut pause = QUIET;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = refresh(tenure, name, owner, &mut line, pause) => pause = REFRESH,
        }
    }
}

async fn refresh(tenure: &Tenure, name: &Name, owner: &Owner, line: &mut Line, pause: Duration) {
    tokio::time::sleep(pause).await;
    match tokio::time::timeout(REFRESH * 2, tenure.inspect(name.as_str())).await {
        Ok(Ok(view)) => line.draw(&describe(&view, owner)),
        // The acquire itself says how it ends.
        Ok(Err(_)) | Err(_) => line.draw(&format!("waiting for {name}: the store does not answer")),
    }
}

fn describe(view: &NameView, owner: &Owner) -> String {
    let mut text = format!("waiting for {}", view.name);
    if let Some(holder) = view.holders.first() {
        let label = holder.label.as_deref().unwrap_or("somebody else");
        text.push_str(&format!(": held by {label}"));
        if let Some(more) = view.holders.len().checked_sub(1).filter(|more| *more > 0) {
            text.push_str(&format!(" and {more} more"));
        }
        if let Some(left) = holder.expires_in {
            text.push_str(&format!(" (expires in {})", duration::show(left)));
        }
    }
    if let Some(ahead) = view.waiters.iter().position(|waiter| waiter.owner.as_ref() == Some(owner)) {
        text.push_str(&format!(", place {} of {} in the queue", ahead + 1, view.waiters.len()));
    }
    text
}

/// One line that is drawn over, and wiped when it is no longer needed, however the waiting ends.
struct Line {
    drawn: bool,
}

impl Line {
    fn draw(&mut self, text: &str) {
        let width = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 { WIDTH_DEFAULT } else { width };
        // A line that wraps could not be drawn over.
        let fitting: String = format!("tenure: {text}").chars().take(width - 1).collect();
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
