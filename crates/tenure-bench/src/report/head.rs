//! What the report begins and ends with: the method, the machine, who took part and who did not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::table::Table;
use crate::data::Data;

/// The title, the method and the machine.
pub(super) fn text(data: &Data) -> String {
    let run = &data.run;
    let source = |(name, questions): &(String, Vec<String>)| {
        let only = if questions.is_empty() { String::new() } else { format!(" ({})", questions.join(", ")) };
        format!("[{name}](runs/{name}){only}")
    };
    let sources = data.sources.iter().map(source).collect::<Vec<_>>().join(", ");
    let said = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let machine = &run["machine"];
    let versions: Vec<String> = run["versions"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(what, version)| match version.as_str() {
            Some(version) if version.to_lowercase().starts_with(what.as_str()) => version.to_owned(),
            Some(version) => format!("{what}: {version}"),
            None => format!("{what}: not there"),
        })
        .collect();
    let quick = if run["plan"]["quick"] == true {
        "\n**A quick run: it shows that everything works; its figures mean nothing.**\n"
    } else {
        ""
    };
    format!(
        "# Benchmark report\n{quick}
Made by `tenure-bench report` from {sources}; nothing in it is written by hand. How to run it and what each question means:
[README.md](README.md).

- {date}, commit {commit}
- {cores} cores of {cpu}, {memory} of memory, {kernel}; servers and contestants share them
- {versions}

**Method.** Every contestant is a process of its own that is told what to do by the same order (`bench/README.md`) and uses its library as the
library's documentation says. Contestants take turns within each round, beginning with another one in each of {rounds} rounds (once
where 32 processes of Java start); all warm up before they are counted. A figure is the median of the rounds, with the least and the greatest in brackets. A ratio is taken round by
round, and is the median of those. Redis keeps nothing on disk. CPU time is that of the client processes and of the server, beside the
time on the wall.
",
        date = said(&run["date"]),
        commit = said(&run["commit"]),
        cores = machine["cores"],
        cpu = said(&machine["cpu"]),
        memory = gigabytes(&said(&machine["memory"])),
        kernel = said(&machine["kernel"]),
        versions = versions.join("; "),
        rounds = run["plan"]["rounds"],
    )
}

/// "24682416 kB" as people say it.
fn gigabytes(told: &str) -> String {
    let kilobytes = told.strip_suffix(" kB").and_then(|number| number.trim().parse::<f64>().ok());
    kilobytes.map_or_else(|| told.to_owned(), |kilobytes| format!("{:.0} GB", kilobytes / 1e6))
}

/// Who took part, with versions and settings.
pub(super) fn contestants(data: &Data) -> String {
    let mut table = Table::new(["contestant", "store", "library", "version", "settings", "renews"]);
    for contestant in data.run["contestants"].as_array().into_iter().flatten() {
        let field = |name: &str| contestant[name].as_str().unwrap_or("-").to_owned();
        let renews = if contestant["renews"] == true { "yes" } else { "no" };
        table.row([
            field("peer"),
            field("store"),
            field("library"),
            field("version"),
            field("settings"),
            renews.to_owned(),
        ]);
    }
    format!("## Who took part\n\n{}", table.text())
}

/// Who did not, and what failed.
pub(super) fn missing(data: &Data) -> String {
    let mut text = String::from("## What is missing\n\n");
    let mut grouped: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for missing in &data.missing {
        let who = match missing.store.as_str() {
            "" => missing.missing.clone(),
            store => format!("{} over {store}", missing.missing),
        };
        let place = match missing.question.as_str() {
            "" => String::new(),
            question if missing.params.is_object() => format!(", {question} {}", missing.params),
            question => format!(", {question}"),
        };
        let rounds = grouped.entry((format!("{who}{place}"), missing.why.clone())).or_default();
        if missing.round > 0 {
            rounds.push(missing.round.to_string());
        }
    }
    for ((what, why), rounds) in &grouped {
        let rounds = if rounds.is_empty() { String::new() } else { format!(" (round {})", rounds.join(", ")) };
        let _ = writeln!(text, "- {what}: {why}{rounds}");
    }
    if data.run["plan"]["quick"] == true {
        text.push_str("- peers: a quick run asks none\n");
    } else if let Some(named) = data.run["plan"]["peers"].as_array() {
        let _ = writeln!(text, "- other peers than {}: not asked", Value::from(named.clone()));
    }
    text
}
