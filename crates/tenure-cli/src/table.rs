//! Tables as commands print them.

use comfy_table::{Cell, Table, presets};

/// An empty one with this header.
pub(crate) fn table(header: impl IntoIterator<Item = impl Into<Cell>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.into_iter().map(Into::into).collect::<Vec<Cell>>());
    table
}

/// The table as text, columns two apart and nothing at the ends of lines.
pub(crate) fn finish(table: &Table) -> String {
    let mut table = table.clone();
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}
