//! The longer texts of `--help`: how to use each command, and which exit codes matter to it.

pub(crate) const SHORT: &str = "`tenure COMMAND --help` has examples and exit codes";

pub(crate) const TOP: &str = "\
Examples:
  tenure run deploy -- ./deploy.sh             one after another
  tenure run nightly --no-wait -- ./report.sh  one runs, the others exit 75
  tenure run deploy --wait 5m -- make deploy   gives up after five minutes
  tenure show nightly                          who holds it, who waits
  tenure explain nightly                       and why it takes so long
  tenure watch orders/                         what happens, as it happens
  tenure top                                   all locks on a full screen
  tenure doctor --on redis://db.example        is it fit to keep locks?
  tenure bench --on redis://db.example         how fast are locks there?

Stores (--on, or TENURE_URL):
  sqlite:PATH, sqlite:
      all processes of one machine; the default
  redis://[USER:PASSWORD@]HOST[:PORT][/DB]
      one Redis; rediss:// with TLS (?ca=, ?cert=, ?key=)
  redis+sentinel://H1,H2,H3/SERVICE[/DB]
      the master that sentinels name
  redis+cluster://H1,H2
      a Redis cluster
  redis://HOST?layout=plain, ?layout=redisson
      locks shared with other libraries: no queue, no tokens
  redlock://H1,H2,H3,H4,H5[/DB]
      more than half of several Redis masters that know nothing of each
      other; redlocks:// with TLS (?node_timeout=20ms, ?layout=plain)
  etcd://[USER:PASSWORD@]H1,H2,H3
      an etcd cluster (?prefix=/locks/, ?tls=true, ?ca=, ?cert=, ?key=)
  zookeeper://H1,H2,H3[/CHROOT]
      a ZooKeeper ensemble (USER:PASSWORD@ by ?auth=digest or sasl,
      ?tls=true&ca=, ?cert=, ?key=, ?tick=)
  postgres://USER[:PASSWORD]@HOST[:PORT]/DB
      a PostgreSQL (?schema=, ?listen=, ?sslmode=verify-full)
  memory:
      this process alone, for trying things out

Put a URL with a password into TENURE_URL: others may see the arguments of a command when it starts. In a user, a \
password or an option write / as %2F, ? as %3F, # as %23, @ as %40 and & as %26; a password= option comes last.

Environment:
  TENURE_URL     the store, where --on is not given
  TENURE_ON      tenure's own: what --on said, if it has a password
  XDG_STATE_HOME the embedded store's file is tenure/locks.db there, or in
                 ~/.local/state
  The command of `run` is given:
  TENURE_NAME    the name it runs under; of several this, the token and the
                 owner are unset, and TENURE_HELD has them
  TENURE_TOKEN   the fencing token, for what the lock protects (unset where
                 a store has none)
  TENURE_OWNER   the owner of the lock
  TENURE_URL     the store, complete
  TENURE_HELD    what all enclosing runs hold, as JSON; a nested run of the
                 same name re-enters (but for --permits); on redlock:// and
                 ?layout=plain or redisson it shares the outer's lock, and
                 is stopped soon after that ends

Exit codes:
  0    done; `run` exits as its command does (128+N if signal N ended it)
  1    release: the owner holds nothing; break: nobody holds it; doctor:
       findings
  64   usage, a bad value, or a claim that does not go with the live ones
       of the name
  69   the store was not reached, refused us, has no quorum or too few
       replicas, or cannot be used
  75   not acquired: somebody else holds it (or what -E says); renew: the
       claim still waits
  76   the lease was lost or broken
  126  the command cannot be executed
  127  the command was not found
  143  SIGTERM while waiting (130 SIGINT, 129 SIGHUP); the claim was ended";

pub(crate) const RUN: &str = "\
The command runs in a process group of its own. If the lease cannot be kept, the command and all that it has started \
get SIGTERM a grace before they are killed, and SIGKILL shortly before the deadline, even if `tenure run` itself was killed or stopped: \
jobs of a shell, nested runs and daemons too, in whatever group or session they run (but for what other services start \
for it, and what runs as another user, say by sudo). A nested run that is killed has its command killed at once. \
SIGINT, SIGTERM and SIGHUP are passed on to the command's group. The lock is free the moment the command ends; what it \
leaves running then is left alone.

Examples:
  tenure run nightly -- ./report.sh
  tenure run orders/42 --no-wait -- ./ship 42      skip it if busy
  tenure run nightly -n -E 0 -c './report > out'   a line for a shell
  tenure run cache --shared -- ./read-only-job     together with others
  tenure run upload --permits 3 -- ./upload        three at a time
  tenure run acct/3 acct/7 -- ./transfer           both or none
  tenure run db --ttl 30s --grace 5s -- ./migrate
  tenure run pay --min-replicas 1 -- ./pay         once a replica has it
  tenure run -- -x -- ./job                        a name with a dash

