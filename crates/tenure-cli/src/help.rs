//! The longer texts of `--help`: how to use each command, and which exit codes matter to it.

pub(crate) const SHORT: &str = "`tenure COMMAND --help` has examples and exit codes";

pub(crate) const TOP: &str = "\
Examples:
  tenure run deploy -- ./deploy.sh             one after another
  tenure run nightly --no-wait -- ./report.sh  one runs, the others exit 75
  tenure run deploy --wait 5m -- make deploy   gives up after five minutes
  tenure elect billing -- ./billing            one leads, the others wait
  tenure once report --every 24h -- ./report   once a day, on one of them
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
  http://[:SECRET@]H1[:7420][,H2,H3]
      a lock service (`tenure serve`), at any of its instances; https://
      with TLS (?ca=, ?cert=, ?key=)
  memory:
      this process alone, for trying things out

Put a URL with a password into TENURE_URL: others may see the arguments of a command when it starts. In a user, a \
password or an option write / as %2F, ? as %3F, # as %23, @ as %40 and & as %26; a password= option comes last.

Environment:
  TENURE_URL     the store, where --on is not given
  TENURE_BEARER  the secret for a lock service, where the URL has none
  TENURE_ON      tenure's own: what --on said, if it has a password
  XDG_STATE_HOME the embedded store's file is tenure/locks.db there, or in
                 ~/.local/state
  The command of `run` is given:
  TENURE_NAME    the name it runs under; of several this, the token and the
                 owner are unset, and TENURE_HELD has them
  TENURE_TOKEN   the fencing token, for what the lock protects (unset where
                 a store has none)
  TENURE_OWNER   the owner of the lock
  TENURE_TERM    for `elect`: the term, which is the token
  TENURE_URL     the store, complete
  TENURE_HELD    what all enclosing runs hold, as JSON; a nested run of the
                 same name re-enters (but for --permits); on redlock:// and
                 ?layout=plain or redisson it shares the outer's lock, and
                 is stopped soon after that ends

Exit codes:
  0    done; `run` exits as its command does (128+N if signal N ended it)
  1    release: the owner holds nothing; break: nobody holds it; doctor:
       findings; deadlocks: there are any
  64   usage, a bad value, or a claim that does not go with the live ones
       of the name
  69   the store was not reached, refused us, has no quorum or too few
       replicas, or cannot be used
  75   not acquired: somebody else holds it (or what -E says), or it waited
       in a deadlock that was broken; renew: the claim still waits
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

pub(crate) const ELECT: &str = "\
Waits until it leads, then runs the command for as long as it does. A leader that cannot renew has its command's group \
told to stop (SIGTERM) a grace before the deadline and killed (SIGKILL) at it, also if the command ignores SIGTERM or \
`tenure elect` itself was killed or stopped: another leads only after that. Then it campaigns again. When the command \
ends by itself, what it left running is told to stop, and killed after the grace; then it resigns and exits with the \
command's code.

No lease stops what the command has sent already: send $TENURE_TERM with every order, and refuse orders of a lower term \
than the highest seen.

Examples:
  tenure elect billing -- ./billing --term-from-env
  tenure elect shard/7 --address 10.0.0.7:8080 -- ./serve-shard 7
  tenure elect billing --once -- ./billing         for a supervisor
  tenure elect billing --observe                   who leads, as it changes
  tenure elect billing --observe --json | jq -r .address

