//! What is refused, and what is explained.

use std::fs;

use crate::messages::repeated;
use crate::support::{Store, bare, done};

#[test]
fn bad_values_are_64_and_named_with_what_is_allowed() {
    let long = "n".repeat(513);
    let long_owner = "o".repeat(129);
    let many = (0..65).map(|n| format!("g{n}")).collect::<Vec<_>>().join(",");
    let huge = format!("redis://{}", "h".repeat(130_000 - 8));
    fn run<'a>(rest: &[&'a str]) -> Vec<&'a str> {
        [&["run", "x"], rest, &["--", "true"]].concat()
    }
    for (args, parts) in [
        (vec!["run", "", "--", "true"], ["\"\"", "1 to 512 bytes"]),
        (vec!["run", &long, "--", "true"], ["513 bytes", "1 to 512 bytes"]),
        (vec!["run", "a\nb", "--", "true"], ["\\n", "control character"]),
        (vec!["show", ""], ["\"\"", "1 to 512 bytes"]),
        (run(&["--ttl", "0s"]), ["'0s'", "100ms to 24h"]),
        (run(&["--ttl", "25h"]), ["'25h'", "100ms to 24h"]),
        (run(&["--ttl", "10"]), ["'10'", "10s"]),
        (run(&["--ttl", "soon"]), ["'soon'", "30s"]),
        (run(&["--wait", "5"]), ["'5'", "5s"]),
        (run(&["--wait", "5s", "--no-wait"]), ["--wait", "--no-wait"]),
        (run(&["--permits", "0"]), ["'0'", "a whole number from 1 to 4294967295"]),
        (run(&["--permits", "-1"]), ["'-1' for '--permits", "a whole number from 1 to 4294967295"]),
        (run(&["--permits", "abc"]), ["'abc'", "a whole number from 1 to 4294967295"]),
        (run(&["--permits", "4294967296"]), ["'4294967296'", "a whole number from 1 to 4294967295"]),
        (run(&["--ttl", "-5s"]), ["'-5s' for '--ttl", "500ms, 30s or 1m; a ttl is 100ms to 24h"]),
        (run(&["--ttl", "10S"]), ["'10S'", "500ms, 30s or 1m; a ttl is 100ms to 24h"]),
        (run(&["--wait", "-1s"]), ["'-1s' for '--wait", "500ms, 30s or 1m"]),
        (run(&["--grace", "-1s"]), ["'-1s' for '--grace", "500ms, 30s or 1m"]),
        (run(&["--permits", "2", "--shared"]), ["--permits", "--shared"]),
        (run(&["--min-replicas", "0"]), ["'0'", "a whole number from 1, or majority"]),
        (run(&["--min-replicas", "most"]), ["'most'", "a whole number from 1, or majority"]),
        (run(&["--min-replicas", "1", "--on", "memory:"]), ["min_replicas", "no replicas"]),
        (run(&["--on", "redis:thing"]), ["redis:thing", "redis://HOST"]),
        (run(&["--on", "redis://a,b"]), ["several servers", "redis+cluster://"]),
        (run(&["--on", "redis+sentinel://a"]), ["no service", "redis+sentinel://H1,H2,H3/SERVICE"]),
        (run(&["--on", "redis://h/x"]), ["database", "must be a number"]),
        (run(&["--on", "redis://h?layout=odd"]), ["odd", "native, plain or redisson"]),
        (run(&["--grace", "4s", "--ttl", "10s"]), ["of 4s is", "of it, 3s 333ms"]),
        (run(&["--on", "nosuch:thing"]), ["nosuch", "sqlite:PATH"]),
        (run(&["--on", "thing"]), ["thing", "sqlite:PATH"]),
        (run(&["--on", "sqlite:x.db?speed=1"]), ["speed", "unknown option"]),
        (vec!["acquire", "x", "--owner", "a b"], ["a b", "1 to 128 visible ASCII"]),
        (vec!["acquire", "x", "--owner", ""], ["\"\"", "1 to 128 visible ASCII"]),
        (vec!["release", "x", "--owner", &long_owner], ["ooo", "1 to 128 visible ASCII"]),
        (vec!["renew", "x"], ["--owner", "required"]),
        (vec!["acquire", "x", "--owner", "--no-wait"], ["--owner", "required"]),
        (run(&["--label"]), ["--label", "required"]),
        (vec!["run", "x"], ["COMMAND", "required"]),
        (vec!["run", "x", "true"], ["put `--` before the command", "tenure run x -- true"]),
        (vec!["run", "x", "-w", "5s", "echo", "it's"], ["put `--`", r"tenure run x -w 5s -- echo 'it'\''s'"]),
        (vec!["run", "x", "-c", "true", "--", "true"], ["--command", "COMMAND"]),
        (run(&["-E", "256"]), ["'256'", "from 0 to 255"]),
        (run(&["--on", "Redis://h"]), ["Redis://h", "redis: in small letters"]),
        (run(&["--on", "127.0.0.1:6379"]), ["127.0.0.1:6379", "such as redis://127.0.0.1:6379"]),
        (run(&["--on", "db:5432/app"]), ["db:5432", "such as postgres://db:5432/app"]),
        (run(&["--on", &huge]), ["130000 bytes is too long", "at most 8192"]),
        (vec!["run", "-q", "-v", "x", "--", "true"], ["--quiet", "--verbose"]),
        (vec!["bench", "--tasks", "-1"], ["'-1' for '--tasks", "whole numbers up to 10000"]),
        (vec!["bench", "--tasks", "1,many"], ["'many' for '--tasks", "whole numbers up to 10000"]),
        (vec!["bench", "--processes", "1000"], ["'1000' for '--processes", "whole numbers up to 256"]),
        (vec!["bench", "--leases", "2000000"], ["'2000000' for '--leases", "whole numbers up to 1000000"]),
        (vec!["bench", "--seconds", "0"], ["'0' for '--seconds", "0.1 to 60"]),
        (vec!["bench", "--seconds", "NaN"], ["'NaN' for '--seconds", "0.1 to 60"]),
        (vec!["bench", "--tasks", "0", "--processes", "0", "--leases", "0"], ["nothing is left", "--leases"]),
        (vec!["bench", "--on", "nosuch:thing"], ["nosuch", "sqlite:PATH"]),
        (run(&["--groups", "a"]), ["--metrics-file", "required"]),
        (run(&["--metrics-file", "f", "--groups", "a,,b"]), ["'' for '--groups", "before the first /"]),
        (run(&["--metrics-file", "f", "--groups", &many]), ["names 65 groups", "at most 64"]),
        (vec!["serve", "--listen", "localhost:7420"], ["'localhost:7420' for '--listen", "such as 127.0.0.1:7420"]),
        (vec!["serve", "--listen", "7420"], ["'7420' for '--listen", "such as 127.0.0.1:7420"]),
        (vec!["serve", "--groups", "a/b"], ["'a/b' for '--groups", "before the first /"]),
        (vec!["serve", "--groups", &many], ["names 65 groups", "at most 64"]),
        (vec!["dance"], ["dance", "subcommand"]),
    ] {
        let refused = done(&mut bare(&args)).exits(64);
        assert!(refused.stderr.starts_with("tenure: "), "{args:?}: {refused:?}");
        assert_eq!(repeated(&refused.stderr), None, "{args:?}");
        assert!(refused.stderr.len() < 1_000, "{args:?}: a megabyte is not repeated");
        for part in parts {
            assert!(refused.stderr.contains(part), "{args:?}: {part:?} is not in {}", refused.stderr);
        }
    }
}

