//! What people are told, whole: all that is printed on stdout (`1|`) and stderr (`2|`), and the exit code. Times,
//! paths and the machine's name are replaced.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use tenure_testkit::servers::shared;

use crate::pty::{on_terminal, shown};
use crate::support::{Done, Running, Store, bare, done, eventually, told, without_times};
use crate::usage::COMMANDS;

/// Each call on the store, and all that it says.
#[track_caller]
fn says(store: &Store, cases: &[(&str, &str)]) {
    for (args, expected) in cases {
        let got = told(&store.tenure(args), store);
        assert_eq!(got, expected.trim_start(), "tenure {args}");
    }
}

#[test]
fn a_lock_that_is_busy() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    says(
        &store,
        &[
            ("run x -n -- true", "2| tenure: x: busy: held by boss (expires in TIME unless renewed) [STORE]\nexit 75"),
            (
                "run x -n -E 3 -- true",
                "2| tenure: x: busy: held by boss (expires in TIME unless renewed) [STORE]\nexit 3",
            ),
            ("acquire x -n", "2| tenure: x: busy: held by boss (expires in TIME unless renewed) [STORE]\nexit 75"),
            ("run x -w 10ms -- true", "2| tenure: x: not acquired within 10ms: held by boss [STORE]\nexit 75"),
            ("run x -q -w 1s -- true", "2| tenure: x: not acquired within 1s: held by boss [STORE]\nexit 75"),
            (
                "run x --permits 2 -- true",
                "2| tenure: x: in use with another shape: exclusive now, 1 of 2 permits asked for; wait until it is free, \
                 or use one shape [STORE]\nexit 64",
            ),
        ],
    );
}

#[test]
fn a_wait_that_is_over_tells_how_many_more_were_ahead() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    let _waiter = store.start_waiter("x", "");
    says(
        &store,
        &[(
            "run x -w 10ms -- true",
            "2| tenure: x: not acquired within 10ms: held by boss, 1 more ahead [STORE]\nexit 75",
        )],
    );
}

#[test]
fn errors_for_programs() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    says(
        &store,
        &[
            (
                "run x -n --json -- true",
                r#"2| {"error":"x: busy: held by boss (expires in TIME unless renewed) [STORE]","kind":"busy","name":"x","holder":{"label":"boss","expires_in_ms":TIME},"certainty":"not_applied","exit":75}
exit 75"#,
            ),
            (
                "run x -w 10ms --json -- true",
                r#"2| {"error":"x: not acquired within 10ms: held by boss [STORE]","kind":"timeout","name":"x","holder":{"label":"boss","expires_in_ms":TIME},"certainty":"not_applied","exit":75}
exit 75"#,
            ),
            (
                "show x --json --on 127.0.0.1:6379",
                r#"2| {"error":"\"127.0.0.1:6379\" names no store that is known: it begins with what kind of store it is, such as redis://127.0.0.1:6379","kind":"invalid","certainty":"not_applied","exit":64}
exit 64"#,
            ),
            (
                "renew y --owner o --json",
                r#"2| {"error":"y: the lease was lost: the store no longer has the claim","kind":"lost","name":"y","certainty":"not_applied","exit":76}
exit 76"#,
            ),
        ],
    );
}

#[test]
fn waiting_in_a_log() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    says(
        &store,
        &[(
            "run x --wait 5s -- true",
            "2| tenure: x: held by boss for TIME, waiting TIME, next\n\
             2| tenure: x: not acquired within 5s: held by boss [STORE]\nexit 75",
        )],
    );
}

#[test]
fn waiting_behind_others_in_a_log() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    let _waiters = [store.start_waiter("x", "-q"), store.start_waiter("x", "-q")];
    says(
        &store,
        &[(
            "run x --wait 5s -- true",
            "2| tenure: x: held by boss for TIME, waiting TIME, 2 ahead\n\
             2| tenure: x: not acquired within 5s: held by boss, 2 more ahead [STORE]\nexit 75",
        )],
    );
}

#[test]
fn waiting_on_a_terminal_is_one_line_drawn_over() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    let mut waiting = on_terminal(&store, "$T run x --wait 5s -- true");
    let _input = waiting.stdin();
    let text = without_times(&shown(&waiting.wait().exits(75)).replace(&store.url(), "STORE"));
    let mut frames: Vec<&str> = text.split("\r\x1b[K").collect();
    let drawn = frames.len();
    frames.dedup();
    let expected = [
        "",
        "tenure: x: held by boss for TIME, waiting TIME, next",
        "tenure: x: not acquired within 5s: held by boss [STORE]\r\n",
    ];
    assert_eq!(frames, expected);
    assert!(drawn > expected.len(), "it goes on telling the time: {text:?}");
}

#[test]
fn waiting_on_a_dumb_terminal_is_a_line_for_each_change() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    let mut waiting = on_terminal(&store, "TERM=dumb $T run x --wait 5s -- true");
    let _input = waiting.stdin();
    let text = without_times(&shown(&waiting.wait().exits(75)).replace(&store.url(), "STORE"));
    let expected = "tenure: x: held by boss for TIME, waiting TIME, next\r\n\
                    tenure: x: not acquired within 5s: held by boss [STORE]\r\n";
    assert_eq!(text, expected);
}

