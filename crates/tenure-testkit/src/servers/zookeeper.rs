//! A ZooKeeper ensemble.

use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::certificates::Certificates;
use super::ports::Port;
use super::scratch;
use super::spawn::{Launch, Process};
use super::wait::wait_for;

/// Where Debian has it; its manifest names what else it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// What it needs for TLS, which its manifest does not name.
const NETTY: [&str; 3] = ["netty-codec", "netty-resolver", "netty-transport-native-unix-common"];
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// What the names of [`Zookeeper::url`] are below.
const CHROOT: &str = "/tenure";
/// How long a server may take to answer a four-letter word.
const WORD_TIMEOUT: Duration = Duration::from_secs(2);

/// What an ensemble is to be like.
#[derive(Debug)]
pub struct ZookeeperBuilder {
    members: usize,
    config: Vec<(String, String)>,
    /// Settings of one server that differ from the others'.
    own: Vec<(usize, String, String)>,
    users: Vec<(String, String)>,
    tls: bool,
}

impl ZookeeperBuilder {
    /// A setting of `zoo.cfg`, for one server alone.
    #[must_use]
    pub fn config_of(mut self, member: usize, name: &str, value: &str) -> Self {
        self.own.push((member, name.to_owned(), value.to_owned()));
        self
    }

    /// Clients may come by TLS as well, with a certificate of its authority: see [`Zookeeper::tls_url`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self.config("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory")
            .config("ssl.clientAuth", "need")
    }

    /// Only users who log in by SASL (DIGEST-MD5) are served: this one, with this password.
    #[must_use]
    pub fn sasl(mut self, user: &str, password: &str) -> Self {
        self.users.push((user.to_owned(), password.to_owned()));
        self.config("authProvider.1", "org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
            .config("sessionRequireClientSASLAuth", "true")
    }

    /// A setting of `zoo.cfg`, for each server.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.config.retain(|(known, _)| known != name);
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With ticks of 2 s, and sessions of two to twenty of them: what servers have whose `zoo.cfg` does not say.
    #[must_use]
    pub fn usual_ticks(self) -> Self {
        self.config("tickTime", "2000").config("minSessionTimeout", "-1").config("maxSessionTimeout", "-1")
    }

    /// How many servers; one is standalone.
    #[must_use]
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with a log.
    #[must_use]
    pub fn start(self) -> Zookeeper {
        Zookeeper::new(&self)
    }
}

/// An ensemble of this process on ports of its own; killed when dropped.
///
/// Its ticks are short, and so are the sessions it allows. Its methods block their thread, for seconds where servers
/// elect.
pub struct Zookeeper {
    members: Vec<Member>,
    certificates: Option<Certificates>,
    _directory: TempDir,
}

struct Member {
    process: Mutex<Process>,
    launch: Launch,
    port: Port,
    /// Where clients reach it by TLS, if they do.
    secure: Port,
    /// Where the others reach it.
    _peers: [Port; 2],
}

