//! `break`: ends other holders' claims.

use serde::Serialize;
use tenure::machine::{HolderView, NameView};
use tenure::{Name, Owner};

use crate::args::Break;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::store::Store;
use crate::{duration, label};

#[derive(Serialize)]
struct Broken {
    broken: usize,
}

pub(crate) async fn run(args: Break, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let owner = args.owner.map(Owner::new).transpose()?;
    let tenure = store.connect_to_look(&label::of_person(), json).await?;
    if !args.yes {
        let view = store.ask(tenure.inspect(name.as_str())).await?;
        let chosen = |holder: &&HolderView| owner.is_none() || holder.owner == owner;
        if let (None, Some(why)) = (&owner, tenure::explain::refused(&view, tenure.guarantees().store)) {
            return Err(Failure::usage(format!("{name}: {why}")));
        }
        let holders: Vec<String> = view.holders.iter().filter(chosen).map(describe).collect();
        if holders.is_empty() {
            return Err(Failure::usage(format!("{name}: nothing to break: {}", nobody(&view, owner.as_ref()))));
        }
        let message = format!("{name}: this would end {}", holders.join(" and "));
        return Err(Failure::usage(message).hint("add --yes to end them"));
    }
    let broken = store.ask(tenure.break_holders(name.as_str(), owner.clone(), &args.reason)).await?;
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
    let view = store.ask(tenure.inspect(name.as_str())).await?;
    Err(Failure::new(Exit::Nothing, format!("{name}: {}", nobody(&view, owner.as_ref()))))
}

/// Why there is nothing to end.
fn nobody(view: &NameView, owner: Option<&Owner>) -> String {
    match owner {
        Some(owner) if !view.holders.is_empty() => format!("the owner {owner} holds nothing there"),
        _ => "nobody holds it".to_owned(),
    }
}

fn describe(holder: &HolderView) -> String {
    let label = label::of_holder(holder);
    match holder.held {
        Some(held) => format!("{label} (holds it for {})", duration::show(held)),
        None => label,
    }
}
