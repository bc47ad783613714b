//! `serve token`: a new secret, and its entry for the file of tokens.

use tenure_server::{Entry, Secret};

use crate::args::Token;
use crate::exit::Exit;
use crate::failure::{Failure, note};
use crate::output;

#[derive(serde::Serialize)]
struct Made<'a> {
    name: &'a str,
    secret: &'a str,
    entry: String,
}

/// Prints the secret on stderr and the entry on stdout, so that `>> tokens.toml` keeps only what may be kept.
pub(super) fn make(args: &Token, json: bool) -> Result<Exit, Failure> {
    Entry::check_name(&args.name).map_err(Failure::usage)?;
    if args.prefix.iter().any(String::is_empty) {
        return Err(Failure::usage("an empty --prefix: leave it out to allow all names".to_owned()));
    }
    let secret = Secret::random();
    let entry = Entry {
        name: args.name.clone(),
        sha256: secret.hash().to_string(),
        may: args.may.clone(),
        prefix: args.prefix.clone(),
    };
    if json {
        output::print_json(&Made { name: &args.name, secret: secret.reveal(), entry: entry.to_toml() })?;
        return Ok(Exit::Done);
    }
    output::print(entry.to_toml().as_bytes())?;
    note(&format!("the secret of {}, which is not shown again: {}", args.name, secret.reveal()), json);
    Ok(Exit::Done)
}
