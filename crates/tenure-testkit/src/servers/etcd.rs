//! A cluster of etcd.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::certificates::Certificates;
use super::ports::Port;
use super::scratch;
use super::spawn::{Launch, Process, must_be_installed};
use super::wait::wait_for;

/// How long a member may take to tell how it is.
const TELL_MAX: Duration = Duration::from_secs(2);
/// Between elections and quick tests: leases of one second are possible, and a busy machine holds no election by
/// itself.
const HEARTBEAT_MS: &str = "50";
const ELECTION_MS: &str = "500";

/// What a cluster is to be like.
#[derive(Debug)]
pub struct EtcdBuilder {
    members: usize,
    tls: bool,
    login: Option<(String, String, String)>,
    durable: bool,
    args: Vec<String>,
}

impl EtcdBuilder {
    /// How many members; three unless told otherwise.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Only TLS gets in.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Only this user gets in, by this password, and may touch only keys with this prefix.
    #[must_use]
    pub fn login(mut self, user: &str, password: &str, prefix: &str) -> Self {
        self.login = Some((user.to_owned(), password.to_owned(), prefix.to_owned()));
        self
    }

    /// Every write is on the disk before it is answered, as where it matters. Without it, members that are killed
    /// lose nothing either; only a machine would. And no slow disk of the machine costs a leader its place.
    #[must_use]
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Another argument of `etcd`.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Starts it, and returns when it has a leader.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    #[must_use]
    pub fn start(self) -> Etcd {
        Etcd::new(&self)
    }
}

/// An etcd of this process on ports of its own; killed when dropped.
///
/// Its methods block their thread, for milliseconds mostly.
pub struct Etcd {
    members: Vec<Member>,
    login: Option<(String, String, String)>,
    certificates: Option<Certificates>,
    _directory: TempDir,
}

struct Member {
    process: Mutex<Process>,
    launch: Launch,
    clients: Port,
    _peers: Port,
    metrics: Port,
}

