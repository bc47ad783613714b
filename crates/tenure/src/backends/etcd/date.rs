//! etcd's wall clock. Its API tells none, but members answer `GET /version` on the port of their clients, users or
//! not, and each answer over HTTP has a `Date`: in whole seconds, by that member's clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Status;

use super::desk::Desk;
use crate::error::{Error, ErrorKind, Result};

/// What is asked for.
pub(super) const PATH: &str = "/version";
/// The most of an answer that is read: what comes before its `Date` is short.
const ANSWER_BYTES_MAX: usize = 4096;

impl Desk {
    /// etcd's wall clock.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn time(&self) -> Result<SystemTime> {
        Ok(UNIX_EPOCH + Duration::from_micros(self.ask_time().await?))
    }

    /// The same in microseconds.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn ask_time(&self) -> Result<u64> {
        let tls = self.road.settings.tls;
        let asked = self.clock.now();
        let told = self.road.ask(|link| async move { link.date(tls).await }).await?;
        let Some(seconds) = told.as_deref().and_then(seconds_of) else {
            let message = "this etcd does not tell the time: the port of its clients does not answer GET /version with \
                           a Date (--listen-client-http-urls, or a proxy for gRPC alone)";
            return Err(Error::new(ErrorKind::Invalid, message).because(told.unwrap_or_default()));
        };
        let wall = seconds.saturating_mul(1_000_000);
        self.wall_told.tell(asked, wall);
        Ok(wall)
    }
}

/// The `Date` of what a member answers without TLS, where HTTP/2 is gRPC alone; none if it answers with something
/// else.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(super) async fn ask_plainly(address: &str) -> std::result::Result<Option<String>, Status> {
    let failed = |error: std::io::Error| Status::unavailable(error.to_string());
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    let question = format!("GET {PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    let mut rest = stream.take(u64::try_from(ANSWER_BYTES_MAX).unwrap_or(u64::MAX));
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        if rest.read_buf(&mut answer).await.map_err(failed)? == 0 {
            break;
        }
    }
    Ok(date_in(&String::from_utf8_lossy(&answer)))
}

/// The `Date` among the headers of an answer.
fn date_in(answer: &str) -> Option<String> {
    let mut lines = answer.split("\r\n");
    lines.next().filter(|first| first.starts_with("HTTP/1."))?;
    let date = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("date").then(|| value.trim().to_owned())
    };
    lines.take_while(|line| !line.is_empty()).find_map(date)
}

/// The seconds since 1970 that a `Date` is: `Wed, 18 Nov 2026 08:26:30 GMT`.
fn seconds_of(date: &str) -> Option<u64> {
    let words: Vec<&str> = date.split_ascii_whitespace().collect();
    let [_, day, month, year, time, "GMT"] = words[..] else { return None };
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = u64::try_from(months.iter().position(|name| *name == month)?).ok()?;
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let mut parts = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    let fits = (1..=31).contains(&day) && (1970..=9999).contains(&year) && hours < 24 && minutes < 60 && seconds <= 60;
    fits.then(|| days_of(year, month, day) * 86_400 + hours * 3_600 + minutes * 60 + seconds)
}

/// The days since 1970. Months count from zero.
fn days_of(year: u64, month: u64, day: u64) -> u64 {
    // Years begin in March here, so that a leap day is the last of its year.
    let (year, month) = if month < 2 { (year - 1, month + 10) } else { (year, month - 2) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    days - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_as_they_are_written() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Tue, 29 Feb 2000 23:59:59 GMT", 951_868_799),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Wed, 18 Nov 2026 08:26:30 GMT", 1_794_990_390),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
        ] {
            assert_eq!(seconds_of(date), Some(seconds), "{date}");
        }
        for odd in
            ["", "now", "Wed, 18 Nov 2026 08:26:30 CET", "Wed, 99 Nov 2026 08:26:30 GMT", "Wed, 18 Nov 2026 08:26 GMT"]
        {
            assert_eq!(seconds_of(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_date_is_looked_for_among_the_headers_alone() {
        let answer = "HTTP/1.1 200 OK\r\nContent-Type: x\r\ndate:  then\r\n\r\n";
        assert_eq!(date_in(answer).as_deref(), Some("then"));
        for none in ["", "\0\0\x18\x04", "HTTP/1.1 200 OK\r\n\r\nDate: then\r\n\r\n"] {
            assert_eq!(date_in(none), None, "{none:?}");
        }
    }
}
