//! One PostgreSQL.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User, chown};
use tempfile::TempDir;

use super::certificates::Certificates;
use super::clock_shift::ClockShift;
use super::ports::Port;
use super::scratch;
use super::spawn::{Launch, Process, must_be_installed};
use super::wait::{wait_for, wait_until};

/// Who [`Postgres::psql`] is.
pub(super) const ADMIN: &str = "testkit";
/// Who runs the server if the tests run as root: it refuses to.
const ACCOUNT: &str = "postgres";
/// The user that a client's certificate names.
pub const CERTIFIED: &str = "tenure client";
/// The database there is.
pub(super) const DATABASE: &str = "postgres";

/// What a PostgreSQL is to be like.
#[derive(Debug, Default)]
pub struct PostgresBuilder {
    tls: bool,
    login: Option<(String, String)>,
    config: Vec<(String, String)>,
    durable: bool,
    shifted_clock: bool,
}

impl PostgresBuilder {
    /// Only TLS gets in; the user [`CERTIFIED`] by the certificate of [`Postgres::client_certificate`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Besides [`Postgres::psql`] only this user gets in, by this password. It may connect, and make schemas.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// A setting.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A wall clock that [`Postgres::shift_clock`] sets.
    #[must_use]
    pub fn shifted_clock(mut self) -> Self {
        self.shifted_clock = true;
        self
    }

    /// What is committed is on the disk.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    #[must_use]
    pub fn start(self) -> Postgres {
        Postgres::new(self)
    }
}

/// A PostgreSQL of this process on a port of its own; killed when dropped.
///
/// Its methods block their thread, for milliseconds mostly.
pub struct Postgres {
    process: Mutex<Process>,
    launch: Launch,
    url: String,
    clock: Option<ClockShift>,
    certificates: Option<Certificates>,
    directory: TempDir,
    port: Port,
}

impl Postgres {
    /// One that anybody gets into, and that does not wait for the disk.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// One to one's taste.
    #[must_use]
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    fn new(builder: PostgresBuilder) -> Self {
        let directory = scratch::directory();
        let folder = directory.path();
        let data = folder.join("data");
        let certificates = builder.tls.then(|| Certificates::make(folder));
        give(folder);
        let made = as_account(&bin("initdb"))
            .args(["-A", "trust", "-N", "-U", ADMIN, "--no-instructions", "-E", "UTF8", "--locale=C", "-D"])
            .arg(&data)
            .output();
        succeeded("initdb", &made.expect("cannot run initdb"));
        let mut hba = format!("host all {ADMIN} 127.0.0.1/32 trust\n");
        if builder.tls {
            hba.push_str(&format!("hostssl all \"{CERTIFIED}\" 127.0.0.1/32 cert\n"));
        }
        let kind = if builder.tls { "hostssl" } else { "host" };
        let method = if builder.login.is_some() { "scram-sha-256" } else { "trust" };
        hba.push_str(&format!("{kind} all all 127.0.0.1/32 {method}\nhost replication all 127.0.0.1/32 trust\n"));
        fs::write(data.join("pg_hba.conf"), hba).expect("who gets in");
        let mut settings = vec![("fsync", if builder.durable { "on" } else { "off" }.to_owned())];
        if let Some(certificates) = &certificates {
            settings.push(("ssl", "on".to_owned()));
            settings.push(("ssl_cert_file", certificates.certificate("server").display().to_string()));
            settings.push(("ssl_key_file", certificates.key("server").display().to_string()));
            settings.push(("ssl_ca_file", certificates.certificate("authority").display().to_string()));
        }
        settings.extend(builder.config.iter().map(|(name, value)| (name.as_str(), value.clone())));
        let login = builder
            .login
            .as_ref()
            .map_or_else(|| ADMIN.to_owned(), |(user, password)| format!("{user}:{}", percent(password)));
        let tls = certificates.as_ref().map_or_else(String::new, |certificates| {
            format!("?sslmode=verify-full&sslrootcert={}", certificates.certificate("authority").display())
        });
        let mut server = Self::on(directory, &settings, builder.shifted_clock, |port| {
            format!("postgres://{login}@127.0.0.1:{port}/{DATABASE}{tls}")
        });
        server.certificates = certificates;
        if let Some((user, password)) = &builder.login {
            server.psql(&format!(
                "CREATE USER \"{user}\" PASSWORD '{password}'; GRANT CREATE ON DATABASE {DATABASE} TO \"{user}\""
            ));
        }
        server
    }

