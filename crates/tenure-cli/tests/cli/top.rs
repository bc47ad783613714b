//! `top` on a terminal of its own: what it shows, what keys do, and how it leaves the terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use tenure_testkit::servers::shared;
use vt100::Parser;

use crate::support::{BIN, Store, eventually};

/// A `tenure top`, and the terminal it runs on.
struct Screen {
    child: std::process::Child,
    keys: File,
    /// The terminal's own end, kept open so that its modes can be looked at.
    terminal: OwnedFd,
    before: String,
    shown: Arc<Mutex<Parser>>,
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn nonzero(size: u16) -> NonZeroU16 {
    NonZeroU16::new(size).unwrap()
}

/// Everything that `stty -a` shows.
fn modes(terminal: &OwnedFd) -> String {
    let Termios { input_modes, output_modes, control_modes, local_modes, special_codes, .. } =
        tcgetattr(terminal).unwrap();
    format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?} {special_codes:?}")
}

impl Screen {
    fn start(store: &Store, args: &str, rows: u16, columns: u16) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let terminal = ioctl_tiocgptpeer(&controller, flags).unwrap();
        tcsetwinsize(&controller, size(rows, columns)).unwrap();
        let before = modes(&terminal);
        let end = || Stdio::from(terminal.try_clone().unwrap());
        let mut command = Command::new("setsid");
        // A session of its own, with this as its terminal, so that it hears of another size.
        command.args(["--ctty", BIN, "--on", &store.url(), "top"]).args(args.split_whitespace());
        command.env("TERM", "xterm-256color").env_remove("TENURE_URL").env_remove("TENURE_HELD");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keys = File::from(controller);
        let mut written = keys.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(Parser::new(nonzero(rows), nonzero(columns), 0)));
        let parser = shown.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = written.read(&mut buffer) {
                parser.lock().unwrap().process(&buffer[..count]);
            }
        });
        Self { child, keys, terminal, before, shown }
    }

    fn text(&self) -> String {
        self.shown.lock().unwrap().screen().contents()
    }

    fn until(&self, what: &str, condition: impl Fn(&str) -> bool) {
        let shown = self.shown.clone();
        let seen = std::panic::AssertUnwindSafe(|| eventually(what, || condition(&self.text())));
        if std::panic::catch_unwind(seen).is_err() {
            panic!("{what}: {}", shown.lock().unwrap().screen().contents());
        }
    }

    fn shows(&self, part: &str) {
        self.until(&format!("{part:?} is shown"), |text| text.contains(part));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, rows: u16, columns: u16) {
        self.shown.lock().unwrap().set_size(nonzero(rows), nonzero(columns));
        tcsetwinsize(&self.keys, size(rows, columns)).unwrap();
    }

    /// Waits for its end; the terminal must be as it was.
    fn ends_with(mut self, code: i32) {
        eventually("it ends", || self.child.try_wait().unwrap().is_some());
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{}", self.text());
        assert_eq!(modes(&self.terminal), self.before);
        eventually("the other screen is left", || !self.shown.lock().unwrap().screen().alternate_screen());
        assert!(!self.shown.lock().unwrap().screen().hide_cursor(), "the cursor is back");
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A store with `orders/1`, held by boss and waited for, and `users/1`.
fn store() -> Store {
    let store = Store::new();
    store.tenure("acquire orders/1 --label boss --ttl 1h --owner me").exits(0);
    store.tenure("acquire users/1 --label other --ttl 1h").exits(0);
    store
}

#[test]
fn it_shows_sorts_filters_opens_breaks_resizes_and_quits() {
    let store = store();
    let waiter = store.start_waiter("orders/1", "--label next --ttl 1h");
    let mut screen = Screen::start(&store, "--interval 50ms", 24, 100);
    screen.until("both are shown", |text| text.contains("orders/1") && text.contains("users/1"));
    assert!(screen.shown.lock().unwrap().screen().alternate_screen());
    assert_ne!(modes(&screen.terminal), screen.before, "keys come at once");
    screen.shows("boss");

    screen.press("r");
    screen.until("it is reversed", |text| text.find("users/1") < text.find("orders/1"));
    screen.press("5");
    screen.shows("WAITING*");
    screen.until("most waiters come first", |text| text.find("orders/1") < text.find("users/1"));

    screen.press("/use");
    screen.until("it is filtered", |text| !text.contains("orders/1") && text.contains("users/1"));
    screen.press("\x1b");
    screen.shows("orders/1");

    screen.resize(12, 60);
    screen.until("it fits another size", |text| {
        text.contains("orders/1") && !text.contains("TOKEN") && text.lines().count() <= 12
    });
    screen.resize(3, 20);
    screen.shows("too small");
    screen.resize(24, 100);
    screen.shows("orders/1");

    screen.press("g\r");
    screen.until("its queue is shown", |text| text.contains("1 wait") && text.contains("next"));
    screen.press("b");
    screen.shows("break orders/1?");
    screen.press("no\r");
    screen.shows("was not broken");
    screen.press("b");
    screen.shows("break orders/1?");
    screen.press("yes it hangs\r");
    screen.until("what happened is shown", |text| text.contains("broken") && text.contains("it hangs"));
    store.tenure("renew orders/1 --owner me").exits(76).says("it hangs");
    waiter.wait().exits(0);

    screen.press("\x1b");
    screen.shows("NAME");
    screen.press("?");
    screen.shows("Any key closes this");
    screen.press("x");
    screen.shows("users/1");
    screen.press("q");
    screen.ends_with(0);
}

#[test]
fn the_terminal_is_as_it_was_after_ctrl_c_and_after_every_signal() {
    let store = store();
    let deadly = [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM];
    for signal in [None].into_iter().chain(deadly.map(Some)) {
        let code = signal.map_or(0, |signal| 128 + signal.as_raw());
        let mut screen = Screen::start(&store, "", 24, 100);
        screen.shows("boss");
        match signal {
            None => screen.press("\x03"),
            Some(signal) => kill_process(Pid::from_child(&screen.child), signal).unwrap(),
        }
        screen.ends_with(code);
    }
}

#[test]
fn it_shows_what_a_server_keeps() {
    let store = Store::on(shared::redis().url());
    let prefix = format!("top-{:016x}/", rand::random::<u64>());
    store.tenure(&format!("acquire {prefix}x --label boss --ttl 1h --owner me")).exits(0);
    let mut screen = Screen::start(&store, &format!("{prefix} --interval 50ms"), 24, 100);
    screen.shows("boss");
    store.tenure(&format!("acquire {prefix}y --label other --ttl 1h")).exits(0);
    screen.shows("other");
    store.tenure(&format!("release {prefix}x --owner me")).exits(0);
    screen.until("it is gone", |text| !text.contains("boss"));
    screen.press("q");
    screen.ends_with(0);
}

#[test]
fn without_a_terminal_it_is_64() {
    let store = store();
    store.tenure("top").exits(64).says("needs a terminal");
    store.tenure("top --json").exits(64).says("tenure watch --json");
}

#[test]
fn a_store_that_cannot_be_opened_leaves_the_terminal_alone() {
    let screen = Screen::start(&Store::on("nosuch://x"), "", 24, 100);
    screen.shows("tenure: ");
    screen.ends_with(64);
}

#[test]
fn a_file_that_is_not_there_yet_is_waited_for() {
    let store = Store::new();
    let mut screen = Screen::start(&store, "--interval 50ms", 24, 100);
    screen.shows("there is no such file yet");
    store.tenure("acquire x --label boss --ttl 1h").exits(0);
    screen.shows("boss");
    screen.press("q");
    screen.ends_with(0);
}