impl Member {
    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Zookeeper {
    /// Three servers that do not wait for the disk.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with a log.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// One to one's taste.
    #[must_use]
    pub fn builder() -> ZookeeperBuilder {
        let config = [
            ("tickTime", "100"),
            ("initLimit", "100"),
            ("syncLimit", "25"),
            ("minSessionTimeout", "200"),
            ("maxSessionTimeout", "130000"),
            ("maxClientCnxns", "0"),
            ("admin.enableServer", "false"),
            ("4lw.commands.whitelist", "*"),
            ("preAllocSize", "1024"),
        ];
        let config = config.map(|(name, value)| (name.to_owned(), value.to_owned()));
        ZookeeperBuilder { members: 3, config: config.into(), own: Vec::new(), users: Vec::new(), tls: false }
    }

    fn new(builder: &ZookeeperBuilder) -> Self {
        assert!(Path::new(JAR).is_file(), "{JAR} is not installed: run scripts/setup");
        let directory = scratch::directory();
        let certificates = builder.tls.then(|| Certificates::make(directory.path()));
        let ports: Vec<([Port; 2], [Port; 2])> =
            (0..builder.members).map(|_| ([Port::free(), Port::free()], [Port::free(), Port::free()])).collect();
        let mut ensemble = String::new();
        if builder.members > 1 {
            for (index, (_, [peer, election])) in ports.iter().enumerate() {
                ensemble += &format!("server.{}=127.0.0.1:{}:{}\n", index + 1, peer.number, election.number);
            }
        }
        let member = |(index, ([port, secure], peers)): (usize, ([Port; 2], [Port; 2]))| {
            let folder = directory.path().join((index + 1).to_string());
            let by_tls = certificates.as_ref().map(|certificates| by_tls(&secure, certificates)).unwrap_or_default();
            let launch = launch(&folder, index + 1, &port, &(ensemble.clone() + &by_tls), builder);
            (launch, port, secure, peers)
        };
        let launches: Vec<(Launch, Port, Port, [Port; 2])> = ports.into_iter().enumerate().map(member).collect();
        let members = launches.into_iter().map(|(launch, port, secure, peers)| Member {
            process: Mutex::new(launch.spawn()),
            launch,
            port,
            secure,
            _peers: peers,
        });
        let ensemble = Self { members: members.collect(), certificates, _directory: directory };
        for index in 0..ensemble.members.len() {
            ensemble.wait_until_up(index);
        }
        ensemble
    }

    /// How many servers there are.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The client port of a server; the same for life.
    pub fn port(&self, member: usize) -> u16 {
        self.members[member].port.number
    }

    /// `zookeeper://127.0.0.1:PORT,…/tenure`, with all servers.
    pub fn url(&self) -> String {
        self.url_below(CHROOT)
    }

    /// [`url`](Self::url) with another chroot, such as `/locks`.
    pub fn url_below(&self, chroot: &str) -> String {
        format!("zookeeper://{}{chroot}", self.servers())
    }

    /// [`url_below`](Self::url_below) by TLS, with the authority's and a client's certificate.
    ///
    /// # Panics
    ///
    /// If its builder was not asked for TLS.
    pub fn tls_url(&self, chroot: &str) -> String {
        let (certificate, key) = self.client_certificate();
        let address = |member: &Member| format!("127.0.0.1:{}", member.secure.number);
        let servers = self.members.iter().map(address).collect::<Vec<_>>().join(",");
        format!(
            "zookeeper://{servers}{chroot}?tls=true&ca={}&cert={}&key={}",
            self.ca_path().display(),
            certificate.display(),
            key.display()
        )
    }

    /// The certificate of the authority that the servers' certificates are signed by.
    ///
    /// # Panics
    ///
    /// If its builder was not asked for TLS.
    pub fn ca_path(&self) -> PathBuf {
        self.certificates().certificate("authority")
    }

    /// A client's certificate and key that they accept.
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

    /// `127.0.0.1:PORT,…`, of all servers.
    pub fn servers(&self) -> String {
        let address = |member: &Member| format!("127.0.0.1:{}", member.port.number);
        self.members.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// The server that leads now.
    pub fn leader(&self) -> Option<usize> {
        (0..self.members.len()).find(|member| self.mode(*member).is_some_and(|mode| mode == "leader"))
    }

    /// What a server is: `leader`, `follower`, `standalone`; none if it serves nobody.
    pub fn mode(&self, member: usize) -> Option<String> {
        let told = self.word(member, "srvr").ok()?;
        told.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// What a server answers to a four-letter word.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn word(&self, member: usize, word: &str) -> std::io::Result<String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port(member)));
        let mut stream = TcpStream::connect_timeout(&address, WORD_TIMEOUT)?;
        stream.set_read_timeout(Some(WORD_TIMEOUT))?;
        stream.write_all(word.as_bytes())?;
        let mut told = String::new();
        stream.read_to_string(&mut told)?;
        Ok(told)
    }

    /// Ends a server as a crash does.
    pub fn kill(&self, member: usize) {
        self.members[member].process().kill();
    }

    /// Starts a server again, with what it has on disk, and waits until it serves.
    ///
    /// # Panics
    ///
    /// If it does not: it takes a quorum to serve.
    pub fn restart(&self, member: usize) {
        self.begin(member);
        self.wait_until_up(member);
    }

    /// [`restart`](Self::restart) without waiting.
    pub fn begin(&self, member: usize) {
        let mut process = self.members[member].process();
        process.kill();
        *process = self.members[member].launch.spawn();
    }

    /// Stops a server in its tracks.
    pub fn pause(&self, member: usize) {
        self.members[member].process().pause();
    }

    /// Lets it go on.
    pub fn resume(&self, member: usize) {
        self.members[member].process().resume();
    }

    /// Waits until a server serves.
    ///
    /// # Panics
    ///
    /// If that takes too long, with its log.
    pub fn wait_until_up(&self, member: usize) {
        let server = &self.members[member];
        let up = wait_for(|| {
            assert!(!server.process().has_ended(), "ZooKeeper does not start:\n{}", server.launch.said());
            // The port for TLS is opened after the other one.
            let by_tls = || TcpStream::connect(("127.0.0.1", server.secure.number)).is_ok();
            self.mode(member).filter(|_| self.certificates.is_none() || by_tls())
        });
        assert!(up.is_some(), "ZooKeeper does not serve:\n{}", server.launch.said());
    }
}

fn launch(folder: &Path, id: usize, port: &Port, ensemble: &str, builder: &ZookeeperBuilder) -> Launch {
    let data = folder.join("data");
    fs::create_dir_all(&data).expect("a directory");
    fs::write(data.join("myid"), id.to_string()).expect("the server's id");
    let mut config =
        format!("dataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n{ensemble}", data.display(), port.number);
    let own = |name: &str| builder.own.iter().find(|(member, own, _)| member + 1 == id && own == name);
    for (name, value) in &builder.config {
        let value = own(name).map_or(value, |(_, _, value)| value);
        config += &format!("{name}={value}\n");
    }
    let path = folder.join("zoo.cfg");
    fs::write(&path, config).expect("the server's settings");
    let jars: Vec<String> = NETTY.iter().map(|jar| format!("/usr/share/java/{jar}.jar")).collect();
    let class_path = format!("{JAR}:{}", jars.join(":"));
    let args = [
        "-Xmx96m",
        "-Xms32m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:-UsePerfData",
        "-Dzookeeper.forceSync=no",
        // Idle names are removed quickly, so that tests meet it.
        "-Dznode.container.checkIntervalMs=500",
        "-cp",
        &class_path,
        MAIN,
    ];
    let mut args: Vec<OsString> = args.map(OsString::from).into();
    if !builder.users.is_empty() {
        let logins = folder.join("jaas.conf");
        fs::write(&logins, jaas(&builder.users)).expect("the server's users");
        let mut setting = OsString::from("-Djava.security.auth.login.config=");
        setting.push(logins);
        args.insert(0, setting);
    }
    args.push(path.into());
    Launch { program: "java".into(), args, env: Vec::new(), log: folder.join("log") }
}

/// Users as the server's own login module wants them.
fn jaas(users: &[(String, String)]) -> String {
    let users: String = users.iter().map(|(user, password)| format!(" user_{user}=\"{password}\"")).collect();
    format!("Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required{users}; }};\n")
}

/// What a server needs for TLS. It wants its key and its certificate in one file.
fn by_tls(port: &Port, certificates: &Certificates) -> String {
    let (certificate, key) = (certificates.certificate("server"), certificates.key("server"));
    let both = certificate.with_extension("pem");
    let text = |path: &Path| fs::read_to_string(path).expect("a certificate");
    fs::write(&both, text(&key) + &text(&certificate)).expect("the server's certificate");
    let authority = certificates.certificate("authority");
    let trusted = authority.with_extension("pem");
    fs::copy(&authority, &trusted).expect("the authority's certificate");
    format!(
        "secureClientPort={}\nssl.keyStore.location={}\nssl.trustStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.type=PEM\n",
        port.number,
        both.display(),
        trusted.display()
    )
}
