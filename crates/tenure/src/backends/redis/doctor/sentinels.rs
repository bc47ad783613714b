//! The sentinels: enough of them to agree on a failover, and in touch.

use futures_util::future::join_all;
use redis::Value;

use super::{Address, Checkup, Result, Settings, sentinel_cli, sentinel_command, unavailable, wire};
use crate::doctor::{Fix, quoted};

/// Fewer cannot outvote one that is cut off.
const ENOUGH: u64 = 3;
/// What is set for a service besides its master and quorum, and is no secret.
const OPTIONS: [&str; 3] = ["down-after-milliseconds", "failover-timeout", "parallel-syncs"];

/// What one sentinel says of the service.
struct Said {
    address: Address,
    master: Option<Address>,
    /// All sentinels it knows, itself included.
    sentinels: u64,
    quorum: u64,
    options: [u64; OPTIONS.len()],
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
                    "start it again; if it runs, see its log",
                );
                failure = Some(error);
            }
        }
    }
    // The one that most name; of several such, the first.
    let votes = |master: &Address| said.iter().filter(|one| one.master.as_ref() == Some(master)).count();
    let named = said.iter().rev().filter_map(|one| one.master.as_ref().map(|master| (one, master)));
    let Some((trusted, master)) = named.max_by_key(|(_, master)| votes(master)) else {
        return Err(failure.unwrap_or_else(|| unavailable("no sentinel knows the master")));
    };
    let most_agree = votes(master) * 2 > said.len();
    let known = said.iter().map(|one| one.sentinels).max().unwrap_or(0);
    let quorum = said.iter().map(|one| one.quorum).max().unwrap_or(0);
    checkup.fact("sentinels", format!("{} of {known} asked, quorum {quorum}", said.len()));
    if known < ENOUGH {
        checkup.problem(
            format!("there are only {known} sentinels"),
            "when the master's machine dies with one of them, the rest are no majority and name no new master",
            format!(
                "start one more on another machine, with this line in its sentinel.conf: sentinel monitor {service} {} {} 2",
                master.host, master.port
            ),
        );
    }
    for one in &said {
        if let Some(no_quorum) = &one.no_quorum {
            checkup.problem(
                format!("the sentinel at {} sees no quorum: {no_quorum}", one.address),
                "no failover can be agreed on: when the master fails, no lock can be taken or kept",
                quorum_fix(settings, service, one),
            );
        }
        if one.master.as_ref().is_some_and(|other| other != master) {
            checkup.problem(
                format!("sentinels disagree on the master: {master}, but {} says otherwise", one.address),
                "clients of different sentinels would lock in different servers",
                if most_agree {
                    master_fix(settings, service, one, trusted, master)
                } else {
                    "wait for a failover to end; if there is none, find out which is the master, and let the other sentinels \
                     watch that: SENTINEL REMOVE, SENTINEL MONITOR"
                        .into()
                },
            );
        }
    }
    Ok(vec![master.clone()])
}

/// What lets a sentinel see a quorum: fewer that must agree, if it wants more than there are.
fn quorum_fix(settings: &Settings, service: &str, one: &Said) -> Fix {
    if one.quorum <= one.sentinels || one.sentinels < ENOUGH {
        return "start the others again".into();
    }
    let majority = one.sentinels / 2 + 1;
    let words = format!("SENTINEL SET {} quorum {majority}", quoted(service));
    Fix::from(format!(
        "let {majority} of the {} sentinels be enough; it keeps that in its sentinel.conf",
        one.sentinels
    ))
    .run(sentinel_cli(settings, &one.address, &words))
}

/// What lets a sentinel watch the same master as the others. A reset would not: it keeps the master's address.
fn master_fix(settings: &Settings, service: &str, one: &Said, trusted: &Said, master: &Address) -> Fix {
    let run = |fix: Fix, words: String| fix.run(sentinel_cli(settings, &one.address, &words));
    let service = quoted(service);
    let options: Vec<String> =
        OPTIONS.iter().zip(trusted.options).map(|(name, value)| format!("{name} {value}")).collect();
    let fix = Fix::from(
        "wait for a failover to end; if there is none, let it watch what the others watch, and give it auth-user and \
         auth-pass anew (SENTINEL SET) if the servers want a login",
    );
    let fix = run(fix, format!("SENTINEL REMOVE {service}"));
    let host = quoted(&master.host);
    let fix = run(fix, format!("SENTINEL MONITOR {service} {host} {} {}", master.port, trusted.quorum));
    run(fix, format!("SENTINEL SET {service} {}", options.join(" ")))
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
        options: OPTIONS.map(number),
        no_quorum: quorum.err().map(|error| error.to_string()),
    })
}
