//! What ZooKeeper's refusals mean to a user.

use zookeeper_client::Error as Refused;

use crate::backends::kit::tls::Distrust;
use crate::error::{Certainty, Error, ErrorKind};

/// Whether the server answered: a refusal, of which nothing was applied.
pub(super) fn is_answer(error: &Refused) -> bool {
    matches!(
        error,
        Refused::NoNode
            | Refused::NoAuth
            | Refused::BadVersion
            | Refused::NoChildrenForEphemerals
            | Refused::NodeExists
            | Refused::NotEmpty
            | Refused::InvalidAcl
            | Refused::NotReadOnly
            | Refused::NoWatcher
            | Refused::QuotaExceeded
            | Refused::Throttled
            | Refused::MarshallingError
            | Refused::Unimplemented
    )
}

/// Translates what became of a request. What the server refused was not applied; what it did not answer may have been.
pub(super) fn of_request(error: Refused) -> Error {
    let certainty = if is_answer(&error) { Certainty::NotApplied } else { Certainty::Unknown };
    translate(error).with_certainty(certainty)
}

/// Translates an error from before anything was asked.
pub(super) fn of_connecting(error: Refused) -> Error {
    translate(error).with_certainty(Certainty::NotApplied)
}

/// What a server says to a client without a user, where it wants one.
pub(super) fn wants_login(error: &Refused) -> Error {
    Error::new(ErrorKind::Denied, "ZooKeeper wants a login: write zookeeper://USER:PASSWORD@HOST/CHROOT?auth=sasl")
        .because(error.to_string())
}

pub(super) fn unavailable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::NotApplied)
}

/// What a session in doubt is not asked for.
pub(super) fn unsure() -> Error {
    unavailable("it is not known yet whether the session's new server keeps it as long")
}

/// A name that is changed by others as fast as we look.
pub(super) fn restless() -> Error {
    Error::new(ErrorKind::Unavailable, "others changed the name again and again").with_certainty(Certainty::Unknown)
}

fn translate(error: Refused) -> Error {
    if let Some(distrust) = Distrust::of(&error.to_string()) {
        return distrust.explained("ZooKeeper", ["ca", "cert", "key"]).because(error.to_string());
    }
    let (kind, message) = match &error {
        Refused::NoAuth => (
            ErrorKind::Denied,
            "the znodes belong to another user, or the password is another one: name both as zookeeper://USER:PASSWORD@HOST",
        ),
        Refused::AuthFailed => (
            ErrorKind::Denied,
            "ZooKeeper refused the login: name a user it knows as zookeeper://USER:PASSWORD@HOST, with ?auth=sasl if it asks for SASL",
        ),
        Refused::InvalidAcl => (
            ErrorKind::Denied,
            "ZooKeeper does not take the user's rights for new znodes: with ?auth=sasl its servers have to offer SASL",
        ),
        Refused::NoHosts => (ErrorKind::Unavailable, "no server of the ensemble answers, or they have no quorum"),
        Refused::Timeout => (ErrorKind::Unavailable, "no answer from ZooKeeper"),
        Refused::ConnectionLoss => (ErrorKind::Unavailable, "the connection to ZooKeeper was lost"),
        Refused::SessionExpired | Refused::SessionMoved => (ErrorKind::Unavailable, "the ZooKeeper session expired"),
        Refused::ClientClosed => (ErrorKind::Unavailable, "the ZooKeeper session was closed"),
        Refused::Throttled => (ErrorKind::Unavailable, "ZooKeeper is overloaded and refuses requests"),
        Refused::NotReadOnly => (ErrorKind::Unavailable, "this server is cut off from its quorum, and only reads"),
        Refused::QuotaExceeded => (ErrorKind::Store, "the quota of the chroot is used up"),
        Refused::NoChildrenForEphemerals => {
            (ErrorKind::Store, "the znode of this name is ephemeral, and so cannot have claims below it")
        }
        Refused::Unimplemented => (ErrorKind::Store, "this ZooKeeper is too old: tenure needs 3.5 or newer"),
        Refused::Custom(_) => (ErrorKind::Unavailable, "the connection to ZooKeeper failed"),
        _ => (ErrorKind::Store, "ZooKeeper refused"),
    };
    Error::new(kind, message).because(error.to_string())
}
