//! Text that others wrote, made safe for a terminal.

/// `text` without what would move the cursor, change colours, begin a line or turn the direction of what follows: each
/// such character becomes U+FFFD. Labels and reasons are whatever their authors wrote.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_harms_is_replaced() {
        assert_eq!(plain("web-3: grüße, 日本語 \u{1f600}"), "web-3: grüße, 日本語 \u{1f600}");
        assert_eq!(plain("a\x1b[2Jb\r\n\tc\u{9b}d\u{7f}"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c\u{fffd}d\u{fffd}");
        for bidi in ['\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}', '\u{200e}', '\u{200f}'] {
            assert_eq!(plain(&format!("a{bidi}b")), "a\u{fffd}b");
        }
    }
}
