//! Where a server is, and how a connection to it begins.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult, Value,
};
use tokio::time::timeout;

use super::error::{of_connect, of_tls};
use super::node::unavailable;
use super::speech;
use super::url::{Address, Login, Settings, Topology};
use super::wire;
use crate::error::{Certainty, Error, ErrorKind, Result};

/// The oldest server that is supported.
pub(in crate::backends) const VERSION_MIN: (u32, u32) = (6, 2);
/// How long connecting may take, the greeting included.
pub(in crate::backends) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long a server may take before it is looked at what it speaks.
const SUSPICIOUS: Duration = Duration::from_millis(700);
/// How long one sentinel may take to say where the master is.
const SENTINEL_MAX: Duration = Duration::from_millis(1500);
/// How long the kernel lets sent data go unacknowledged.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

/// Where a server is: at an address, or wherever the sentinels say.
#[derive(Clone)]
pub(in crate::backends) struct Place {
    settings: Arc<Settings>,
    address: Option<Address>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{:?}", self.settings),
        }
    }
}

impl Place {
    pub(in crate::backends) fn at(settings: &Arc<Settings>, address: Address) -> Self {
        Self { settings: settings.clone(), address: Some(address) }
    }

    /// The master of the settings' service.
    pub(in crate::backends) fn of_service(settings: &Arc<Settings>) -> Self {
        Self { settings: settings.clone(), address: None }
    }

    async fn find(&self) -> Result<Address> {
        match (&self.address, &self.settings.topology) {
            (Some(address), _) => Ok(address.clone()),
            (None, Topology::Sentinel { service }) => master_of(&self.settings, service).await,
            (None, _) => Err(unavailable("no address")),
        }
    }

    /// Opens a connection for commands to a server that can keep locks.
    pub(in crate::backends) async fn open(&self) -> Result<MultiplexedConnection> {
        let address = self.find().await?;
        let mut opening = pin!(self.connect_to(&address));
        // One that speaks something else says nothing, or breaks off.
        let opened = match timeout(SUSPICIOUS, &mut opening).await {
            Ok(opened) => opened,
            Err(_) => tokio::select! {
                biased;
                opened = &mut opening => opened,
                Some(advice) = speech::advice(&self.settings, &address) => return Err(advice),
            },
        };
        let (connection, hello) = advised(&self.settings, opened, &address).await?;
        // Whoever has said hello speaks as we do, whatever it said.
        self.check(&address, hello)?;
        Ok(connection)
    }

    /// A connection, and what the server says of itself.
    async fn connect_to(&self, address: &Address) -> Result<(MultiplexedConnection, RedisResult<Value>)> {
        let client = client(&self.settings, address, &self.settings.login, self.settings.db)?;
        // Whoever asks has its own patience; the buffer holds what many tasks ask at once.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_MAX))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(2048);
        let opened = client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = opened.map_err(|error| self.refused(&error, address))?;
        let hello = connection.send_packed_command(&redis::cmd("HELLO")).await.and_then(Value::extract_error);
        match hello {
            // It has said nothing.
            Err(error) if error.code().is_none() => Err(self.refused(&error, address)),
            hello => Ok((connection, hello)),
        }
    }

    /// Opens a connection for messages.
    pub(in crate::backends) async fn open_inbox(&self, channel: &str) -> Result<PubSub> {
        let address = self.find().await?;
        let client = client(&self.settings, &address, &self.settings.login, self.settings.db)?;
        let opening = async {
            let mut inbox = client.get_async_pubsub().await?;
            inbox.subscribe(channel).await?;
            Ok(inbox)
        };
        let opened = match timeout(CONNECT_MAX, opening).await {
            Ok(opened) => opened.map_err(|error| self.refused(&error, &address)),
            Err(_) => Err(unavailable(&format!("no answer from Redis at {address}"))),
        };
        advised(&self.settings, opened, &address).await
    }

    fn refused(&self, error: &redis::RedisError, address: &Address) -> Error {
        if error.code() == Some("NOAUTH") && self.settings.login.password.is_none() {
            let message = format!(
                "the Redis at {address} wants a password: write redis://USER:PASSWORD@HOST (redis://:PASSWORD@HOST without a user)"
            );
            return Error::new(ErrorKind::Denied, message);
        }
        refused(error, address)
    }

    /// Whether this server can keep locks: new enough, a master, and of the kind the URL says.
    fn check(&self, address: &Address, hello: redis::RedisResult<Value>) -> Result<()> {
        let too_old = |version: &str| {
            let (major, minor) = VERSION_MIN;
            Error::new(
                ErrorKind::Store,
                format!("this Redis is too old ({version}): tenure needs {major}.{minor} or later; it is at {address}"),
            )
            .with_certainty(Certainty::NotApplied)
        };
        let hello = match hello {
            Ok(hello) => hello,
            Err(error) if error.to_string().to_ascii_lowercase().contains("unknown command") => {
                return Err(too_old("before 6.0"));
            }
            Err(error) => return Err(self.refused(&error, address)),
        };
        let say = |field: &str| hello_field(&hello, field).unwrap_or_default();
        let version = say("version");
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        if (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) < VERSION_MIN {
            return Err(too_old(&version));
        }
        let invalid = |message: &str| Err(Error::new(ErrorKind::Invalid, format!("{address}: {message}")));
        match (say("mode").as_str(), &self.settings.topology) {
            ("cluster", Topology::Cluster) => {}
            ("cluster", _) => return invalid("this Redis is part of a cluster: write redis+cluster://H1,H2,…"),
            (_, Topology::Cluster) => return invalid("this Redis is not part of a cluster: write redis://HOST"),
            ("sentinel", _) => return invalid("this is a sentinel: write redis+sentinel://H1,H2,H3/SERVICE"),
            _ => {}
        }
        if say("role") != "master" {
            return Err(unavailable(&format!("the Redis at {address} is a replica: only its master takes locks")));
        }
        Ok(())
    }
}

