//! Where a holder runs, as far as its label tells.

/// The host and the process of a label such as `web-3:4711 sh`, which tenure writes where nobody chose another.
pub(super) fn of(label: &str) -> Option<(&str, u32)> {
    let (host, pid) = label.split(' ').next()?.rsplit_once(':')?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
    (!host.is_empty()).then_some((host, pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_that_tenure_wrote_tells_host_and_process() {
        assert_eq!(of("web-3:4711 sh"), Some(("web-3", 4711)));
        assert_eq!(of("web-3:4711"), Some(("web-3", 4711)));
        for other in ["", "boss", "boss: 7", ":7", "web-3:", "web-3:x sh", "web-3:0", "ci job:7"] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }
}