--observe --json: a line each of {\"name\",\"term\",\"label\",\"address\",\"since_ms\"}; terms rise. The store is looked at \
every half second: a leader that came and went in between is not told, nor that nobody leads.

Exit codes:
  the command's own, or 128+N if signal N ended it
  126  it cannot be executed      127  it was not found
  64   bad value; a store that keeps no memos; within a run that holds NAME
  69   store not reached within 10s at first; later outages are ridden out
  76   with --once: the leadership was lost or broken
  143  SIGTERM while campaigning (130 SIGINT, 129 SIGHUP)";

pub(crate) const ONCE: &str = "\
Start it on every host, by cron or a timer: one host runs the command, the others exit 75 and say who ran this slot, when, \
and how it ended. A slot is a period (--every) or begins at a point of a schedule (--cron), by the store's clock: the \
hosts' clocks do not matter. The start is recorded and fenced in the store before the command starts, so a host that dies \
does not have its slot run again, unless --retry allows it.

A call within the last tenth of a period, or the last minute, means the next slot and waits for it. A late host within a slot \
runs it if nobody has. A slot whose predecessor still runs is skipped. --cron: a fixed hour that comes twice (end of summer \
time) runs once, one that is skipped runs after the gap; if minute or hour begins with *, slots follow real time.

Examples:
  tenure once report --cron '0 3 * * *' --tz Europe/Berlin -- ./report
  tenure once sync --every 15m --retry 2 --timeout 10m -- ./sync
  tenure once sync --every 1h --reschedule -- ./sync    from now on
  tenure once report --status

What a command leaves running when it ends is left alone. One run per slot is promised where the store keeps memos; `tenure \
doctor` and docs/guarantees.md say where it may lose them.

--status --json: an array of {\"schedule\",\"slot\",\"attempt\",\"by\",\"started\",\"ended\",\"outcome\"}, the latest of at most 16 first; \
ended and outcome are null while it runs, and if its end was not recorded.

Exit codes:
  the command's own, or 128+N if signal N ended it
  126  it cannot be executed      127  it was not found
  64   bad value; another schedule in use under NAME, without
       --reschedule; a store without memos or a clock
  69   store not reached within 10s; the record is ahead of the store's
       clock; fewer than --min-replicas have the record
  75   skipped: the line on stderr says why
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
wait is bounded by; what `tenure break` would do; which deadlocks it is part of; and what the store cannot tell.

Whether a holder renews takes a second look: until it has renewed or is overdue, 5 seconds at most. A holder renews every \
third of its ttl; what `tenure acquire` took is renewed by nobody. Nothing is changed.

Examples:
  tenure explain nightly
  tenure explain nightly --json | jq '.holders[].renewal'

--json: what `show --json` has, and of each holder host, pid, ttl_ms, renewed_ms and renewal (renewing, overdue, not_due, \
not_seen or untold), of each waiter hand_overs; looked_ms, wait, break, deadlocks (as `deadlocks --json` has their waits) and untold.

Exit codes:
  0 also of a free name    64 bad value    69 store not reached";

pub(crate) const MEMO: &str = "\
A memo is a small value that the exclusive holder of a name writes and anyone reads; it stays when the lock is released. \
Programs write it with the library (Guard::write_memo); jobs that run once, leaders and caches keep theirs there.

Examples:
  tenure memo import
  tenure memo import --json | jq -r .value | base64 -d

The bytes are printed as they are (on a terminal without control characters). --json: name, token (of the holder that wrote it), version, age_ms, kind (user, once, \
election or cached) and value in base64; null where there is none.

Exit codes:
  0 printed    1 no memo    64 bad value, or no memos in this store
  69 store not reached";

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

pub(crate) const SERVE: &str = "\
The same locks for every language: TryLock is one POST, ReleaseLock another. Any number of instances serve one store, and any \
of them serves any claim; none keeps anything of its own. The dashboard is at /, the description of all routes at \
/openapi.json, metrics at /metrics, probes at /healthz (this process) and /readyz (the store has answered within 10 s).

Examples:
  tenure serve --on redis://db.example
  curl --json '{\"name\":\"orders/42\",\"ttl_ms\":10000}' \\
    http://127.0.0.1:7420/v1/acquire
  tenure serve token orders --prefix orders/ >> tokens.toml
  tenure serve --listen 0.0.0.0:7420 --tokens tokens.toml \\
    --tls-cert cert.pem --tls-key key.pem --on etcd://db.example
  tenure serve --groups orders,jobs               more labels in metrics

Limits: a body of 128 KiB (a renewal of many: 4 MiB and 1,000 claims; a memo: 256 KiB, for a value of 64 KiB), a head of \
16 KiB, 10 s for a body to arrive, 60 s for a head to arrive (and so for an idle connection, and for one whose caller does not read what it is sent), a wait of 50 s, 1,000 \
names in a page, 10,000 claims in a page of several names, 256 requests at once on an HTTP/2 connection of which 192 may wait. Each connection is an open file: the limit \
of this process (ulimit -n) is raised as far as the system allows, and --connections is brought below it. Renewals and releases \
are never refused because of waiters.

SIGHUP reads tokens and certificates again; a file that is wrong changes nothing. SIGTERM answers what waits at once (claims \
keep their places for the next instance) and what is under way within 10 s.

Exit codes:
  0   told to stop
  64  a bad value, or open to other machines without tokens
  69  store not reached, address taken";

pub(crate) const SERVE_TOKEN: &str = "\
Examples:
  tenure serve token orders --prefix orders/ >> tokens.toml
  tenure serve token admin --may acquire,read,break >> tokens.toml

The file has only the SHA-256 of the secret; the secret itself is printed once, on stderr. Callers send it as \
`authorization: Bearer SECRET`; the tenure command takes it as the password of the URL (http://:SECRET@HOST) or from \
$TENURE_BEARER.";

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

pub(crate) const DEADLOCKS: &str = "\
A deadlock is a circle of owners, each of which holds what the one before it waits for: none of them ever goes on. It looks at \
all names of the store that somebody waits for, twice, and tells only what both looks show. Who merely waits behind a circle is \
not told of: it goes on when the circle is broken.

Owners are sessions of programs, and nested runs: what `tenure run a -- tenure run b -- …` waits for, the outer run waits for, \
too. Not seen: locks of one program outside a session, for nothing says that they belong together; locks in other stores. A \
session is taken to wait while one of its tasks does, unless another task of it works on: tenure cannot see tasks.

--break ends, of each deadlock, the claim that came last, if it still waits. Its acquire fails with kind deadlock (`tenure run` \
exits 75) and does not wait again; what it holds besides is its own to give back. The others go on then.

To have no deadlocks: take locks in one order everywhere (lock_all does), wait with --wait, or use \
session().refuse_deadlock() in programs.

Examples:
  tenure deadlocks
  tenure deadlocks --json | jq '.[].waits[] | {label, name, for}'
  tenure deadlocks --break

--json: an array of deadlocks, each with waits, in order: of each wait name, owner, label, shape, waited_ms, within (the owner \
whose run it is nested in, or null), for (owner, label, holds: false if that one waits, too, before it), claim and number; victim: \
which of the waits came last, counted from 0; broken: whether that one was ended.

Exit codes:
  0 none    1 there are, or were before --break    64 no queue there
  69 store not reached";

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
            ELECT,
            ONCE,
            ACQUIRE,
            RENEW,
            RELEASE,
            SHOW,
            EXPLAIN,
            LS,
            WATCH,
            TOP_SCREEN,
            SERVE,
            SERVE_TOKEN,
            BREAK,
            DEADLOCKS,
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
