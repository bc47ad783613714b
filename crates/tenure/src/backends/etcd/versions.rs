//! Which etcd the members run, as far as locks depend on it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::desk::Desk;
use super::error::is_of_the_member;
use super::link::Link;
use super::wire::StatusResponse;

/// How long whoever connects waits for the members to tell. A member that takes longer counts as one that may lose
/// leases.
const TELL_MAX: Duration = Duration::from_millis(500);

/// What the members told, by their addresses.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<HashMap<String, String>>);

impl Versions {
    fn told(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, member: &str, version: &str) {
        self.told().insert(member.to_owned(), version.to_owned());
    }

    /// Whether all these members keep leases that are renewed. One that may not, or has not told, is enough to lose
    /// one.
    pub(super) fn keep_leases<'a>(&self, mut members: impl Iterator<Item = &'a str>) -> bool {
        let told = self.told();
        members.all(|member| told.get(member).and_then(|version| numbers(version)).is_some_and(|it| !loses_leases(it)))
    }
}

/// What goes before `-rc.1` and the like.
pub(super) fn numbers(version: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = version.split(['-', '+']).next()?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether a leader that stood still may revoke leases that are renewed, once it goes on (etcd#15247).
pub(super) fn loses_leases(version: (u32, u32, u32)) -> bool {
    version < (3, 4, 31) || ((3, 5, 0)..(3, 5, 13)).contains(&version)
}

impl Desk {
    /// Asks every member that the URL names, each by itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn statuses(&self) -> Vec<(String, std::result::Result<StatusResponse, tonic::Status>)> {
        let settings = &self.road.settings;
        let asked = settings.members.iter().map(|member| async {
            let ask = async |login| {
                let link = Box::pin(Link::dial(member, login, self.keys.notes(), self.clock.clone())).await?;
                link.status().await
            };
            // etcd tells it to everybody, and a login takes its time.
            let status = match ask(None).await {
                Err(refused) if settings.login.is_some() && !is_of_the_member(&refused) => {
                    ask(settings.login.as_ref()).await
                }
                status => status,
            };
            if let Ok(told) = &status {
                self.versions.tell(&member.address, &told.version);
            }
            (member.address.clone(), status)
        });
        join_all(asked).await
    }

    /// Learns the versions of the members, as far as they tell soon.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is not known then counts as not safe.
    pub(super) async fn learn_versions(&self) {
        let _ = timeout(TELL_MAX, self.statuses()).await;
    }

    /// Whether etcd keeps leases that are renewed, whatever happens to its leader.
    pub(super) fn keeps_leases(&self) -> bool {
        self.versions.keep_leases(self.road.settings.members.iter().map(|member| member.address.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_leases_if_all_its_members_do() {
        let told = |versions: &[&str]| {
            let all = Versions::default();
            for (member, version) in ["a", "b", "c"].iter().zip(versions) {
                all.tell(member, version);
            }
            all.keep_leases(["a", "b", "c"].into_iter())
        };
        assert!(told(&["3.4.31", "3.5.13", "3.6.0-rc.1"]));
        for old in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "odd"] {
            assert!(!told(&["3.5.21", "3.5.21", old]), "{old}");
        }
        assert!(!told(&["3.5.21", "3.5.21"]), "one that has not told may be old");
    }
}
