//! `--groups`: which names metrics tell apart.

use crate::failure::Failure;

/// How many the library tells apart at most.
const GROUPS_MAX: usize = 64;

/// One group: what stands before the first slash of a name.
pub(crate) fn parse(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') || text.chars().any(char::is_control) {
        return Err("a group is what stands before the first / of a name, such as orders".to_owned());
    }
    Ok(text.to_owned())
}

/// Refuses more than are told apart.
pub(crate) fn checked(groups: &[String]) -> Result<&[String], Failure> {
    if groups.len() > GROUPS_MAX {
        return Err(Failure::usage(format!(
            "--groups names {} groups: at most {GROUPS_MAX} are told apart",
            groups.len()
        )));
    }
    Ok(groups)
}
