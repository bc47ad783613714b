//! `show`, `ls`, `break`.

use serde_json::json;

use crate::support::{Store, done, keys};

#[test]
fn a_free_name_is_shown_as_free() {
    let store = Store::new();
    assert_eq!(store.tenure("show x").exits(0).text(), "x is free");
    assert_eq!(store.show("x"), json!({"name": "x", "capacity": null, "holders": [], "waiters": []}));
}

#[test]
fn show_tells_holders_and_waiters_in_json() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    let _waiter = store.start_waiter("x", "--label next");
    let view = store.show("x");
    assert_eq!(view["capacity"], 1);
    assert_eq!(keys(&view["holders"][0]), ["expires_in_ms", "held_ms", "label", "owner", "shape", "token", "units"]);
    assert_eq!(view["holders"][0]["label"], "boss");
    assert!(view["holders"][0]["token"].is_u64());
    assert_eq!(keys(&view["waiters"][0]), ["label", "owner", "shape", "units", "waited_ms"]);
    assert_eq!(view["waiters"][0]["label"], "next");
}

#[test]
fn show_and_ls_tell_the_shape_of_each_holder_and_waiter() {
    let store = Store::new();
    let _holder = store.start("x", "sleep 60");
    let _writer = store.start_waiter("x", "");
    let _reader = store.start_waiter("x", "--shared");
    let _permit = store.start_until("y --permits 2", "touch other; sleep 60", "other");
    let shapes = |view: &serde_json::Value, of: &str| -> Vec<String> {
        let word = |entry: &serde_json::Value| format!("{} {}", entry["shape"].as_str().unwrap(), entry["units"]);
        view[of].as_array().unwrap().iter().map(word).collect()
    };
    for view in [&store.show("x"), &store.tenure("ls x --json").exits(0).json()[0]] {
        assert_eq!(shapes(view, "holders"), ["exclusive 1"]);
        assert_eq!(shapes(view, "waiters"), ["exclusive 1", "shared 1"]);
    }
    assert_eq!(shapes(&store.show("y"), "holders"), ["permits 1"]);
    let text = store.tenure("show x").exits(0).text();
    assert_eq!(text.matches("exclusive").count(), 2, "{text}");
    assert_eq!(text.matches("shared").count(), 1, "{text}");
    assert!(store.tenure("show y").exits(0).text().contains("1 of 2"));
}

#[test]
fn show_is_a_table_for_people() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    let _waiter = store.start_waiter("x", "--label next");
    let text = store.tenure("show x").exits(0).text();
    for part in ["x is held", "HOLDER", "boss", "EXPIRES IN", "WAITER, AND TASKS BEHIND IT", "next"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "no colours in a pipe");
}

#[test]
fn a_run_is_labelled_with_its_place_and_its_command() {
    let store = Store::new();
    let run = store.start("x", "sleep 60");
    let label = store.show("x")["holders"][0]["label"].as_str().unwrap().to_owned();
    assert!(label.ends_with(&format!(":{} sh", run.pid.as_raw_nonzero())), "{label}");
}

#[test]
fn ls_lists_names_by_prefix() {
    let store = Store::new();
    for name in ["orders/1", "orders/2", "users/1"] {
        store.tenure(&format!("acquire {name}")).exits(0);
    }
    let names = |args: &str| -> Vec<String> {
        let views = store.tenure(args).exits(0).json();
        views.as_array().unwrap().iter().map(|view| view["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("ls --json"), ["orders/1", "orders/2", "users/1"]);
    assert_eq!(names("ls orders/ --json"), ["orders/1", "orders/2"]);
    assert_eq!(names("ls nothing --json"), [""; 0]);
}

#[test]
fn ls_is_a_table_for_people() {
    let store = Store::new();
    store.tenure("ls").exits(0).says("no names in use in");
    store.tenure("ls or").exits(0).says("no names in use that begin with \"or\"");
    store.tenure("acquire orders/1 --label boss").exits(0);
    let text = store.tenure("ls").exits(0).text();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.starts_with("NAME") && text.contains("orders/1") && text.contains("boss"), "{text}");
}

#[test]
fn break_asks_for_yes_and_says_what_it_would_end() {
    let store = Store::new();
    store.tenure("acquire x --label boss").exits(0);
    store.tenure("break x").exits(64).says("boss").says("--yes");
    assert_eq!(store.show("x")["holders"][0]["label"], "boss");
}

#[test]
fn break_ends_the_holders_and_the_next_token_is_higher() {
    let store = Store::new();
    let before = store.tenure("acquire x").exits(0).json();
    assert_eq!(store.tenure("break x --yes --json").exits(0).json(), json!({"broken": 1}));
    let after = store.tenure("acquire x --no-wait").exits(0).json();
    assert!(after["token"].as_u64() > before["token"].as_u64());
}

#[test]
fn break_of_one_owner_leaves_the_others() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    store.tenure("break x --yes --owner b").exits(1).says("the owner b holds nothing there");
    let refused = store.tenure("break x --owner b").exits(64).says("the owner b holds nothing there");
    assert!(!refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(store.show("x")["holders"][0]["owner"], "a");
    store.tenure("break x --yes --owner a").exits(0);
    assert_eq!(store.show("x")["holders"], json!([]));
}

#[test]
fn break_of_a_free_name_is_1() {
    let store = Store::new();
    store.tenure("break x --yes").exits(1).says("nobody holds");
    store.tenure("break x --yes --owner b").exits(1).says("nobody holds");
    let refused = store.tenure("break x").exits(64).says("nobody holds");
    assert!(!refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(store.tenure("break x --yes --json").exits(1).json(), json!({"broken": 0}));
}

#[test]
fn a_breaker_is_known_by_its_user_also_without_a_login() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    let mut breaking = store.command(["break", "x", "--yes", "--reason", "because"]);
    for variable in ["USER", "LOGNAME", "SUDO_USER"] {
        breaking.env_remove(variable);
    }
    done(&mut breaking).exits(0);
    let id = done(std::process::Command::new("id").arg("-un"));
    let user = id.exits(0).text();
    store.tenure("renew x --owner a").exits(76).says(&format!("broken by {user}@"));
}

#[test]
fn what_others_wrote_does_not_reach_the_terminal_raw() {
    let store = Store::new();
    let name = "x\u{202e}y";
    done(&mut store.command(["acquire", name, "--owner", "a", "--label", "evil\x1b[2J\u{2066}\nboss"])).exits(0);
    let told = [
        done(&mut store.command(["show", name])).exits(0).text(),
        store.tenure("ls").exits(0).text(),
        done(&mut store.command(["break", name])).exits(64).stderr,
        done(&mut store.command(["run", name, "--no-wait", "--", "true"])).exits(75).stderr,
    ];
    for text in told {
        assert!(text.contains("evil") && text.contains("boss"), "{text:?}");
        assert!(!text.contains(['\x1b', '\u{2066}', '\u{202e}']), "{text:?}");
    }
    assert_eq!(store.show(name)["name"], name, "JSON is exact");
}
