//! Forgets names that nobody has used for long, and memos that have ended, piece by piece, for as long as there is
//! something to forget.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::desk::Desk;
use super::rows::cell;
use crate::error::Result;

/// The pause after a piece of the table in which names were forgotten: 1000 rows each time are more than a client can
/// make meanwhile.
const PAUSE: Duration = Duration::from_millis(50);
/// The pause after a piece without any.
const PAUSE_IN_VAIN: Duration = Duration::from_secs(1);
/// The pause when the end of the table was reached, or the server refused.
const REST: Duration = Duration::from_secs(300);
/// How long it takes to notice that the client is gone.
const LOOK_UP: Duration = Duration::from_secs(10);

/// Where the sweeping stands.
enum Piece {
    /// The name it reached, and whether any were forgotten.
    Until(String, bool),
    End,
}

/// Sweeps after there was work, until the client is gone.
///
/// # Cancel safety
///
/// Cancel safe: it goes on where it begins anew.
pub(super) async fn keep(desk: Weak<Desk>, worked: Arc<Notify>) {
    let (mut after, mut whole) = (None, false);
    loop {
        while timeout(LOOK_UP, worked.notified()).await.is_err() {
            if desk.strong_count() == 0 {
                return;
            }
        }
        loop {
            let Some(client) = desk.upgrade() else { return };
            let more_memos = client.sweep_memos().await;
            let piece = client.sweep(after.take()).await;
            drop(client);
            let pause = match piece {
                Ok(Piece::Until(name, found)) => {
                    after = Some(name);
                    if found || more_memos { PAUSE } else { PAUSE_IN_VAIN }
                }
                Ok(Piece::End) => {
                    after = Some(String::new());
                    // What was before the place where it began.
                    if std::mem::replace(&mut whole, true) && !more_memos {
                        break;
                    }
                    PAUSE
                }
                Err(error) => {
                    tracing::debug!(%error, "not swept");
                    break;
                }
            };
            pass(pause, &desk).await;
        }
        pass(REST, &desk).await;
    }
}

/// Lets time pass, for as long as the client is there.
async fn pass(mut span: Duration, desk: &Weak<Desk>) {
    while !span.is_zero() && desk.strong_count() > 0 {
        let some = span.min(LOOK_UP);
        let _ = timeout(some, Notify::new().notified()).await;
        span = span.saturating_sub(some);
    }
}

impl Desk {
    /// A bounded piece of the table, best effort. The first is anywhere: clients that live for a moment only must not
    /// all sweep the same one.
    async fn sweep(self: &Arc<Self>, after: Option<String>) -> Result<Piece> {
        let mut look = self.look().await?;
        let after = match after {
            Some(after) => after,
            None => match look.query(&self.statements.anywhere, &[]).await?.first() {
                Some(row) => cell(row, 0)?,
                None => String::new(),
            },
        };
        let rows = look.query(&self.statements.sweep, &[(&after, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(Piece::End) };
        let gone: i64 = cell(row, 1)?;
        Ok(match cell::<_, Option<String>>(row, 0)? {
            Some(until) => Piece::Until(until, gone > 0),
            None => Piece::End,
        })
    }
}
