//! A pooler before a PostgreSQL.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use tempfile::TempDir;

use super::ports::Port;
use super::postgres::{ADMIN, DATABASE, Postgres, account_args, give};
use super::scratch;
use super::spawn::{Launch, Process, must_be_installed};
use super::wait::wait_for;

/// Where Debian has it, which is not in everybody's `PATH`.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A PgBouncer that gives each transaction one of a few connections; killed when dropped.
pub struct PgBouncer {
    process: Mutex<Process>,
    launch: Launch,
    _directory: TempDir,
    port: Port,
}

impl PgBouncer {
    /// One with so many connections to the server.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    #[must_use]
    pub fn before(server: &Postgres, connections: usize) -> Self {
        Self::sharing(server, connections, "transaction")
    }

    /// The same, but it shares connections by the `session`, `transaction` or `statement`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    #[must_use]
    pub fn sharing(server: &Postgres, connections: usize, mode: &str) -> Self {
        must_be_installed(Path::new(PROGRAM));
        let (directory, port) = (scratch::directory(), Port::free());
        let folder = directory.path();
        let file = folder.join("pgbouncer.ini");
        let config = format!(
            "[databases]\n{DATABASE} = host=127.0.0.1 port={} user={ADMIN}\n\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {mode}\ndefault_pool_size = {connections}\nmax_client_conn = 200\n",
            server.port(),
            port.number
        );
        fs::write(&file, config).expect("its configuration");
        give(folder);
        let mut args = account_args();
        args.extend([PROGRAM.into(), file.into()]);
        let launch = Launch { program: "setpriv".into(), args, env: Vec::new(), log: folder.join("log") };
        let pooler = Self { process: Mutex::new(launch.spawn()), launch, _directory: directory, port };
        let up = wait_for(|| {
            let mut process = pooler.process.lock().expect("no test panicked in here");
            assert!(!process.has_ended(), "PgBouncer does not start:\n{}", pooler.log());
            std::net::TcpStream::connect(("127.0.0.1", pooler.port())).is_ok().then_some(())
        });
        assert!(up.is_some(), "PgBouncer does not start:\n{}", pooler.log());
        pooler
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// `postgres://testkit@127.0.0.1:PORT/postgres`.
    pub fn url(&self) -> String {
        format!("postgres://{ADMIN}@127.0.0.1:{}/{DATABASE}", self.port())
    }

    /// What it wrote to its log so far.
    pub fn log(&self) -> String {
        self.launch.said()
    }
}