    /// Starts what is in a directory.
    fn on(
        directory: TempDir,
        settings: &[(&str, String)],
        shifted_clock: bool,
        url: impl FnOnce(u16) -> String,
    ) -> Self {
        let (folder, port) = (directory.path(), Port::free());
        let clock = shifted_clock.then(|| ClockShift::make(folder));
        give(folder);
        let mut args = account_args();
        args.push(bin("postgres").into());
        args.push("-D".into());
        args.push(folder.join("data").into());
        let common = [
            ("listen_addresses", "127.0.0.1".to_owned()),
            ("unix_socket_directories", String::new()),
            ("port", port.number.to_string()),
            ("client_connection_check_interval", "500ms".to_owned()),
            ("max_connections", "300".to_owned()),
        ];
        for (name, value) in common.iter().chain(settings) {
            args.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        let env = clock.iter().flat_map(ClockShift::env).collect();
        let launch = Launch { program: "setpriv".into(), args, env, log: folder.join("log") };
        let url = url(port.number);
        let server =
            Self { process: Mutex::new(launch.spawn()), launch, url, clock, certificates: None, directory, port };
        server.wait_until_up();
        server
    }

    /// A standby that follows this one, and that its commits wait for from now on.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn standby(&self) -> Self {
        let directory = scratch::directory();
        give(directory.path());
        let copied = as_account(&bin("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-U", ADMIN, "-R", "-c", "fast", "-X", "stream", "-p"])
            .arg(self.port().to_string())
            .arg("-D")
            .arg(directory.path().join("data"))
            .output();
        succeeded("pg_basebackup", &copied.expect("cannot run pg_basebackup"));
        let standby = Self::on(directory, &[("fsync", "off".to_owned())], false, |port| {
            format!("postgres://{ADMIN}@127.0.0.1:{port}/{DATABASE}")
        });
        self.set("synchronous_standby_names", "*");
        wait_until("the standby is waited for", || {
            self.psql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
        });
        standby
    }

