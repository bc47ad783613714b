//! The test programs: what cargo says of them, and the order they start in.

use std::path::PathBuf;

use serde_json::Value;

/// The programs that take longest, longest first: one that starts last would be waited for alone.
const LONGEST: [&str; 8] = [
    "tenure-testkit::conformance",
    "tenure-cli::cli",
    "tenure::redis",
    "tenure",
    "tenure::postgres",
    "tenure::redlock",
    "tenure::zookeeper",
    "tenure::etcd",
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Its package, and its target's name unless that is the package's own library or command.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// Where it runs: its package's folder.
    pub(crate) folder: PathBuf,
}

impl Program {
    /// The programs in cargo's messages, the longest first.
    pub(crate) fn all_in(messages: &[String]) -> Result<Vec<Self>, String> {
        let mut programs = Vec::new();
        for line in messages {
            let message: Value =
                serde_json::from_str(line).map_err(|error| format!("no message of cargo: {error}: {line}"))?;
            programs.extend(Self::of(&message));
        }
        programs.sort_by_key(|program| {
            let place = LONGEST.iter().position(|name| *name == program.name);
            (place.unwrap_or(LONGEST.len()), program.name.clone())
        });
        Ok(programs)
    }

    fn of(message: &Value) -> Option<Self> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let executable = PathBuf::from(message["executable"].as_str()?);
        let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
        let package = package(message["package_id"].as_str()?);
        let target = message["target"]["name"].as_str()?;
        let name = match message["target"]["kind"][0].as_str()? {
            "lib" => package.to_owned(),
            "bin" => format!("{package} (command)"),
            _ => format!("{package}::{target}"),
        };
        Some(Self { name, executable, folder })
    }
}

/// The package's name in `path+file:///…/crates/tenure#0.1.0` or `path+file:///…/examples#tenure-examples@0.1.0`.
fn package(id: &str) -> &str {
    let (place, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next().unwrap_or(place),
    }
}

/// Those that are asked for. A name that no program has is a mistake, not nothing to do.
pub(crate) fn chosen(programs: Vec<Program>, only: &[String], skip: &[String]) -> Result<Vec<Program>, String> {
    if let Some(unknown) = only.iter().chain(skip).find(|name| programs.iter().all(|program| program.name != **name)) {
        let names: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
        return Err(format!("no program is called {unknown}, but there are: {}", names.join(", ")));
    }
    let is_chosen =
        |program: &Program| (only.is_empty() || only.contains(&program.name)) && !skip.contains(&program.name);
    let programs: Vec<_> = programs.into_iter().filter(is_chosen).collect();
    if programs.is_empty() {
        return Err("no test programs: are these the messages of `cargo test --no-run --message-format json`?".into());
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, target: &str, kind: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/here/Cargo.toml",
            "target": {"name": target, "kind": [kind]}, "profile": {"test": test}, "executable": "/there/it",
        })
        .to_string()
    }

    fn names(messages: &[String]) -> Vec<String> {
        Program::all_in(messages).unwrap().into_iter().map(|program| program.name).collect()
    }

    #[test]
    fn programs_are_named_by_package_and_target_and_the_longest_come_first() {
        let messages = [
            message("path+file:///w/examples#tenure-examples@0.1.0", "tenure_examples", "lib", true),
            message("path+file:///w/crates/tenure#0.1.0", "etcd", "test", true),
            message("path+file:///w/crates/tenure-cli#0.1.0", "tenure", "bin", true),
            message("path+file:///w/crates/tenure-cli#0.1.0", "tenure", "bin", false),
            message("path+file:///w/crates/tenure#0.1.0", "redlock", "test", true),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        assert_eq!(names(&messages), ["tenure::redlock", "tenure::etcd", "tenure-cli (command)", "tenure-examples"]);
    }

    #[test]
    fn what_is_chosen_must_be_there() {
        let all = || Program::all_in(&[message("path+file:///w/crates/tenure#0.1.0", "etcd", "test", true)]).unwrap();
        let name = |name: &str| vec![name.to_owned()];
        assert_eq!(chosen(all(), &name("tenure::etcd"), &[]), Ok(all()));
        assert!(chosen(all(), &name("tenure::etc"), &[]).unwrap_err().contains("tenure::etcd"));
        assert!(chosen(all(), &[], &name("tenure::etcd")).is_err(), "nothing to run is no success");
    }
}
