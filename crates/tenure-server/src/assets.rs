//! The dashboard's files, in the binary.

/// Each by its name, with its type.
const FILES: &[(&str, &str, &[u8])] = &[
    ("api.js", "text/javascript; charset=utf-8", include_bytes!("../assets/api.js")),
    ("app.js", "text/javascript; charset=utf-8", include_bytes!("../assets/app.js")),
    ("break.js", "text/javascript; charset=utf-8", include_bytes!("../assets/break.js")),
    ("charts.js", "text/javascript; charset=utf-8", include_bytes!("../assets/charts.js")),
    ("dom.js", "text/javascript; charset=utf-8", include_bytes!("../assets/dom.js")),
    ("explain.js", "text/javascript; charset=utf-8", include_bytes!("../assets/explain.js")),
    ("format.js", "text/javascript; charset=utf-8", include_bytes!("../assets/format.js")),
    ("grid.js", "text/javascript; charset=utf-8", include_bytes!("../assets/grid.js")),
    ("icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
    ("index.html", "text/html; charset=utf-8", include_bytes!("../assets/index.html")),
    ("lock.js", "text/javascript; charset=utf-8", include_bytes!("../assets/lock.js")),
    ("locks.js", "text/javascript; charset=utf-8", include_bytes!("../assets/locks.js")),
    ("memo.js", "text/javascript; charset=utf-8", include_bytes!("../assets/memo.js")),
    ("metrics.js", "text/javascript; charset=utf-8", include_bytes!("../assets/metrics.js")),
    ("style.css", "text/css; charset=utf-8", include_bytes!("../assets/style.css")),
    ("sync.js", "text/javascript; charset=utf-8", include_bytes!("../assets/sync.js")),
];

/// A file and its type.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static [u8])> {
    FILES.iter().find(|(known, ..)| *known == name).map(|(_, kind, bytes)| (*kind, *bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_dashboard_is_served() {
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/assets")).unwrap();
        for file in files {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(find(&name).is_some(), "{name} is not in the binary");
        }
    }
}
