//! How a Redis is to be.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::certificates::Certificates;
use super::clock_shift::ClockShift;
use super::ports::Port;
use super::redis::{ADMIN, ADMIN_PASSWORD, Redis};
use super::scratch;
use super::spawn::Launch;

/// With how many ports a start is tried.
const PORTS_TRIED: usize = 10;

/// A Redis to be started; see [`Redis::builder`].
#[derive(Clone)]
pub struct Builder {
    program: PathBuf,
    config: Vec<(String, String)>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    tls: bool,
    shifted_clock: bool,
    users: Option<String>,
    login: Option<(String, String)>,
    database: Option<u16>,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            program: "redis-server".into(),
            config: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            tls: false,
            shifted_clock: false,
            users: None,
            login: None,
            database: None,
        }
    }

    /// A line of `redis.conf`, after those of [`Redis::start`]; the value is written as it would be there, only that
    /// an empty one is quoted.
    #[must_use]
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Another binary, by path.
    #[must_use]
    pub fn program(mut self, path: impl Into<PathBuf>) -> Self {
        self.program = path.into();
        self
    }

    /// An argument of the server, after the name of its `redis.conf`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// A variable of the server's environment.
    #[must_use]
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// TLS on its only port, with certificates of its own; a client may show one and need not.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A wall clock that [`Redis::shift_clock`] sets.
    #[must_use]
    pub fn shifted_clock(mut self) -> Self {
        self.shifted_clock = true;
        self
    }

    /// Users, as lines of an ACL file (`user NAME RULES`). One more is added for [`Redis::cli`]; `default` is as
    /// Redis has it unless a line turns it off.
    #[must_use]
    pub fn users(mut self, lines: &str) -> Self {
        self.users = Some(lines.to_owned());
        self
    }

    /// The user and password that [`Redis::url`] names.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// The database that [`Redis::url`] names.
    #[must_use]
    pub fn database(mut self, number: u16) -> Self {
        self.database = Some(number);
        self
    }

    /// Starts the server, and returns when it answers.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    #[must_use]
    pub fn start(self) -> Redis {
        for _ in 0..PORTS_TRIED {
            let directory = scratch::directory();
            let port = Port::free();
            let certificates = self.tls.then(|| Certificates::make(directory.path()));
            let clock = self.shifted_clock.then(|| ClockShift::make(directory.path()));
            let mut launch = self.launch(directory.path(), port.number, certificates.as_ref());
            launch.env.extend(clock.iter().flat_map(ClockShift::env));
            let url = self.url(port.number, certificates.as_ref());
            let server = Redis::new(launch, port, url, certificates, clock, self.users.is_some(), directory);
            if server.try_wait() {
                return server;
            }
        }
        panic!("{} found its port taken {PORTS_TRIED} times", self.program.display());
    }

    /// Writes the files of the server. A file, as Redis itself rewrites it when Sentinel gives it another role.
    fn launch(&self, directory: &Path, port: u16, certificates: Option<&Certificates>) -> Launch {
        let mut lines = vec![
            ("bind".to_owned(), "127.0.0.1".to_owned()),
            ("dir".to_owned(), directory.display().to_string()),
            ("save".to_owned(), String::new()),
            ("appendonly".to_owned(), "no".to_owned()),
        ];
        match certificates {
            None => lines.push(("port".to_owned(), port.to_string())),
            Some(certificates) => lines.extend([
                ("port".to_owned(), "0".to_owned()),
                ("tls-port".to_owned(), port.to_string()),
                ("tls-auth-clients".to_owned(), "optional".to_owned()),
                ("tls-ca-cert-file".to_owned(), certificates.certificate("authority").display().to_string()),
                ("tls-cert-file".to_owned(), certificates.certificate("server").display().to_string()),
                ("tls-key-file".to_owned(), certificates.key("server").display().to_string()),
            ]),
        }
        if let Some(users) = &self.users {
            let users = format!("{users}\nuser {ADMIN} on >{ADMIN_PASSWORD} ~* &* +@all\n");
            let file = directory.join("users.acl");
            fs::write(&file, users).expect("the users");
            lines.push(("aclfile".to_owned(), file.display().to_string()));
        }
        lines.extend(self.config.iter().cloned());

        let quoted = |value: String| if value.is_empty() { "\"\"".to_owned() } else { value };
        let config: String = lines.into_iter().map(|(key, value)| format!("{key} {}\n", quoted(value))).collect();
        let file = directory.join("redis.conf");
        fs::write(&file, config).expect("the configuration");
        Launch {
            program: self.program.clone(),
            args: [file.into_os_string()].into_iter().chain(self.args.iter().cloned()).collect(),
            env: self.env.clone(),
            log: directory.join("log"),
        }
    }

    fn url(&self, port: u16, certificates: Option<&Certificates>) -> String {
        let scheme = if certificates.is_some() { "rediss" } else { "redis" };
        let login = self.login.as_ref().map_or_else(String::new, |(user, password)| {
            format!("{}:{}@", percent_encoded(user), percent_encoded(password))
        });
        let database = self.database.map_or_else(String::new, |number| format!("/{number}"));
        let ca =
            certificates.map_or_else(String::new, |files| format!("?ca={}", files.certificate("authority").display()));
        format!("{scheme}://{login}127.0.0.1:{port}{database}{ca}")
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}