impl Member {
    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it tells over HTTP.
    fn tells(&self, what: &str) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.metrics.number)).ok()?;
        stream.set_read_timeout(Some(TELL_MAX)).ok()?;
        write!(stream, "GET {what} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
        let mut told = String::new();
        stream.read_to_string(&mut told).ok()?;
        Some(told)
    }

    /// Whether it can answer for the cluster.
    fn is_well(&self) -> bool {
        self.tells("/health").is_some_and(|told| told.contains(r#""health":"true""#))
    }

    fn leads(&self) -> bool {
        self.tells("/metrics").is_some_and(|told| told.lines().any(|line| line == "etcd_server_is_leader 1"))
    }
}

impl Etcd {
    /// Three members that anybody gets into.
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
    pub fn builder() -> EtcdBuilder {
        EtcdBuilder { members: 3, tls: false, login: None, durable: false, args: Vec::new() }
    }

    fn new(builder: &EtcdBuilder) -> Self {
        let directory = scratch::directory();
        let certificates = builder.tls.then(|| Certificates::make(directory.path()));
        let ports: Vec<[Port; 3]> = (0..builder.members).map(|_| [Port::free(), Port::free(), Port::free()]).collect();
        let peer = |port: &Port| format!("http://127.0.0.1:{}", port.number);
        let cluster: Vec<String> =
            ports.iter().enumerate().map(|(index, [_, peers, _])| format!("m{index}={}", peer(peers))).collect();
        let cluster = cluster.join(",");
        let scheme = if builder.tls { "https" } else { "http" };
        let launch = |index: usize, [clients, peers, metrics]: &[Port; 3]| {
            let own = format!("{scheme}://127.0.0.1:{}", clients.number);
            let data = directory.path().join(format!("m{index}")).display().to_string();
            let name = format!("m{index}");
            let (peers, metrics) = (peer(peers), peer(metrics));
            let mut args: Vec<OsString> = [
                ("--name", name.as_str()),
                ("--data-dir", &data),
                ("--listen-client-urls", &own),
                ("--advertise-client-urls", &own),
                ("--listen-peer-urls", &peers),
                ("--initial-advertise-peer-urls", &peers),
                ("--initial-cluster", &cluster),
                ("--initial-cluster-state", "new"),
                ("--listen-metrics-urls", &metrics),
                ("--heartbeat-interval", HEARTBEAT_MS),
                ("--election-timeout", ELECTION_MS),
                ("--log-level", "warn"),
            ]
            .iter()
            .flat_map(|(name, value)| [OsString::from(name), OsString::from(value)])
            .collect();
            if let Some(certificates) = &certificates {
                args.extend(["--cert-file".into(), certificates.certificate("server").into()]);
                args.extend(["--key-file".into(), certificates.key("server").into()]);
            }
            if !builder.durable {
                args.push("--unsafe-no-fsync".into());
            }
            args.extend(builder.args.iter().map(OsString::from));
            let log = directory.path().join(format!("m{index}.log"));
            Launch { program: "etcd".into(), args, env: Vec::new(), log }
        };
        let launches: Vec<Launch> = ports.iter().enumerate().map(|(index, ports)| launch(index, ports)).collect();
        let members = launches
            .into_iter()
            .zip(ports)
            .map(|(launch, [clients, peers, metrics])| Member {
                process: Mutex::new(launch.spawn()),
                launch,
                clients,
                _peers: peers,
                metrics,
            })
            .collect();
        let mut etcd = Self { members, login: None, certificates, _directory: directory };
        for member in 0..etcd.members.len() {
            etcd.wait_until_up(member);
        }
        if let Some((user, password, prefix)) = &builder.login {
            etcd.etcdctl(&["user", "add", "root:root"]);
            etcd.etcdctl(&["user", "add", &format!("{user}:{password}")]);
            etcd.etcdctl(&["role", "add", "locks"]);
            etcd.etcdctl(&["role", "grant-permission", "--prefix=true", "locks", "readwrite", prefix]);
            etcd.etcdctl(&["user", "grant-role", user, "locks"]);
            etcd.etcdctl(&["auth", "enable"]);
            etcd.login.clone_from(&builder.login);
        }
        etcd
    }

    fn member(&self, index: usize) -> &Member {
        self.members.get(index).unwrap_or_else(|| panic!("no member {index}"))
    }

    /// How many members it has.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The address of a member.
    pub fn address(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.member(member).clients.number)
    }

    /// The certificate of the authority that the members' certificates are signed by.
    ///
    /// # Panics
    ///
    /// If its builder was not asked for TLS.
    pub fn ca_path(&self) -> PathBuf {
        self.certificates().certificate("authority")
    }

    /// A client's certificate and key.
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

    /// `etcd://127.0.0.1:P1,127.0.0.1:P2,...`, with the login, prefix and certificate of its builder.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// [`url`](Self::url) with more options, such as `prefix=%2Flocks%2F`.
    pub fn url_with(&self, options: &str) -> String {
        self.url_of((0..self.size()).map(|member| self.address(member)), options)
    }

    /// [`url_with`](Self::url_with) by other addresses: those of proxies, or some members.
    pub fn url_of(&self, addresses: impl Iterator<Item = String>, options: &str) -> String {
        let login = self
            .login
            .as_ref()
            .map_or_else(String::new, |(user, password, _)| format!("{}:{}@", percent(user), percent(password)));
        let prefix = self.login.as_ref().map(|(_, _, prefix)| format!("prefix={}", percent(prefix)));
        let tls = self.certificates.as_ref().map(|_| format!("tls=true&ca={}", self.ca_path().display()));
        let all: Vec<&str> = prefix
            .as_deref()
            .into_iter()
            .chain(tls.as_deref())
            .chain([options])
            .filter(|all| !all.is_empty())
            .collect();
        let mark = if all.is_empty() { "" } else { "?" };
        format!("etcd://{login}{}{mark}{}", addresses.collect::<Vec<_>>().join(","), all.join("&"))
    }

    /// What `etcdctl` prints for this; as root, if it has users.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn etcdctl(&self, args: &[&str]) -> String {
        let output = self.etcdctl_command(args).output().expect("cannot run etcdctl");
        succeeded(args, &output);
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// `etcdctl` with these arguments, to be run.
    pub fn etcdctl_command(&self, args: &[&str]) -> Command {
        must_be_installed(Path::new("etcdctl"));
        let endpoints: Vec<String> = (0..self.size()).map(|member| self.address(member)).collect();
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", endpoints.join(",")));
        if self.certificates.is_some() {
            command.arg(format!("--cacert={}", self.ca_path().display()));
        }
        if self.login.is_some() {
            command.arg("--user=root:root");
        }
        command.args(args);
        command
    }

    fn wait_until_up(&self, index: usize) {
        let member = self.member(index);
        let up = wait_for(|| {
            assert!(!member.process().has_ended(), "etcd does not start:\n{}", member.launch.said());
            member.is_well().then_some(())
        });
        assert!(up.is_some(), "etcd does not start:\n{}", member.launch.said());
    }

    /// The member that leads; waits for an election to end.
    ///
    /// # Panics
    ///
    /// If none does for a good while.
    pub fn leader(&self) -> usize {
        let leader = wait_for(|| {
            let runs = |index: &usize| {
                let mut process = self.member(*index).process();
                !process.has_ended() && !process.is_paused()
            };
            (0..self.size()).filter(runs).find(|index| self.member(*index).leads())
        });
        leader.expect("etcd has no leader")
    }

    /// The sum of what a member counts under a name, such as `grpc_server_msg_received_total`, in the lines that have
    /// all of `labels`.
    pub fn counts(&self, member: usize, name: &str, labels: &[&str]) -> f64 {
        let told = self.member(member).tells("/metrics").unwrap_or_default();
        let lines =
            told.lines().filter(|line| line.starts_with(name) && labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The process of a member.
    pub fn pid(&self, member: usize) -> u32 {
        self.member(member).process().pid()
    }

    /// Ends a member as a crash does.
    pub fn kill(&self, member: usize) {
        self.member(member).process().kill();
    }

    /// Starts a member again, with what it has on disk; returns when it answers for the cluster.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&self, member: usize) {
        self.start_again(member);
        self.wait_until_up(member);
    }

    /// Starts a member again, and does not wait for it.
    pub fn start_again(&self, index: usize) {
        let member = self.member(index);
        member.process().kill();
        *member.process() = member.launch.spawn();
    }

    /// Stops a member in its tracks.
    pub fn pause(&self, member: usize) {
        self.member(member).process().pause();
    }

    /// Lets it go on.
    pub fn resume(&self, member: usize) {
        self.member(member).process().resume();
    }
}

fn percent(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn succeeded(args: &[&str], output: &Output) {
    assert!(
        output.status.success(),
        "etcdctl {args:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
