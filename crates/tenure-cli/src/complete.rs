//! What may stand where the cursor is, for the scripts that `completions` prints: `tenure __complete -- WORDS…`, the
//! last of which is being typed.
//!
//! Answered on stdout: `words`, and then one a line with what it means behind a tab; `files`; or `command`, if what is
//! typed belongs to the command that is run.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};

use crate::args::Cli;
use crate::exit::Exit;
use crate::failure::Talk;
use crate::label;
use crate::output;
use crate::store::Store;

/// How long one who types waits for the names in use.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a URL begins with.
const STORES: [(&str, &str); 13] = [
    ("sqlite:", "a file: all processes of one machine"),
    ("redis://", "one Redis"),
    ("rediss://", "one Redis, with TLS"),
    ("redis+sentinel://", "the master that sentinels name"),
    ("redis+cluster://", "a Redis cluster"),
    ("redlock://", "several Redis masters"),
    ("redlocks://", "several Redis masters, with TLS"),
    ("etcd://", "an etcd cluster"),
    ("zookeeper://", "a ZooKeeper ensemble"),
    ("postgres://", "a PostgreSQL"),
    ("http://", "a lock service (tenure serve)"),
    ("https://", "a lock service, with TLS"),
    ("memory:", "this process alone"),
];

/// What may follow.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Words(Vec<(String, String)>),
    /// Names in use that begin with what is typed, in the store of this URL.
    Names(Option<String>),
    Files,
    Command,
}

/// Answers a shell. What goes wrong is no concern of somebody who types: nothing is offered then.
pub(crate) fn main(arguments: Vec<OsString>) -> Exit {
    Talk::Quiet.set();
    let words: Vec<String> = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let typed = words.last().cloned().unwrap_or_default();
    let answer = match next(&words) {
        Next::Words(words) => listed(words, &typed),
        Next::Names(on) => listed(names(on.as_deref(), &typed), &typed),
        Next::Files => "files\n".to_owned(),
        Next::Command => "command\n".to_owned(),
    };
    let _ = output::print(answer.as_bytes());
    Exit::Done
}

fn listed(words: Vec<(String, String)>, typed: &str) -> String {
    let fitting = words.into_iter().filter(|(word, _)| word.starts_with(typed));
    let one_line = |text: String| text.lines().next().unwrap_or_default().replace('\t', " ");
    fitting.fold("words\n".to_owned(), |all, (word, meaning)| all + &format!("{word}\t{}\n", one_line(meaning)))
}

/// What may follow these words, of which the last is being typed.
fn next(words: &[String]) -> Next {
    let mut root = Cli::command();
    root.build();
    let (typed, before) = match words.split_last() {
        Some((typed, [_, before @ ..])) => (typed.as_str(), before),
        _ => return Next::Words(Vec::new()),
    };
    let (mut command, mut on, mut given) = (&root, None, 0);
    let mut awaits: Option<&Arg> = None;
    for word in before {
        if let Some(option) = awaits.take() {
            if option.get_id() == "on" {
                on = Some(word.clone());
            }
        } else if word == "--" {
            return if ["run", "elect", "once"].contains(&command.get_name()) {
                Next::Command
            } else {
                Next::Words(Vec::new())
            };
        } else if let Some(long) = word.strip_prefix("--") {
            match long.split_once('=') {
                Some(("on", url)) => on = Some(url.to_owned()),
                Some(_) => {}
                None => awaits = takes_value(command, |option| option.get_long() == Some(long)),
            }
        } else if let Some(short) = word.strip_prefix('-').and_then(|shorts| shorts.chars().last()) {
            awaits = takes_value(command, |option| option.get_short() == Some(short));
        } else if let Some(sub) = command.find_subcommand(word) {
            command = sub;
        } else {
            given += 1;
        }
    }
    match awaits {
        Some(option) => values(option),
        None if typed.starts_with('-') => Next::Words(options(command, typed)),
        None if command.has_subcommands() => Next::Words(subcommands(command)),
        None => argument(command, given, on),
    }
}

fn takes_value(command: &Command, is_it: impl Fn(&Arg) -> bool) -> Option<&Arg> {
    command.get_opts().find(|option| is_it(option))
}

fn values(option: &Arg) -> Next {
    match option.get_id().as_str() {
        "on" => Next::Words(STORES.map(|(url, what)| (url.to_owned(), what.to_owned())).into()),
        "out" | "metrics_file" | "tokens" | "tls_cert" | "tls_key" | "client_ca" => Next::Files,
        _ => Next::Words(Vec::new()),
    }
}

fn options(command: &Command, typed: &str) -> Vec<(String, String)> {
    let visible = command.get_arguments().filter(|argument| !argument.is_positional() && !argument.is_hide_set());
    let spelled = visible.flat_map(|option| {
        let meaning = option.get_help().map(ToString::to_string).unwrap_or_default();
        let short = option.get_short().filter(|_| !typed.starts_with("--")).map(|short| format!("-{short}"));
        let long = option.get_long().map(|long| format!("--{long}"));
        long.into_iter().chain(short).map(move |spelled| (spelled, meaning.clone()))
    });
    spelled.collect()
}