#[test]
fn a_file_that_is_mistyped_is_not_made() {
    let store = Store::new();
    for (args, code) in
        [("ls", 0), ("show x", 0), ("break x --yes", 1), ("renew x --owner o", 76), ("release x --owner o", 1)]
    {
        store.tenure(args).exits(code).says("there is no such file, so nothing is locked there");
    }
    assert!(!store.file("locks.db").exists());
}

#[test]
fn errors_are_told_to_programs_with_what_they_are_about() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    for wait in ["--no-wait", "--wait 10ms"] {
        let kind = if wait == "--no-wait" { "busy" } else { "timeout" };
        let refused = store.tenure(&format!("run x {wait} --json -- true")).exits(75);
        let told: serde_json::Value = serde_json::from_str(&refused.stderr).unwrap();
        assert_eq!(
            (&told["kind"], &told["name"], &told["certainty"], &told["holder"]["label"], &told["exit"]),
            (&kind.into(), &"x".into(), &"not_applied".into(), &"boss".into(), &75.into()),
            "{told}"
        );
        assert!(told["holder"]["expires_in_ms"].as_u64().unwrap() <= 10_000, "{told}");
    }
    let refused = done(&mut bare(&["show", "a", "--on", "nosuch:", "--json"])).exits(64);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&refused.stderr).unwrap()["kind"], "invalid");
}

