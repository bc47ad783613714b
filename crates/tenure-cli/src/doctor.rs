//! `doctor`: what makes locks unsafe or slow in a store, and what to change.

mod file;

use serde::Serialize;
use tenure::{Checkup, Severity};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::plain::plain;
use crate::store::Store;

#[derive(Serialize)]
struct Report<'a> {
    store: &'a str,
    #[serde(flatten)]
    checkup: &'a Checkup,
}

pub(crate) async fn run(store: Store, json: bool) -> Result<Exit, Failure> {
    let mut checkup = store.examine().await?;
    let url = store.shown();
    file::examine(&url, &mut checkup);
    // What is unsafe first; else as it was found.
    checkup.findings.sort_by_key(|finding| finding.severity);
    if json {
        output::print_json(&Report { store: &url, checkup: &checkup })?;
    } else {
        output::print(describe(&url, &checkup).as_bytes())?;
    }
    Ok(if checkup.findings.is_empty() { Exit::Done } else { Exit::Nothing })
}

/// The store, its facts in a column, then each finding with its reason and its remedy.
fn describe(url: &str, checkup: &Checkup) -> String {
    let mut text = format!("{}\n\n", plain(url));
    let width = checkup.facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in &checkup.facts {
        text.push_str(&format!("  {:width$}  {}\n", plain(name), plain(value)));
    }
    for finding in &checkup.findings {
        let severity = match finding.severity {
            Severity::Problem => "PROBLEM",
            _ => "ADVICE",
        };
        let [what, why, fix] = [&finding.what, &finding.why, &finding.fix].map(|part| plain(part));
        text.push_str(&format!("\n{severity}  {what}\n  why  {why}\n  fix  {fix}\n"));
        for command in &finding.fix_commands {
            text.push_str(&format!("       {}\n", plain(command)));
        }
    }
    let problems = checkup.findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
    let count = |number: usize, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    text.push_str(&match checkup.findings.len() {
        0 => "\nnothing to change\n".to_owned(),
        all => format!(
            "\n{}, {}\n",
            count(problems, "problem", "problems"),
            count(all - problems, "piece of advice", "pieces of advice")
        ),
    });
    text
}
