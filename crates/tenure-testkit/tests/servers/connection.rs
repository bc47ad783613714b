//! The smallest client there is.

use std::io::{BufRead as _, BufReader, Result, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// How long nothing must come before it is believed that nothing comes.
const SILENCE: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn to(address: &str) -> Result<Self> {
        Ok(Self(BufReader::new(TcpStream::connect(address)?)))
    }

    pub(crate) fn say(&mut self, command: &str) -> Result<()> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())
    }

    /// The next line of an answer; empty if the connection was closed.
    pub(crate) fn hear(&mut self) -> Result<String> {
        self.0.get_ref().set_read_timeout(Some(LIMIT))?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn ask(&mut self, command: &str) -> Result<String> {
        self.say(command)?;
        self.hear()
    }

    /// Whether no answer comes, and the connection stays.
    pub(crate) fn hears_nothing(&mut self) -> bool {
        self.0.get_ref().set_read_timeout(Some(SILENCE)).unwrap();
        self.0.fill_buf().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}