#[test]
fn bad_values_touch_no_store() {
    let store = Store::new();
    for args in ["run x --ttl 0s -- true", "acquire x --owner ü", "run x --grace 9s -- true"] {
        store.tenure(args).exits(64);
    }
    assert!(!store.file("locks.db").exists());
}

#[test]
fn no_command_at_all_is_64_and_shows_the_help() {
    let help = done(&mut bare(&[])).exits(64).says("Usage: tenure");
    assert!(help.stderr.starts_with("Locks between processes"), "{help:?}");
}

#[test]
fn usage_errors_are_json_where_asked_for() {
    for (args, part) in [
        (&["run", "x", "--json", "--ttl", "0s", "--", "true"][..], "invalid value '0s'"),
        (&["--json", "dance"], "unrecognized subcommand 'dance'"),
        (&["run", "x", "--json"], "required arguments were not provided: <COMMAND>"),
        (&["--json"], "requires a subcommand"),
    ] {
        let refused = done(&mut bare(args)).exits(64);
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
        let told: serde_json::Value = serde_json::from_str(&refused.stderr).unwrap();
        assert_eq!(told["exit"], 64);
        let error = told["error"].as_str().unwrap();
        assert!(error.contains(part) && !error.contains("Usage"), "{args:?}: {error}");
    }
    let refused = done(&mut bare(&["run", "--", "echo", "--json"])).exits(64);
    assert!(refused.stderr.starts_with("tenure: "), "the command's --json is its own: {refused:?}");
}

#[test]
fn a_bad_url_from_the_environment_is_said_to_come_from_there() {
    for url in ["nosuch:thing", "thing", "etcd://h/path", "sqlite:/proc/none/x.db"] {
        let refused = done(bare(&["acquire", "x", "-n"]).env("TENURE_URL", url));
        assert_ne!(refused.code, 0);
        refused.says("$TENURE_URL: ");
        let refused = done(bare(&["acquire", "x", "-n", "--on", url]).env("TENURE_URL", "memory:"));
        assert!(!refused.stderr.contains("TENURE_URL"), "{refused:?}");
    }
}

#[test]
fn a_password_that_is_not_encoded_is_64_and_shown_by_no_command() {
    for (url, hint) in [
        ("redis://app:x?k=v&hidden@host/0", "? as %3F"),
        ("postgres://u:a?hidden=9@host/d", "? as %3F"),
        ("etcd://u:a/hidden@host", "/ as %2F"),
        ("zookeeper://u:a#hidden@host", "# as %23"),
        ("redlock://u:a@hidden@a,b,c", "@ as %40"),
        ("redis+sentinel://h/s?sentinel_password=a&hidden", "& as %26"),
    ] {
        for command in ["doctor", "ls", "show x", "run x -- true", "acquire x", "renew x --owner o", "bench", "break x"]
        {
            for json in [&[][..], &["--json"]] {
                let (first, rest) = command.split_once(' ').unwrap_or((command, ""));
                let args = [first].into_iter().chain(json.iter().copied()).chain(rest.split_whitespace());
                let refused = done(bare(&[]).args(args).env("TENURE_URL", url)).exits(64).says(hint);
                assert!(!format!("{refused:?}").contains("hidden"), "{refused:?}");
            }
        }
    }
}

#[test]
fn a_url_in_the_wrong_place_is_refused_without_its_password() {
    for args in [
        &["doctor", "redis://u:hidden@h/0"][..],
        &["acquire", "x", "--ttl=redis://u:hidden@h"],
        &["redis://u:hidden@h"],
    ] {
        for json in [&[][..], &["--json"]] {
            let refused = done(bare(args).args(json)).exits(64);
            assert!(!refused.stderr.contains("hidden"), "{refused:?}");
        }
    }
}

#[test]
fn a_store_of_ones_own_is_warned_of() {
    let run = ["run", "x", "--on", "memory:", "--", "true"];
    done(&mut bare(&run)).exits(0).says("warning: the store memory: is this process's own");
    done(bare(&["acquire", "x"]).env("TENURE_URL", "memory:")).exits(0).says("excludes nobody");
    let told = done(bare(&["--json"]).args(run)).exits(0).stderr;
    assert!(serde_json::from_str::<serde_json::Value>(&told).unwrap()["warning"].is_string(), "{told}");
}

