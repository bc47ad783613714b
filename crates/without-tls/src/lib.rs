//! Nothing but the dependency; see `tests`.