#[test]
fn a_wait_that_a_signal_ends() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    for (signal, name, code) in
        [(Signal::TERM, "SIGTERM", 143), (Signal::INT, "SIGINT", 130), (Signal::HUP, "SIGHUP", 129)]
    {
        let waiter = store.start_waiter("x", "-q");
        waiter.signal(signal);
        let expected = format!("2| tenure: x: stopped waiting: {name}; the claim was ended\nexit {code}");
        assert_eq!(told(&waiter.wait(), &store), expected);
    }
}

#[test]
fn a_lease_that_was_broken() {
    let store = Store::new();
    let breaker = format!("{}@{}", printed("id", "-un"), printed("uname", "-n"));
    for (args, why) in [(&["--reason", "host web-3 hangs"][..], ": host web-3 hangs"), (&[], "")] {
        let run = Running::of(&mut store.sh_command("x", "touch up; sleep 60"));
        eventually("it is up", || store.file("up").exists());
        fs::remove_file(store.file("up")).unwrap();
        let breaking = done(store.command(["break", "x", "--yes"]).args(args));
        assert_eq!(told(&breaking, &store), "2| tenure: x: ended 1 claim\nexit 0");
        let lost = told(&run.wait(), &store).replace(&breaker, "USER@HOST");
        assert_eq!(lost, format!("2| tenure: x: the lease was lost: broken by USER@HOST{why}\nexit 76"));
    }
}

#[test]
fn what_break_would_end() {
    let store = Store::new();
    store.tenure("acquire x --label boss --owner a").exits(0);
    says(
        &store,
        &[
            (
                "break x",
                "2| tenure: x: this would end boss (holds it for TIME)\n2| hint: add --yes to end them\nexit 64",
            ),
            ("break x --yes --owner b", "2| tenure: x: the owner b holds nothing there\nexit 1"),
            ("break y --yes", "2| tenure: y: nobody holds it\nexit 1"),
        ],
    );
}

#[test]
fn a_file_that_is_not_there() {
    let store = Store::new();
    let missing = "2| tenure: warning: STORE: there is no such file, so nothing is locked there\n";
    for (args, before, after) in [
        ("ls", "", "2| tenure: no names in use in STORE\nexit 0"),
        ("ls or", "", "2| tenure: no names in use that begin with \"or\" in STORE\nexit 0"),
        ("show x", "1| x is free\n", "exit 0"),
        ("break x --yes", "", "2| tenure: x: nobody holds it\nexit 1"),
        ("release x --owner o", "", "2| tenure: x: the owner o holds nothing there\nexit 1"),
        ("renew x --owner o", "", "2| tenure: x: the lease was lost: the store no longer has the claim\nexit 76"),
    ] {
        assert_eq!(told(&store.tenure(args), &store), format!("{before}{missing}{after}"), "tenure {args}");
    }
}

