//! `elect`: one leader at a time.

mod observe;

use crate::args::Elect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::run;
use crate::store::Store;

pub(crate) async fn run(args: Elect, store: Store, json: bool) -> Result<Exit, Failure> {
    if args.observe {
        return observe::run(&args.name, store, json).await;
    }
    run::lead(run::Plan::of_leader(args, store, json)?).await
}
