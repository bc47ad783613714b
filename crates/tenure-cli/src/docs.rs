//! `completions` and `man`, made from the same definitions as `--help`.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// The hidden command that the scripts below ask.
pub(crate) const COMPLETE_COMMAND: &str = "__complete";

pub(crate) fn completions(args: &args::Completions) -> Result<Exit, Failure> {
    let script = match args.shell {
        Shell::Bash => include_str!("complete/tenure.bash").as_bytes().to_vec(),
        Shell::Zsh => include_str!("complete/tenure.zsh").as_bytes().to_vec(),
        Shell::Fish => include_str!("complete/tenure.fish").as_bytes().to_vec(),
        other => {
            let mut script = Vec::new();
            clap_complete::generate(other, &mut args::Cli::command(), "tenure", &mut script);
            script
        }
    };
    output::print(&script)?;
    Ok(Exit::Done)
}

pub(crate) fn man(args: &args::Man) -> Result<Exit, Failure> {
    let pages = pages().map_err(|error| Failure::new(Exit::Unavailable, format!("no manual page: {error}")))?;
    match &args.out {
        Some(dir) => write(dir, &pages)?,
        None => output::print(together(&pages).as_bytes())?,
    }
    Ok(Exit::Done)
}

/// A manual page: of which command, and its text.
struct Page {
    title: String,
    text: String,
}

fn write(dir: &Path, pages: &[Page]) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(Exit::Unavailable, format!("{} cannot be written: {error}", path.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    for page in pages {
        let path = dir.join(format!("{}.1", page.title));
        std::fs::write(&path, without_description(&page.text)).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// tenure(1) and one page for each command, and for each of what a command has below it.
fn pages() -> std::io::Result<Vec<Page>> {
    let mut command = args::Cli::command().disable_help_subcommand(true);
    command.build();
    let mut commands = vec![(&command, "tenure".to_owned())];
    for sub in command.get_subcommands() {
        let title = format!("tenure-{}", sub.get_name());
        let below = sub.get_subcommands().filter(|below| below.get_name() != "help");
        let below: Vec<_> = below.map(|below| (below, format!("{title}-{}", below.get_name()))).collect();
        commands.push((sub, title));
        commands.extend(below);
    }
    commands.into_iter().map(|(command, title)| page(command, title)).collect()
}

fn page(command: &clap::Command, title: String) -> std::io::Result<Page> {
    let version = concat!("tenure ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(&title).source(version).manual("tenure");
    let mut text = Vec::new();
    man.render(&mut text)?;
    let text = with_usage(&String::from_utf8_lossy(&text), &usage(command));
    Ok(Page { title, text: keep_lines(&text) })
}

/// How the command is called, as `--help` says it: with the `--` before what is run.
fn usage(command: &clap::Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage:").trim().to_owned()
}

/// The page with this as its synopsis.
fn with_usage(page: &str, usage: &str) -> String {
    let Some((before, rest)) = page.split_once(".SH SYNOPSIS\n") else { return page.to_owned() };
    let rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    format!("{before}.SH SYNOPSIS\n{}\n{rest}", usage.replace('-', "\\-"))
}

/// The page without its description, which says again what stands behind the name.
fn without_description(page: &str) -> String {
    let Some((before, rest)) = page.split_once(".SH DESCRIPTION\n") else { return page.to_owned() };
    let after = rest.find(".SH ").map_or("", |next| &rest[next..]);
    format!("{before}{after}")
}

/// Keeps the indented lines of the last section (examples, exit codes) as they are: a manual page would fill them.
fn keep_lines(page: &str) -> String {
    let Some((before, notes)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    let mut kept = format!("{before}.SH NOTES\n");
    let mut verbatim = false;
    for line in notes.lines() {
        if line.starts_with("  ") != verbatim {
            verbatim = !verbatim;
            kept.push_str(if verbatim { ".nf\n" } else { ".fi\n" });
        }
        kept.push_str(line.strip_prefix("  ").unwrap_or(line));
        kept.push('\n');
    }
    if verbatim {
        kept.push_str(".fi\n");
    }
    kept
}

/// All of them as one page: what has its own section on a command's page has its subsection here.
fn together(pages: &[Page]) -> String {
    let mut all = String::new();
    for page in pages {
        if all.is_empty() {
            all.push_str(&without_description(&page.text));
            continue;
        }
        all.push_str(&format!(".SH {}\n", page.title.replace('-', " ").to_uppercase()));
        let body = page.text.split_once(".SH SYNOPSIS").map_or("", |(_, body)| body);
        all.push_str(&format!(".SS SYNOPSIS{}", body.replace("\n.SH ", "\n.SS ")));
    }
    all
}
