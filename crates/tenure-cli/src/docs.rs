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
        None => {
            for (_, page) in &pages {
                output::print(page)?;
            }
        }
    }
    Ok(Exit::Done)
}

fn write(dir: &Path, pages: &[(String, Vec<u8>)]) -> Result<(), Failure> {
    let failed = |path: &Path, error: std::io::Error| {
        Failure::new(Exit::Unavailable, format!("{} cannot be written: {error}", path.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    for (file, page) in pages {
        let path = dir.join(file);
        std::fs::write(&path, page).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// tenure(1) and one page for each command: file name and text.
fn pages() -> std::io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = args::Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = vec![page(&command, "tenure".to_owned())?];
    for sub in command.get_subcommands() {
        pages.push(page(sub, format!("tenure-{}", sub.get_name()))?);
    }
    Ok(pages)
}

fn page(command: &clap::Command, title: String) -> std::io::Result<(String, Vec<u8>)> {
    let file = format!("{title}.1");
    // Names of clap commands are static or leaked by the caller; the title is all that differs here.
    let man = Man::new(command.clone()).title(title);
    let mut text = Vec::new();
    man.render(&mut text)?;
    Ok((file, text))
}