    /// Makes a standby take writes; returns when it does.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub fn promote(&self) {
        assert_eq!(self.psql("SELECT pg_promote()"), "t", "{}", self.log());
        wait_until("it takes writes", || self.psql("SHOW transaction_read_only") == "off");
    }

    /// Changes a setting of the running server; not one that its builder was given.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn set(&self, name: &str, value: &str) {
        self.psql(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        self.psql("SELECT pg_reload_conf()");
        wait_until("the setting is in use", || self.psql(&format!("SHOW {name}")) == value);
    }

    /// Sets how far its wall clock is ahead of ours, or behind if negative.
    ///
    /// # Panics
    ///
    /// If it was not built with [`PostgresBuilder::shifted_clock`].
    pub fn shift_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("a server with a shifted clock").set(seconds);
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its port; the same for life.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// The certificate of the authority that its certificate is signed by.
    ///
    /// # Panics
    ///
    /// If its builder was not asked for TLS.
    pub fn ca_path(&self) -> PathBuf {
        self.certificates().certificate("authority")
    }

    /// A client's certificate and key, in the name of [`CERTIFIED`].
    ///
    /// # Panics
    ///
    /// If its builder was not asked for TLS.
    pub fn client_certificate(&self) -> (PathBuf, PathBuf) {
        (self.certificates().certificate("client"), self.certificates().key("client"))
    }

    fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server with TLS")
    }

    /// `postgres://USER@127.0.0.1:PORT/postgres`, with the login and the certificate of its builder.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// [`url`](Self::url) with more options, such as `schema=locks`.
    pub fn url_with(&self, options: &str) -> String {
        format!("{}{}{options}", self.url, if self.url.contains('?') { '&' } else { '?' })
    }

    /// The directory it works in: `data`, `log`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it wrote to its log so far.
    pub fn log(&self) -> String {
        self.launch.said()
    }

    /// What `psql` prints for this, unaligned and without headers.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn psql(&self, sql: &str) -> String {
        let output = self.run_psql(sql);
        succeeded(sql, &output);
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn run_psql(&self, sql: &str) -> Output {
        must_be_installed(Path::new("psql"));
        Command::new("psql")
            .args([
                "-X",
                "-q",
                "-A",
                "-t",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-U",
                ADMIN,
                "-d",
                DATABASE,
                "-p",
            ])
            .arg(self.port().to_string())
            .args(["-c", sql])
            .env("PGCONNECT_TIMEOUT", "5")
            .output()
            .expect("cannot run psql")
    }

    fn wait_until_up(&self) {
        let up = wait_for(|| {
            assert!(!self.process().has_ended(), "PostgreSQL does not start:\n{}", self.log());
            self.run_psql("SELECT 1").status.success().then_some(())
        });
        assert!(up.is_some(), "PostgreSQL does not start:\n{}", self.log());
    }

    /// Ends it as a crash does.
    pub fn kill(&self) {
        let workers = self.workers();
        self.process().kill();
        wait_until("its processes are gone", || workers.iter().all(|worker| !is_alive(*worker)));
    }

    /// Starts it again, with what it has on disk.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&self) {
        self.kill();
        *self.process() = self.launch.spawn();
        self.wait_until_up();
    }

    /// Stops it in its tracks, with all its processes.
    pub fn pause(&self) {
        self.process().pause();
        self.signal_workers(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal_workers(Signal::SIGCONT);
        self.process().resume();
    }

    fn signal_workers(&self, signal: Signal) {
        for worker in self.workers() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(worker), signal);
        }
    }

    fn workers(&self) -> Vec<i32> {
        let pid = self.process().pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| child.parse().ok()).collect()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // It removes the piece of shared memory that outlives a process that was killed.
        let pid = Pid::from_raw(self.process().pid().cast_signed());
        if !self.process().has_ended() && kill(pid, Signal::SIGQUIT).is_ok() {
            let _ = wait_for(|| self.process().has_ended().then_some(()));
        }
    }
}

fn is_alive(pid: i32) -> bool {
    kill(Pid::from_raw(pid), None).is_ok()
}

/// The newest installation's program.
fn bin(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.max_by_key(|version| version.file_name().to_string_lossy().parse::<u32>().unwrap_or(0));
    let path = newest.map_or_else(|| PathBuf::from(program), |version| version.path().join("bin").join(program));
    must_be_installed(&path);
    path
}

/// The arguments of `setpriv` under which a program runs as somebody who may run a server.
pub(super) fn account_args() -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--pdeathsig".into(), "KILL".into()];
    if Uid::effective().is_root() {
        for arg in ["--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups"] {
            args.push(arg.into());
        }
    }
    args.push("--".into());
    args
}

fn as_account(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(account_args()).arg(program);
    command
}

/// Lets the server's account have the folder, and everybody reach it.
pub(super) fn give(folder: &Path) {
    if !Uid::effective().is_root() {
        return;
    }
    let account = User::from_name(ACCOUNT).ok().flatten().expect("the account that Debian's package makes");
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        chown(&entry.path(), Some(account.uid), Some(account.gid)).expect("root may");
    }
    chown(folder, Some(account.uid), Some(account.gid)).expect("root may");
    let parent = folder.parent().expect("a folder in another");
    fs::set_permissions(parent, fs::Permissions::from_mode(0o711)).expect("a folder of ours");
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn succeeded(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