Exit codes:
  the command's own, or 128+N if signal N ended it
  126  it cannot be executed      127  it was not found
  64   bad value; name in use with another shape, or one the store lacks;
       exclusive within --shared
  69   store not reached within --wait, or within 10s without it; it
       refused us; no quorum; fewer than --min-replicas
  75   busy with --no-wait, or still busy when --wait was over (or what -E
       says)
  76   the lease was lost or broken, whatever the command then returned
  143  SIGTERM while waiting (130 SIGINT, 129 SIGHUP)";

pub(crate) const ACQUIRE: &str = "\
Prints one line of JSON: {\"name\",\"owner\",\"state\",\"token\",\"expires_in_ms\"}, with the state held. \
Nothing renews the lock: call renew in time, or let it run out. Prefer `tenure run` where you can: it renews, and stops the work when the lease is lost.

Examples:
  owner=$(tenure acquire backup --ttl 1m --wait 10s | jq -r .owner)
  tenure release backup --owner \"$owner\"
  tenure acquire backup --owner \"$CI_JOB_ID\" -n     again: a retry

Exit codes:
  64   bad value
  69   store not reached, no quorum, or fewer than --min-replicas
  75   somebody else holds it (or what -E says)
  143  SIGTERM while waiting (130 SIGINT, 129 SIGHUP)";

pub(crate) const RENEW: &str = "\
Prints what acquire prints. A claim that still waits, since an acquire of its owner does, is renewed too: its state is \
waiting, its token null, and the exit code 75, for the lock is somebody else's.

Example:
  tenure renew backup --owner \"$owner\" --ttl 1m || exit   it is not yours

Exit codes:
  0   renewed, and held
  64  bad value
  69  store not reached
  75  renewed, and still waiting
  76  it is gone: it ran out, was released, or was broken";

pub(crate) const RELEASE: &str = "\
Example:
  tenure release backup --owner \"$owner\"

Exit codes:
  1 this owner holds nothing there    64 bad value    69 store not reached";

pub(crate) const SHOW: &str = "\
Examples:
  tenure show nightly
  tenure show nightly --json | jq '.holders[0].label'

A free name is shown as free, with exit code 0. Tasks of one program that want the same lock wait behind one claim of it, \
and hand the lock on among themselves: such a waiter is shown once.";

pub(crate) const EXPLAIN: &str = "\
Says who holds a name (host and process, if the label tells them), since when and whether it still renews; how many \
hand-overs each waiter is away: claims that end before it holds, if they end in the order they came; what a new claim's \
wait is bounded by; what `tenure break` would do; and what the store cannot tell.

Whether a holder renews takes a second look: until it has renewed or is overdue, 5 seconds at most. A holder renews every \
third of its ttl; what `tenure acquire` took is renewed by nobody. Nothing is changed.

Examples:
  tenure explain nightly
  tenure explain nightly --json | jq '.holders[].renewal'

--json: what `show --json` has, and of each holder host, pid, ttl_ms, renewed_ms and renewal (renewing, overdue, not_due, \
not_seen or untold), of each waiter hand_overs; looked_ms, wait, break and untold.

Exit codes:
  0 also of a free name    64 bad value    69 store not reached";

pub(crate) const LS: &str = "\
Examples:
  tenure ls
  tenure ls orders/ --json | jq -r '.[].name'";

pub(crate) const WATCH: &str = "\
A line for each change: when, what, the name, the holder's or waiter's label, its token and how long it waited or held.

  waiting   a claim waits
  granted   it holds
  released  it was given back; or ended in a way that leaves no trace
  expired   its ttl was over without a renewal
  broken    somebody broke it: who, and why (where the store keeps that)
  lost      the store came back without it after it was out of reach
  left      it waits no more: it gave up, or held and ended between looks

What happens is seen by looking at the store again and again, every --interval (20ms to 1h): a change goes unseen for so \
long and as long as a look takes, and what comes and goes between two looks is not seen at all, nor is what tasks of one \
program hand on among themselves. One look reads all names with the prefix, at most 65536.

Whoever reads too slowly is told how many changes were dropped. A store that goes away is waited for. It ends with the \
reader of a pipe, or with a signal.

Examples:
  tenure watch
  tenure watch orders/ --interval 2s
  tenure watch --json | jq -r 'select(.event == \"expired\") | .name'