/// The same, or what to write instead where that is why a connection failed.
async fn advised<T>(settings: &Settings, opened: Result<T>, address: &Address) -> Result<T> {
    match opened {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            Err(speech::advice(settings, address).await.unwrap_or(error))
        }
        opened => opened,
    }
}

/// A field of the answer to HELLO.
fn hello_field(hello: &Value, field: &str) -> Option<String> {
    let text = |value: &Value| wire::text(value).map(ToOwned::to_owned);
    match hello {
        Value::Array(items) => {
            items.chunks_exact(2).find(|pair| wire::text(&pair[0]) == Some(field)).and_then(|pair| text(&pair[1]))
        }
        Value::Map(pairs) => pairs.iter().find(|(key, _)| wire::text(key) == Some(field)).and_then(|(_, v)| text(v)),
        _ => None,
    }
}

pub(in crate::backends) fn client(settings: &Settings, address: &Address, login: &Login, db: i64) -> Result<Client> {
    let Address { host, port } = address.clone();
    let place = match &settings.tls {
        Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        None => ConnectionAddr::Tcp(host, port),
    };
    let invalid =
        |error: redis::RedisError| Error::new(ErrorKind::Invalid, "the TLS settings cannot be used").because(error);
    let mut redis_settings = RedisConnectionInfo::default().set_db(db).set_skip_set_lib_name();
    if let Some(user) = &login.user {
        redis_settings = redis_settings.set_username(user);
    }
    if let Some(password) = &login.password {
        redis_settings = redis_settings.set_password(password);
    }
    let tcp = TcpSettings::default().set_nodelay(true);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(UNACKNOWLEDGED_MAX);
    let info = place.into_connection_info().map_err(invalid)?.set_redis_settings(redis_settings).set_tcp_settings(tcp);
    match &settings.tls {
        #[cfg(not(feature = "tls"))]
        Some(none) => match *none {},
        #[cfg(feature = "tls")]
        Some(certificates) => Client::build_with_tls(info, certificates.clone()).map_err(invalid),
        None => Client::open(info).map_err(invalid),
    }
}

fn refused(error: &redis::RedisError, address: &Address) -> Error {
    of_tls(error, address).unwrap_or_else(|| of_connect(error).adding(&format!(" at {address}")))
}

/// Asks all sentinels at once where the master is; as soon as more than half agree they are believed, else those that
/// most agree on. One that is cut off from the others may still name the master before.
async fn master_of(settings: &Settings, service: &str) -> Result<Address> {
    let mut asking: FuturesUnordered<_> =
        settings.addresses.iter().map(|sentinel| ask_sentinel(settings, sentinel, service)).collect();
    let mut unknown = None;
    let mut failure = None;
    let mut votes: HashMap<Address, usize> = HashMap::new();
    while let Some(answer) = asking.next().await {
        match answer {
            Ok(Some(address)) => {
                let count = votes.entry(address.clone()).or_default();
                *count += 1;
                if *count > settings.addresses.len() / 2 {
                    return Ok(address);
                }
            }
            Ok(None) => unknown = Some(()),
            Err(error) => failure = Some(error),
        }
    }
    if let Some((address, _)) = votes.into_iter().max_by_key(|(_, count)| *count) {
        return Ok(address);
    }
    if unknown.is_some() {
        let message = format!("the sentinels know no service {service:?}");
        return Err(Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied));
    }
    match failure {
        Some(error) if error.kind() == ErrorKind::Invalid => Err(error),
        Some(error) => Err(error.adding(": no sentinel answered")),
        None => Err(unavailable("no sentinel")),
    }
}

async fn ask_sentinel(settings: &Settings, sentinel: &Address, service: &str) -> Result<Option<Address>> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let value = sentinel_command(settings, sentinel, &command).await?;
    let Value::Array(items) = &value else { return Ok(None) };
    let [host, port] = items.as_slice() else { return Ok(None) };
    let port = wire::number(port).and_then(|port| u16::try_from(port).ok());
    Ok(wire::text(host).zip(port).map(|(host, port)| Address { host: host.to_owned(), port }))
}

/// Asks one sentinel something.
pub(in crate::backends) async fn sentinel_command(
    settings: &Settings,
    sentinel: &Address,
    command: &redis::Cmd,
) -> Result<Value> {
    let client = client(settings, sentinel, &settings.sentinel_login, 0)?;
    let asking = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        connection.send_packed_command(command).await?.extract_error()
    };
    match timeout(SENTINEL_MAX, asking).await {
        Ok(Err(error)) if error.to_string().to_ascii_lowercase().contains("unknown command") => {
            let message =
                format!("{sentinel}: this is a Redis and no sentinel: write redis://HOST, or name the sentinels");
            Err(Error::new(ErrorKind::Invalid, message))
        }
        Ok(answer) => advised(settings, answer.map_err(|error| refused(&error, sentinel)), sentinel).await,
        Err(_) => {
            let silent = Err(unavailable(&format!("no answer from the sentinel at {sentinel}")));
            advised(settings, silent, sentinel).await
        }
    }
}
