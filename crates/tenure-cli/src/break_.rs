//! `break`: ends other holders' claims.

use serde::Serialize;
use tenure::machine::HolderView;
use tenure::{Name, Owner};

use crate::args::Break;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::store::Store;
use crate::wait::Wait;
use crate::{duration, label};

#[derive(Serialize)]
struct Broken {
    broken: usize,
}

pub(crate) async fn run(args: Break, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = args.owner.map(Owner::new).transpose()?;
    let tenure = store.connect(&label::of_person(), Wait::Forever).await?;
    if !args.yes {
        let view = store.ask(tenure.inspect(name.as_str())).await?;
        let chosen = |holder: &&HolderView| owner.is_none() || holder.owner == owner;
        let holders: Vec<String> = view.holders.iter().filter(chosen).map(describe).collect();
        let message = if holders.is_empty() {
            format!("{name}: nothing to break: nobody holds it now")
        } else {
            format!("{name}: this would end {}", holders.join(" and "))
        };
        return Err(Failure::usage(message).hint("add --yes to end them"));
    }
    let broken = store.ask(tenure.break_holders(name.as_str(), owner, &args.reason)).await?;
    if json {
        output::print_json(&Broken { broken })?;
    } else if broken > 0 {
        crate::failure::say(format_args!("{name}: ended {broken} claim{}", if broken == 1 { "" } else { "s" }));
    }
    if broken > 0 {
        return Ok(Exit::Done);
    }
    if json {
        return Ok(Exit::Nothing);
    }
    Err(Failure::new(Exit::Nothing, format!("{name}: nobody holds it")))
}

fn describe(holder: &HolderView) -> String {
    let label = holder.label.as_deref().unwrap_or("an unnamed holder");
    match holder.held {
        Some(held) => format!("{label} (holds it for {})", duration::show(held)),
        None => label.to_owned(),
    }
}
