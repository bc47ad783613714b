//! The report: what was measured, as tables and plots, and whether the goals are reached.

mod ahead;
mod goals;
mod head;
mod plots;
mod sections;
mod service;
pub mod table;

use std::path::Path;

use crate::data::Data;

/// Writes `REPORT.md` and its plots into a folder.
///
/// # Errors
///
/// If they cannot be written.
pub fn write(data: &Data, out: &Path) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", out.display());
    std::fs::create_dir_all(out).map_err(|error| failed(&error))?;
    for (name, svg) in plots::all(data)? {
        std::fs::write(out.join(format!("{name}.svg")), svg).map_err(|error| failed(&error))?;
    }
    std::fs::write(out.join("REPORT.md"), text(data)).map_err(|error| failed(&error))
}

/// The text of the report.
pub fn text(data: &Data) -> String {
    [
        head::text(data),
        goals::text(data),
        ahead::text(data),
        sections::text(data),
        head::contestants(data),
        head::missing(data),
    ]
    .join("\n")
}