--json: a line each of {\"event\",\"name\",\"owner\",\"label\",\"token\",\"at\",\"held_ms\",\"waited_ms\",\"by\",\"reason\"}, \
or {\"event\":\"dropped\",\"count\"}.

Exit codes:
  0    nobody reads it any more
  64   bad value
  69   store not reached
  143  SIGTERM (130 SIGINT, 129 SIGHUP)";

pub(crate) const TOP_SCREEN: &str = "\
A table of all names in use: holder, held for, expires in, how many wait, token. The store is looked at every --interval \
(20ms to 1h), as by `tenure watch`.

  Up Down PgUp PgDn Home End  move
  Enter                       one lock: its queue, what happened to it
  /                           filter by name or holder; Esc shows all
  s, 1 to 6, r                next column, a column, reverse the order
  b                           break it: type yes, and a reason if you like
  ?                           help
  q, Ctrl-C                   leave

Examples:
  tenure top
  tenure top orders/ --on redis://db.example

Exit codes:
  0 left    64 not on a terminal, or a bad value    69 store not reached";

pub(crate) const BREAK: &str = "\
The next holder has a higher token (?layout=plain and redisson have none, and a holder that is another library's is \
refused: only that client can end it; on etcd and ZooKeeper its key is taken away, and it is not told). The evicted one is told who broke it and why, but may work on for a moment (with ?layout=plain and redisson it \
is not told: it notices at its next renewal, up to a third of its ttl later): \
a resource that checks tokens is safe from it, another is not.

Examples:
  tenure break nightly                             says what would be ended
  tenure break nightly --yes --reason 'host web-3 hangs'

Exit codes:
  1 nobody holds it    64 without --yes    69 store not reached";

pub(crate) const DOCTOR: &str = "\
Looks at the store itself: what it forgets in a restart or a failover, what it may drop, how far away it is, whether \
its clocks agree. Tells what it saw, then what to change: what was found, why it matters for locks, what to do, and the \
commands that do it, to be pasted (a password goes into REDISCLI_AUTH or PGPASSWORD before). No lock is touched (a store that was never used is made ready: a file, tables, znodes). What the store does not let you see is said, with the command that shows it.

  PROBLEM  locks can be lost or refused as it is
  ADVICE   it works; it could be safer or quicker

Examples:
  tenure doctor                                        the embedded store
  tenure doctor --on redis://db.example
  tenure doctor --on redis://db --json | jq -r '.findings[].fix_commands[]'
  tenure doctor --on redlock://a,b,c,d,e    each node, also without quorum
  tenure doctor --on etcd://a,b,c           each member, without quorum too

--json: {\"store\",\"facts\":{…},
  \"findings\":[{\"severity\",\"what\",\"why\",\"fix\",\"fix_commands\":[…]}]};
the severity is problem or advice.

Exit codes:
  0 nothing to change    1 findings    64 bad URL    69 store not reached";

pub(crate) const BENCH: &str = "\
Measures the store as a program on this machine would find it:

  uncontended  one process acquires and releases names that nobody else
               wants; the time of such a pair
  hot name     several processes take turns at one name: turns a second,
               how often the lock passed from one process to another, how
               long a turn was waited for, and Jain's index of how evenly
               the turns were spread (1 is even, 1/N is one for all)
  held         one process holds many leases and renews them: its CPU, in
               percent of one core, and its memory

--tasks, --processes and --leases are lists; 0 leaves that measurement out. It takes about a minute, with --quick less than 20 seconds; --seconds and the lists change that. Leases are held for \
whole rounds of renewals, 3.3 seconds each.

The load is bounded by the lists: no more requests are under way than the largest of --tasks, --processes and, with \
--leases, 256, from one machine. But they come as fast as the store answers, and a Redis will be busy with it: do not run it at \
the peak on a store in production. A held lease takes some 350 bytes of a Redis.

Your own locks are safe: its names begin with tenure-bench- and a random number, and each is released, also after \
Ctrl-C or SIGTERM; what a process that was killed still held ends with its ttl of 10s. What stays: on Redis the key \
tenure:last, for a day (in a cluster each name, for a minute); with redlock:// the markers of a fleet, for good; in \
PostgreSQL the tables, and free rows for an hour or so; in ZooKeeper empty znodes, for a minute or so; of the embedded store the file.

Examples:
  tenure bench                                         the embedded store
  tenure bench --on redis://db.example --quick
  tenure bench --tasks 64 --processes 4 --leases 50000 --seconds 10
  tenure bench --json | jq '.uncontended[] | {tasks, pairs_per_s}'

--json: {\"store\",\"uncontended\":[{\"tasks\",\"pairs_per_s\",\"p50_us\",\"p99_us\"}],
  \"hot\":[{\"processes\",\"acquisitions_per_s\",\"transfers_per_s\",
    \"wait_p50_us\",\"wait_p99_us\",\"jain\"}],
  \"held\":[{\"leases\",\"cpu_percent\",\"bytes_per_lease\"}]};
null where nothing was acquired at all.
A store in one process (memory:) has no other processes: hot is empty there.

Exit codes:
  0    measured
  64   bad value
  69   store not reached, or one of the processes failed
  143  SIGTERM (130 SIGINT, 129 SIGHUP); locks are released first, and it
       says so if some are left to their ttl";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  d=~/.local/share/bash-completion/completions; mkdir -p $d
  tenure completions bash > $d/tenure
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish";

pub(crate) const MAN: &str = "\
Examples:
  tenure man | man -l -
  tenure man --out /usr/local/share/man/man1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_out_fits_into_80_columns_also_of_a_manual_page() {
        for text in [
            TOP,
            RUN,
            ACQUIRE,
            RENEW,
            RELEASE,
            SHOW,
            EXPLAIN,
            LS,
            WATCH,
            TOP_SCREEN,
            BREAK,
            DOCTOR,
            BENCH,
            COMPLETIONS,
            MAN,
        ] {
            for line in text.lines().filter(|line| line.starts_with("  ")) {
                assert!(line.chars().count() <= 75, "{line}");
            }
        }
    }
}
