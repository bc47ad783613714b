//! `explain`: `show` with a diagnosis.

mod text;

use std::time::Duration;

use tenure::{Name, Tenure};

use crate::args::Explain;
use crate::exit::Exit;
use crate::failure::{Failure, Talk};
use crate::store::Store;
use crate::{duration, label, output};

pub(crate) async fn run(args: Explain, store: Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(&args.name)?;
    let looking = |limit: Duration| {
        if !json && Talk::now() != Talk::Quiet {
            let limit = duration::show(limit);
            crate::failure::say(format_args!("{name}: looking for up to {limit} whether it is renewed"));
        }
    };
    let explain = async |tenure: &Tenure| {
        let report = tenure.explain_after(&name, looking).await?;
        if json {
            output::print_json(&report)?;
        } else {
            output::print(text::of(&report).as_bytes())?;
        }
        Ok(Exit::Done)
    };
    store.with(&label::of_person(), json, explain).await
}
