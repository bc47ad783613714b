//! The fencing number of a grant.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The fencing token of a grant: strictly increasing per name from holder to holder.
///
/// Send it with every operation on the protected resource and let the resource refuse an older one
/// ([`fence`](crate::fence)). A lease alone cannot stop a holder that was paused past its deadline;
/// the token can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub u64);

impl Token {
    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
