//! The Lua scripts, by their digest.

use std::sync::LazyLock;

use redis::{Cmd, Script as Hashed};

/// A script that the server knows by its digest, or is told in full.
#[derive(Debug)]
pub(in crate::backends) struct Script {
    whole: LazyLock<(String, String)>,
}

/// The line of `native.lua` that stands for `queue.lua`: a function is only made where a call comes by.
const QUEUE_GOES_HERE: &str = "--@queue";

fn whole(text: String) -> (String, String) {
    let digest = Hashed::new(&text).get_hash().to_owned();
    (text, digest)
}

macro_rules! script {
    ($name:ident, $text:expr) => {
        pub(in crate::backends) static $name: Script = Script { whole: LazyLock::new(|| whole($text)) };
    };
}

script!(NATIVE, include_str!("native.lua").replace(QUEUE_GOES_HERE, include_str!("queue.lua")));
script!(INSPECT, include_str!("inspect.lua").to_owned());
script!(MEMO, include_str!("memo.lua").to_owned());
script!(PLAIN, include_str!("plain.lua").to_owned());
#[cfg(feature = "redlock")]
script!(BALLOTS, include_str!("../redlock/ballots.lua").to_owned());
script!(REDISSON, include_str!("redisson.lua").to_owned());

/// The node's own hash, and two of the last tokens of names.
#[cfg(feature = "redlock")]
pub(in crate::backends) const BALLOT_KEYS: [&str; 3] =
    ["tenure:redlock", "tenure:redlock:last:a", "tenure:redlock:last:b"];

impl Script {
    /// The beginning of a call: by digest, or with the text for a server that does not know it.
    pub(in crate::backends) fn call(&self, in_full: bool) -> Cmd {
        self.call_sized(in_full, 8, 256)
    }

    /// The same for a call with so many more arguments, of about so many bytes.
    pub(in crate::backends) fn call_sized(&self, in_full: bool, args: usize, bytes: usize) -> Cmd {
        let (text, digest) = &*self.whole;
        let mut command = Cmd::with_capacity(args + 2, bytes + 64);
        command.arg(if in_full { "EVAL" } else { "EVALSHA" });
        command.arg(if in_full { text } else { digest });
        command
    }
}
