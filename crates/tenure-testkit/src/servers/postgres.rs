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
use super::ports::Port;
use super::scratch;
use super::spawn::{Launch, Process, must_be_installed};
use super::wait::{wait_for, wait_until};

/// Who [`Postgres::psql`] is.
const ADMIN: &str = "testkit";
/// Who runs the server if the tests run as root: it refuses to.
const ACCOUNT: &str = "postgres";
/// The database there is.
const DATABASE: &str = "postgres";

/// What a PostgreSQL is to be like.
#[derive(Debug, Default)]
pub struct PostgresBuilder {
    tls: bool,
    login: Option<(String, String)>,
    config: Vec<(String, String)>,
    durable: bool,
}

impl PostgresBuilder {
    /// Only TLS gets in.
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
        let (directory, port) = (scratch::directory(), Port::free());
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
        let kind = if builder.tls { "hostssl" } else { "host" };
        let method = if builder.login.is_some() { "scram-sha-256" } else { "trust" };
        hba.push_str(&format!("{kind} all all 127.0.0.1/32 {method}\nhost replication all 127.0.0.1/32 trust\n"));
        fs::write(data.join("pg_hba.conf"), hba).expect("who gets in");
        let mut settings = vec![
            ("listen_addresses".to_owned(), "127.0.0.1".to_owned()),
            ("unix_socket_directories".to_owned(), String::new()),
            ("port".to_owned(), port.number.to_string()),
            ("client_connection_check_interval".to_owned(), "500ms".to_owned()),
            ("fsync".to_owned(), if builder.durable { "on" } else { "off" }.to_owned()),
            ("max_connections".to_owned(), "300".to_owned()),
        ];
        if let Some(certificates) = &certificates {
            settings.push(("ssl".to_owned(), "on".to_owned()));
            settings.push(("ssl_cert_file".to_owned(), certificates.certificate("server").display().to_string()));
            settings.push(("ssl_key_file".to_owned(), certificates.key("server").display().to_string()));
        }
        settings.extend(builder.config);
        let mut args = account_args();
        args.push(bin("postgres").into());
        args.push("-D".into());
        args.push(data.into());
        for (name, value) in &settings {
            args.extend(["-c".into(), format!("{name}={value}").into()]);
        }
        let launch = Launch { program: "setpriv".into(), args, env: Vec::new(), log: folder.join("log") };
        let login = builder
            .login
            .as_ref()
            .map_or_else(|| ADMIN.to_owned(), |(user, password)| format!("{user}:{}", percent(password)));
        let tls = certificates.map_or_else(String::new, |certificates| {
            format!("?sslmode=verify-full&sslrootcert={}", certificates.certificate("authority").display())
        });
        let url = format!("postgres://{login}@127.0.0.1:{}/{DATABASE}{tls}", port.number);
        let server = Self { process: Mutex::new(launch.spawn()), launch, url, directory, port };
        server.wait_until_up();
        if let Some((user, password)) = &builder.login {
            server.psql(&format!(
                "CREATE USER \"{user}\" PASSWORD '{password}'; GRANT CREATE ON DATABASE {DATABASE} TO \"{user}\""
            ));
        }
        server
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its port; the same for life.
    pub fn port(&self) -> u16 {
        self.port.number
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
fn account_args() -> Vec<OsString> {
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
fn give(folder: &Path) {
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
