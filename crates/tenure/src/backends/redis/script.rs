//! The Lua scripts, by their digest.

use std::sync::LazyLock;

use redis::{Cmd, Script as Hashed};

/// A script that the server knows by its digest, or is told in full.
#[derive(Debug)]
pub(super) struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: Script = Script {
            text: include_str!($file),
            digest: LazyLock::new(|| Hashed::new(include_str!($file)).get_hash().to_owned()),
        };
    };
}

script!(NATIVE, "native.lua");
script!(INSPECT, "inspect.lua");
script!(PLAIN, "plain.lua");
script!(REDISSON, "redisson.lua");

impl Script {
    /// The beginning of a call: by digest, or with the text for a server that does not know it.
    pub(super) fn call(&self, in_full: bool) -> Cmd {
        let mut command = redis::cmd(if in_full { "EVAL" } else { "EVALSHA" });
        command.arg(if in_full { self.text } else { &self.digest });
        command
    }
}