#[test]
fn a_url_that_is_mistyped() {
    let stores = "expected sqlite:PATH, sqlite: (the embedded store), redis://HOST, rediss://HOST, \
                  redis+sentinel://H1,H2,H3/SERVICE, redis+cluster://H1,H2, redlock://H1,H2,H3, etcd://H1,H2,H3, \
                  zookeeper://H1,H2,H3/CHROOT, postgres://USER@HOST/DATABASE, http://HOST (a tenure service) or memory:";
    let long = format!("redis://{}", "h".repeat(9_000));
    for (url, problem) in [
        ("Redis://h", r#""Redis://h" names no store that is known: write redis: in small letters"#.to_owned()),
        ("REDISS://h", r#""REDISS://h" names no store that is known: write rediss: in small letters"#.to_owned()),
        (
            "127.0.0.1:6379",
            r#""127.0.0.1:6379" names no store that is known: it begins with what kind of store it is, such as redis://127.0.0.1:6379"#.to_owned(),
        ),
        (
            "db:5432/app",
            r#""db:5432/app" names no store that is known: it begins with what kind of store it is, such as postgres://db:5432/app"#.to_owned(),
        ),
        ("redis:h", r#""redis:h" has no host: write it as redis://HOST[:PORT][/DATABASE]"#.to_owned()),
        ("thing", format!(r#""thing" is not a store's URL: {stores}"#)),
        ("nosuch:thing", format!(r#""nosuch:thing" names no store that is known: {stores}"#)),
        (&long, "a URL of 9008 bytes is too long: at most 8192".to_owned()),
    ] {
        let refused = done(&mut bare(&["show", "x", "--on", url]));
        assert_eq!(told(&refused, &Store::new()), format!("2| tenure: {problem}\nexit 64"));
    }
}

#[test]
fn a_call_that_is_wrong() {
    let help = "2| \n2| For more information, try '--help'.\nexit 64";
    let ttl = "a ttl is 100ms to 24h";
    for (args, problem) in [
        ("run x true", "2| tenure: put `--` before the command: tenure run x -- true\nexit 64".to_owned()),
        (
            "run x -w 5s echo it's",
            "2| tenure: put `--` before the command: tenure run x -w 5s -- echo 'it'\\''s'\nexit 64".to_owned(),
        ),
        (
            "run x",
            format!(
                "2| tenure: the following required arguments were not provided:\n2|   <COMMAND>...\n2| \n\
                 2| Usage: tenure run <NAME>... -- <COMMAND>...\n{help}"
            ),
        ),
        ("run x --ttl 0s -- true", format!("2| tenure: invalid value '0s' for '--ttl <DURATION>': {ttl}\n{help}")),
        ("run x --ttl 25h -- true", format!("2| tenure: invalid value '25h' for '--ttl <DURATION>': {ttl}\n{help}")),
        (
            "acquire x --ttl 10",
            format!(
                "2| tenure: invalid value '10' for '--ttl <DURATION>': a duration needs a unit, such as 10s, 10ms or 10m; \
                 {ttl}\n{help}"
            ),
        ),
        (
            "run x --permits 0 -- true",
            format!(
                "2| tenure: invalid value '0' for '--permits <N>': N is a whole number from 1 to 4294967295\n{help}"
            ),
        ),
        (
            "run x --grace 4s --ttl 10s -- true",
            "2| tenure: a grace of 4s is too long for a ttl of 10s: at most a third of it, 3s 333ms\nexit 64"
                .to_owned(),
        ),
        (
            "runn x",
            format!(
                "2| tenure: unrecognized subcommand 'runn'\n2| \n2|   tip: a similar subcommand exists: 'run'\n2| \n\
                 2| Usage: tenure [OPTIONS] <COMMAND>\n{help}"
            ),
        ),
    ] {
        let store = Store::new();
        let call: Vec<&str> = args.split(' ').collect();
        let refused = done(bare(&call).env("TENURE_URL", store.url()));
        assert_eq!(told(&refused, &store), problem, "tenure {args}");
    }
}

#[test]
fn a_ttl_that_the_store_cannot_keep() {
    let store = Store::on(shared::etcd().url());
    says(
        &store,
        &[
            ("acquire x --ttl 500ms", "2| tenure: a ttl of 500ms is out of range: 1s to 24h in this store\nexit 64"),
            (
                "run x --ttl 500ms -- true",
                "2| tenure: a ttl of 500ms is out of range: 1s to 24h in this store\nexit 64",
            ),
        ],
    );
}

#[test]
fn a_command_that_cannot_be_run() {
    let store = Store::new();
    says(
        &store,
        &[
            ("run x -- /no/such", "2| tenure: /no/such: not found: No such file or directory (os error 2)\nexit 127"),
            ("run x -- /etc", "2| tenure: /etc: cannot be executed: Permission denied (os error 13)\nexit 126"),
            ("run x -- false", "exit 1"),
        ],
    );
    assert_eq!(told(&store.sh("x", "kill -KILL $$"), &store), "exit 137");
}

#[test]
fn nothing_is_said_twice() {
    let store = Store::new();
    done(bare(&["man", "--out", "man"]).current_dir(store.file("."))).exits(0);
    let mut texts = Vec::new();
    for command in COMMANDS.into_iter().chain(["", "serve token"]) {
        for help in ["-h", "--help"] {
            let args: Vec<&str> = command.split_whitespace().chain([help]).collect();
            texts.push((format!("tenure {command} {help}"), done(&mut bare(&args)).exits(0).text()));
        }
    }
    for page in fs::read_dir(store.file("man")).unwrap() {
        let path = page.unwrap().path();
        texts.push((
            path.display().to_string(),
            fs::read_to_string(path).unwrap().replace("\\-", "-").replace(" - ", ". "),
        ));
    }
    assert!(texts.len() > 30, "{}", texts.len());
    let twice: Vec<String> =
        texts.iter().filter_map(|(from, text)| Some(format!("{from}: {}", repeated(text)?))).collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

/// A sentence that a text has twice. Fewer than five words are no sentence.
pub(crate) fn repeated(text: &str) -> Option<String> {
    let mut seen = std::collections::BTreeSet::new();
    // Lines that begin with a dot divide a manual page.
    for paragraph in text.replace("\n.", "\n\n.").split("\n\n") {
        let paragraph =
            paragraph.split_once('\n').filter(|(line, _)| line.starts_with('.')).map_or(paragraph, |(_, rest)| rest);
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        for sentence in words.join(" ").split_inclusive(['.', ';', ':', '(']) {
            let sentence = sentence.trim().trim_end_matches(['.', ';', ':', '(']);
            if sentence.split(' ').count() >= 5 && !seen.insert(sentence.to_owned()) {
                return Some(sentence.to_owned());
            }
        }
    }
    None
}

fn printed(program: &str, argument: &str) -> String {
    let done: Done = done(Command::new(program).arg(argument));
    done.exits(0).text()
}