fn subcommands(command: &Command) -> Vec<(String, String)> {
    let visible = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let about = |sub: &Command| sub.get_about().map(ToString::to_string).unwrap_or_default();
    visible.map(|sub| (sub.get_name().to_owned(), about(sub))).collect()
}

/// The argument after `given` others.
fn argument(command: &Command, given: usize, on: Option<String>) -> Next {
    let dashes = || Next::Words(vec![("--".to_owned(), "the command follows".to_owned())]);
    match (command.get_positionals().nth(given), command.get_name()) {
        // The name of who has it, which only the one who types knows.
        (Some(_), "token") => Next::Words(Vec::new()),
        (Some(argument), _) if ["name", "names", "prefix"].contains(&argument.get_id().as_str()) => Next::Names(on),
        (_, "run" | "elect" | "once") => dashes(),
        (Some(argument), _) => {
            let known = argument.get_possible_values();
            Next::Words(known.iter().map(|value| (value.get_name().to_owned(), String::new())).collect())
        }
        (None, _) => Next::Words(Vec::new()),
    }
}

/// The names in use that begin with what is typed.
fn names(on: Option<&str>, typed: &str) -> Vec<(String, String)> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let listed = runtime.block_on(async {
        let store = Store::resolve(on).ok()?;
        let listed = async { store.connect_to_look(&label::of_person(), false).await.ok()?.list(typed).await.ok() };
        tokio::time::timeout(PATIENCE, listed).await.ok()?
    });
    runtime.shutdown_background();
    let views = listed.unwrap_or_default();
    // What a shell would take for something else is left to be typed.
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_./:=@%+,-".contains(c));
    let holder = |view: &tenure::NameView| match view.holders.first() {
        Some(holder) => format!("held by {}", label::of_holder(holder)),
        None => "waited for".to_owned(),
    };
    let named = views.iter().filter(|view| plain(view.name.as_str()));
    named.map(|view| (view.name.to_string(), holder(view))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(line: &str) -> Next {
        next(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    fn words(line: &str) -> Vec<String> {
        let Next::Words(words) = after(line) else { panic!("{line}: {:?}", after(line)) };
        let typed = line.rsplit(' ').next().unwrap();
        words.into_iter().map(|(word, _)| word).filter(|word| word.starts_with(typed)).collect()
    }

    #[test]
    fn commands_come_first() {
        assert_eq!(words("tenure re"), ["renew", "release"]);
        assert!(words("tenure ").contains(&"run".to_owned()));
    }

    #[test]
    fn options_follow_the_name_too_and_those_of_the_command_alone() {
        assert_eq!(words("tenure run x --t"), ["--ttl"]);
        assert_eq!(words("tenure run --t"), ["--ttl"]);
        assert!(words("tenure release x --t").is_empty());
        assert_eq!(words("tenure run x --q"), ["--quiet"], "what every command takes");
        assert!(words("tenure run x -").contains(&"-n".to_owned()));
    }

    #[test]
    fn names_are_offered_where_one_is_to_stand() {
        for line in ["tenure run ", "tenure run --ttl 5s ord", "tenure run -w 5s x", "tenure ls ", "tenure show "] {
            assert_eq!(after(line), Next::Names(None), "{line}");
        }
        assert_eq!(after("tenure --on memory: show "), Next::Names(Some("memory:".to_owned())));
        assert_eq!(after("tenure show --on=memory: "), Next::Names(Some("memory:".to_owned())));
        assert_eq!(words("tenure show x "), [""; 0]);
        assert_eq!(words("tenure serve token "), [""; 0], "who has a token is no lock");
    }

    #[test]
    fn what_is_run_completes_itself() {
        assert_eq!(words("tenure run x "), ["--"]);
        for line in ["tenure run x -- ", "tenure run x -- git --he", "tenure run --ttl 5s x -- git "] {
            assert_eq!(after(line), Next::Command, "{line}");
        }
        assert!(words("tenure show -- ").is_empty());
    }

    #[test]
    fn values_are_offered_where_they_are_known() {
        assert_eq!(words("tenure ls --on redis+"), ["redis+sentinel://", "redis+cluster://"]);
        assert_eq!(words("tenure ls --on redlock"), ["redlock://", "redlocks://"]);
        assert_eq!(words("tenure ls --on http"), ["http://", "https://"]);
        assert_eq!(words("tenure ls --on mem"), ["memory:"]);
        assert!(words("tenure completions ").contains(&"fish".to_owned()));
        for line in ["man --out", "run x --metrics-file", "serve --tokens", "serve --tls-cert", "serve --tls-key"] {
            assert_eq!(after(&format!("tenure {line} ")), Next::Files, "{line}");
        }
        assert_eq!(after("tenure serve --client-ca c"), Next::Files);
        assert!(words("tenure run --ttl ").is_empty());
    }

    #[test]
    fn no_words_at_all_are_no_panic() {
        for line in [&[][..], &["tenure"]] {
            assert_eq!(next(&line.iter().map(ToString::to_string).collect::<Vec<_>>()), Next::Words(Vec::new()));
        }
    }
}
