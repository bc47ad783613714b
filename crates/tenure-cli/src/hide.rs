//! Keeps a password that was given with `--on` out of sight: everybody on the machine may read a command line.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::env;

/// Starts this very process anew with the URL in its environment, which only its user may read, if it has a password.
/// If that cannot be done, all goes on as it was asked for.
pub(crate) fn password(on: &str, arguments: &[OsString]) {
    if tenure::redacted(on) == on {
        return;
    }
    let (Some(arguments), Ok(program)) = (without(on, arguments), std::env::current_exe()) else { return };
    let mut again = Command::new(program);
    if let Some((name, rest)) = arguments.split_first() {
        // What goes wrong here is not worth a word: the store is reached all the same.
        drop(again.arg0(name).args(rest).env(env::ON, on).exec());
    }
}

/// A text that quotes arguments, without the passwords of URLs among them: one may have been put in the wrong place.
pub(crate) fn passwords_of(arguments: &[OsString], text: String) -> String {
    arguments.iter().filter_map(|argument| argument.to_str()).fold(text, |text, argument| {
        // `--option=URL`, or a URL by itself.
        let value = argument.split_once('=').filter(|(name, _)| name.starts_with("--"));
        let url = value.map_or(argument, |(_, value)| value);
        if url.contains("://") { text.replace(url, &tenure::redacted(url)) } else { text }
    })
}

/// The arguments without `--on URL`. `None` if it does not stand among them.
fn without(on: &str, arguments: &[OsString]) -> Option<Vec<OsString>> {
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let options = arguments.get(..end)?;
    let joined = OsString::from(format!("--on={on}"));
    let (at, words) = match options.windows(2).position(|pair| pair[0] == "--on" && pair[1] == on) {
        Some(at) => (at, 2),
        None => (options.iter().position(|argument| *argument == joined)?, 1),
    };
    let kept = |(index, _): &(usize, &OsString)| !(at..at + words).contains(index);
    Some(arguments.iter().enumerate().filter(kept).map(|(_, argument)| argument.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_in_the_wrong_place_is_quoted_without_its_password() {
        let arguments = ["t", "doctor", "redis://u:secret@h/0", "--of=redis://u:se=cret@h"].map(OsString::from);
        let text = "unexpected redis://u:secret@h/0 and --of=redis://u:se=cret@h".to_owned();
        let told = passwords_of(&arguments, text);
        assert_eq!(told, "unexpected redis://u:***@h/0 and --of=redis://u:***@h");
    }

    #[test]
    fn only_the_option_is_taken_out() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        for (line, rest) in [
            ("t --on u run x -- c --on u", Some("t run x -- c --on u")),
            ("t run x --on=u -- c", Some("t run x -- c")),
            ("t run --owner u --on u", Some("t run --owner u")),
            ("t run x -- c --on u", None),
        ] {
            assert_eq!(without("u", &words(line)), rest.map(words), "{line}");
        }
    }
}
