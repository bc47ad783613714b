//! Completions, in the shells themselves.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{BIN, Done, Running, Store, bare, done};

/// A directory with `tenure` in it and the script of a shell, for a store with a name in use.
struct Shells {
    store: Store,
}

impl Shells {
    fn new(shell: &str, script: &str) -> Self {
        let store = Store::new();
        std::fs::create_dir(store.file("bin")).unwrap();
        std::os::unix::fs::symlink(BIN, store.file("bin/tenure")).unwrap();
        let printed = done(&mut bare(&["completions", shell])).exits(0);
        std::fs::write(store.file(script), printed.stdout).unwrap();
        store.tenure("acquire orders/42 --label boss").exits(0);
        store.tenure("acquire orders/43").exits(0);
        Self { store }
    }

    fn command(&self, shell: &str, args: &[&str]) -> Command {
        let mut command = Command::new(shell);
        let path = format!("{}:{}", self.store.file("bin").display(), std::env::var("PATH").unwrap());
        command.args(args).current_dir(self.store.file(".")).env("PATH", path).env("TENURE_URL", self.store.url());
        command.env("HOME", self.store.file(".")).env("XDG_CONFIG_HOME", self.store.file(".")).env("TERM", "xterm");
        command.env_remove("TENURE_HELD").env_remove("TENURE_ON");
        command
    }
}

/// What is typed, what must be offered, and what must not.
const CASES: &[(&str, &[&str], &[&str])] = &[
    ("tenure re", &["renew", "release"], &["run"]),
    ("tenure run x --tt", &["--ttl"], &["--grace"]),
    ("tenure run x --gr", &["--grace"], &["--ttl"]),
    ("tenure show ord", &["orders/42", "orders/43"], &["--json"]),
    ("tenure run x -- base64 --he", &[], &["--ttl"]),
    ("tenure run x -- base6", &["base64"], &["--ttl"]),
];

fn check(line: &str, offered: &[String], wanted: &[&str], unwanted: &[&str]) {
    for word in wanted {
        assert!(offered.iter().any(|offer| offer == word), "{line}: {word} is not among {offered:?}");
    }
    for word in unwanted {
        assert!(!offered.iter().any(|offer| offer == word), "{line}: {word} is among {offered:?}");
    }
}

#[test]
fn bash_completes_commands_options_names_and_what_is_run() {
    let shells = Shells::new("bash", "tenure.bash");
    // As readline calls it; bash breaks words at colons too, of which there are none here.
    let script = r#". ./tenure.bash; COMP_LINE=$1; COMP_POINT=${#1}; COMP_WORDS=($1)
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _tenure; printf '%s\n' "${COMPREPLY[@]}""#;
    for (line, wanted, unwanted) in CASES {
        let answer = done(&mut shells.command("bash", &["-c", script, "bash", line])).exits(0);
        let offered: Vec<String> = answer.text().lines().map(str::to_owned).collect();
        check(line, &offered, wanted, unwanted);
    }
    let script = r#". ./tenure.bash; COMP_LINE='tenure ls --on redis:'; COMP_POINT=21; COMP_WORDS=(tenure ls --on redis :)
        COMP_CWORD=4; _tenure; printf '%s\n' "${COMPREPLY[@]}""#;
    assert_eq!(done(&mut shells.command("bash", &["-c", script])).text(), "//", "what bash has not taken yet");
}

#[test]
fn fish_completes_commands_options_names_and_what_is_run() {
    let shells = Shells::new("fish", "tenure.fish");
    for (line, wanted, unwanted) in CASES {
        let script = "source tenure.fish; complete -C $argv[1]";
        let answer = done(&mut shells.command("fish", &["-c", script, line])).exits(0);
        let text = answer.text();
        let offered: Vec<String> =
            text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect();
        check(line, &offered, wanted, unwanted);
        if wanted.contains(&"orders/42") {
            assert!(text.contains("orders/42\theld by boss"), "{text}");
        }
    }
}

/// Types a line into a zsh with a terminal of its own, then Tab; what the terminal shows.
fn type_into_zsh(shells: &Shells, line: &str) -> Done {
    let start = "PS1='> '; autoload -Uz compinit; compinit -u -D; unsetopt LIST_BEEP; setopt LIST_ROWS_FIRST
        . ./tenure.zsh; bindkey -e; bindkey '^I' complete-word; print READY";
    std::fs::write(shells.store.file(".zshrc"), start).unwrap();
    let mut command = shells.command("script", &["-qec", "zsh -i", "/dev/null"]);
    command.env("ZDOTDIR", shells.store.file("."));
    let mut zsh = Running::with_stdin(&mut command, Stdio::piped());
    let mut input = zsh.stdin();
    // The line is wiped (no key that a terminal takes for itself while the shell begins), and the shell ends.
    input.write_all(format!("{line}\t\x18\x0bexit 0\n").as_bytes()).unwrap();
    zsh.wait()
}

#[test]
fn zsh_completes_commands_options_names_and_what_is_run() {
    let shells = Shells::new("zsh", "tenure.zsh");
    for (line, completed) in [
        ("tenure run x --tt", "tenure run x --ttl"),
        ("tenure rel", "tenure release"),
        ("tenure show orde", "tenure show orders/4"),
        ("tenure run x -- base6", "tenure run x -- base64"),
    ] {
        let shown = String::from_utf8_lossy(&type_into_zsh(&shells, line).stdout).into_owned();
        assert!(shown.contains(completed), "{line}: {shown:?}");
    }
}