#[test]
fn help_and_version_are_data_and_exit_0() {
    assert!(done(&mut bare(&["--version"])).exits(0).text().starts_with("tenure "));
    let help = done(&mut bare(&["--help"])).exits(0).text();
    let parts = ["TENURE_URL", "TENURE_HELD", "Exit codes:", "76", "143", "Examples:"];
    let urls =
        ["redis://", "rediss://", "redis+sentinel://", "redis+cluster://", "http://", "https://", "TENURE_BEARER"];
    for part in parts.into_iter().chain(urls) {
        assert!(help.contains(part), "{part} is not in {help}");
    }
}

/// Every command there is.
pub(crate) const COMMANDS: [&str; 19] = [
    "run",
    "elect",
    "once",
    "acquire",
    "renew",
    "release",
    "show",
    "explain",
    "memo",
    "ls",
    "watch",
    "top",
    "break",
    "deadlocks",
    "doctor",
    "serve",
    "bench",
    "completions",
    "man",
];

#[test]
fn no_command_is_left_out() {
    let help = done(&mut bare(&["-h"])).exits(0).text();
    let commands = help.split("Commands:\n").nth(1).unwrap().lines().take_while(|line| line.starts_with("  "));
    let listed: Vec<&str> =
        commands.filter_map(|line| line.split_whitespace().next()).filter(|word| *word != "help").collect();
    assert_eq!(listed, COMMANDS);
}

#[test]
fn the_help_of_every_command_has_an_example() {
    for command in COMMANDS.into_iter().chain(["serve token"]) {
        let help = done(bare(&[]).args(command.split(' ')).arg("--help")).exits(0).text();
        assert!(help.contains("Example") && help.contains(&format!("tenure {command}")), "{help}");
        assert!(help.contains("--json") && help.contains("--on"), "{help}");
    }
}

#[test]
fn the_guardian_is_not_for_people() {
    let help = done(&mut bare(&["--help"])).text();
    assert!(!help.contains("__guard"));
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(done(&mut bare(&["completions", shell])).exits(0).text().contains("tenure"));
    }
    done(&mut bare(&["completions", "cmd.exe"])).exits(64);
}

#[test]
fn the_manual_covers_every_command() {
    let manual = done(&mut bare(&["man"])).exits(0).text();
    for part in [
        ".TH tenure 1",
        ".SH TENURE RUN",
        ".SH TENURE BREAK",
        ".SH TENURE DOCTOR",
        ".SH TENURE SERVE TOKEN",
        "TENURE_HELD",
        "redis+sentinel://",
    ] {
        assert!(manual.contains(part), "{part} is not in the manual");
    }
}

#[test]
fn the_manual_is_written_one_page_per_command() {
    let store = Store::new();
    let dir = store.file("man1");
    done(bare(&["man", "--out"]).arg(&dir)).exits(0);
    assert!(fs::read_to_string(dir.join("tenure.1")).unwrap().contains("tenure"));
    assert!(fs::read_to_string(dir.join("tenure-run.1")).unwrap().contains("grace"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for args in [["man", "--json"], ["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = bare(&args).stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn the_manual_fits_a_terminal_of_80_columns_and_says_where_dashes_stand() {
    let store = Store::new();
    done(bare(&["man", "--out", "man"]).current_dir(store.file("."))).exits(0);
    let pages = COMMANDS.map(|command| format!("tenure-{command}"));
    for page in pages.iter().map(String::as_str).chain(["tenure", "tenure-serve-token"]) {
        let mut groff = std::process::Command::new("groff");
        groff.args(["-Tascii", "-P-cbou", "-rLL=80n", "-man"]).arg(store.file(&format!("man/{page}.1")));
        let shown = done(&mut groff).exits(0).text();
        let wide: Vec<&str> = shown.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(shown.contains("SYNOPSIS") && wide.is_empty(), "{page}: {wide:?}");
    }
    assert!(store.read("man/tenure-run.1").contains(r"tenure run [OPTIONS] <NAME>... [\-\- <COMMAND>...]"));
}

#[test]
fn an_option_that_is_not_known_is_not_advised_to_be_run() {
    let store = Store::new();
    let said = store.tenure("run x --nonsense -- true").exits(64).stderr;
    assert!(said.contains("unexpected argument '--nonsense'") && !said.contains("-- --nonsense"), "{said}");
}
