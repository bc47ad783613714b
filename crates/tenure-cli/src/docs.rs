//! `completions` and `man`, made from the same definitions as `--help`.

use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

pub(crate) fn completions(args: &args::Completions) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::Cli::command(), "tenure", &mut script);
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
        std::fs::write(&path, &page.text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// tenure(1) and one page for each command.
fn pages() -> std::io::Result<Vec<Page>> {
    let mut command = args::Cli::command().disable_help_subcommand(true);
    command.build();
    let subcommands = command.get_subcommands().map(|sub| (sub, format!("tenure-{}", sub.get_name())));
    std::iter::once((&command, "tenure".to_owned())).chain(subcommands).map(|(sub, title)| page(sub, title)).collect()
}

fn page(command: &clap::Command, title: String) -> std::io::Result<Page> {
    let version = concat!("tenure ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(&title).source(version).manual("tenure");
    let mut text = Vec::new();
    man.render(&mut text)?;
    Ok(Page { title, text: keep_lines(&String::from_utf8_lossy(&text)) })
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
        kept.push_str(line);
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
            all.push_str(&page.text);
            continue;
        }
        all.push_str(&format!(".SH {}\n", page.title.replace('-', " ").to_uppercase()));
        let body = page.text.split_once(".SH SYNOPSIS").map_or("", |(_, body)| body);
        all.push_str(&format!(".SS SYNOPSIS{}", body.replace("\n.SH ", "\n.SS ")));
    }
    all
}
