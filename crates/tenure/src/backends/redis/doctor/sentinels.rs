//! The sentinels: enough of them to agree on a failover, and in touch.

use futures_util::future::join_all;
use redis::Value;

use super::{Address, Checkup, Fix, Result, Settings, redis_cli, sentinel_command, unavailable, wire};

/// Fewer cannot outvote one that is cut off.
const ENOUGH: u64 = 3;

/// What one sentinel says of the service.
struct Said {
    address: Address,
    master: Option<Address>,
    /// All sentinels it knows, itself included.
    sentinels: u64,
    quorum: u64,
    /// Why a failover could not be agreed on.
    no_quorum: Option<String>,
}

/// Looks at each sentinel of the URL; answers where the master is.
pub(super) async fn examine(settings: &Settings, service: &str, checkup: &mut Checkup) -> Result<Vec<Address>> {
    let asked =
        settings.addresses.iter().map(|address| async move { (address, ask(settings, address, service).await) });
    let mut said = Vec::new();
    let mut failure = None;
    for (address, answer) in join_all(asked).await {
        match answer {
            Ok(answer) => said.push(answer),
            Err(error) => {
                checkup.problem(
                    format!("the sentinel at {address} does not answer: {error}"),
                    "with one more gone, nobody may be left to name a new master",
                    Fix::from("start it again").run(redis_cli(settings, address, "PING")),
                );
                failure = Some(error);
            }
        }
    }
    let Some(master) = said.iter().find_map(|one| one.master.clone()) else {
        return Err(failure.unwrap_or_else(|| unavailable("no sentinel knows the master")));
    };
    let known = said.iter().map(|one| one.sentinels).max().unwrap_or(0);
    let quorum = said.iter().map(|one| one.quorum).max().unwrap_or(0);
    checkup.fact("sentinels", format!("{} of {known} asked, quorum {quorum}", said.len()));
    if known < ENOUGH {
        checkup.problem(
            format!("there are only {known} sentinels"),
            "when the master's machine dies with one of them, the rest are no majority and name no new master",
            format!("start one more on another machine: sentinel monitor {service} {} {} 2", master.host, master.port),
        );
    }
    for one in &said {
        if let Some(no_quorum) = &one.no_quorum {
            checkup.problem(
                format!("the sentinel at {} sees no quorum: {no_quorum}", one.address),
                "no failover can be agreed on: when the master fails, no lock can be taken or kept",
                Fix::from("start the others again").run(redis_cli(
                    settings,
                    &one.address,
                    &format!("SENTINEL CKQUORUM {service}"),
                )),
            );
        }
        if one.master.as_ref().is_some_and(|other| *other != master) {
            checkup.problem(
                format!("sentinels disagree on the master: {master}, but {} says otherwise", one.address),
                "clients of different sentinels would lock in different servers",
                Fix::from("wait for a failover to end; if there is none, let it look anew").run(redis_cli(
                    settings,
                    &one.address,
                    "SENTINEL RESET '*'",
                )),
            );
        }
    }
    Ok(vec![master])
}

async fn ask(settings: &Settings, address: &Address, service: &str) -> Result<Said> {
    let command = |words: &[&str]| {
        let mut command = redis::cmd("SENTINEL");
        for word in words {
            command.arg(word);
        }
        command
    };
    let told = sentinel_command(settings, address, &command(&["MASTER", service])).await?;
    let field = |name: &str| match &told {
        Value::Array(fields) => {
            fields.chunks_exact(2).find(|pair| wire::text(&pair[0]) == Some(name)).map(|pair| &pair[1])
        }
        Value::Map(pairs) => pairs.iter().find(|(key, _)| wire::text(key) == Some(name)).map(|(_, value)| value),
        _ => None,
    };
    let number = |name: &str| field(name).and_then(wire::number).unwrap_or(0);
    let port = u16::try_from(number("port")).ok();
    let master = field("ip").and_then(wire::text).zip(port).map(|(host, port)| Address { host: host.to_owned(), port });
    let quorum = sentinel_command(settings, address, &command(&["CKQUORUM", service])).await;
    Ok(Said {
        address: address.clone(),
        master,
        sentinels: number("num-other-sentinels") + 1,
        quorum: number("quorum"),
        no_quorum: quorum.err().map(|error| error.to_string()),
    })
}
