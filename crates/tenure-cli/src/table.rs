//! Tables as commands print them.

use std::io::IsTerminal as _;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// What stands between two columns.
const GAP: usize = 2;
/// What is left of a cell that is cut, at least.
const CELL_MIN: usize = 8;

/// Rows of cells; the first is the header.
pub(crate) struct Table(Vec<Vec<String>>);

/// An empty one with this header.
pub(crate) fn table(header: impl IntoIterator<Item = impl Into<String>>) -> Table {
    Table(vec![header.into_iter().map(Into::into).collect()])
}

impl Table {
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.push(cells.into_iter().collect());
    }

    /// The table within this width, if it can be: cells of these columns are cut, the first column first.
    fn cut(&mut self, columns: &[&str], width: usize) {
        for name in columns {
            let Some(column) = self.0[0].iter().position(|cell| cell == name) else { continue };
            let widths = self.widths();
            let over = (widths.iter().sum::<usize>() + GAP * (widths.len() - 1)).saturating_sub(width);
            let kept = widths[column].saturating_sub(over).max(CELL_MIN).max(name.width());
            for cell in self.0.iter_mut().filter_map(|row| row.get_mut(column)) {
                shorten(cell, kept);
            }
        }
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| self.0.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
        (0..columns).map(|column| width(column).unwrap_or_default()).collect()
    }
}

/// The table as text: columns two apart, nothing at the ends of lines. On a terminal that is too narrow for it, cells
/// of the columns `cut` are shortened.
pub(crate) fn finish(mut table: Table, cut: &[&str]) -> String {
    let stdout = std::io::stdout();
    if stdout.is_terminal()
        && let Ok(size) = rustix::termios::tcgetwinsize(&stdout)
        && size.ws_col > 0
    {
        table.cut(cut, usize::from(size.ws_col));
    }
    let widths = table.widths();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width - cell.width() + GAP));
        }
        line.truncate(line.trim_end().len());
        line + "\n"
    };
    table.0.iter().map(line).collect()
}

/// Cuts the end off a text that is wider than this.
fn shorten(text: &mut String, width: usize) {
    if text.width() <= width {
        return;
    }
    let mut left = width.saturating_sub(1);
    let fits = |c: &char| {
        let c = c.width().unwrap_or_default();
        let fits = c <= left;
        left = left.saturating_sub(c);
        fits
    };
    *text = text.chars().take_while(fits).chain(['…']).collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders() -> Table {
        let mut holders = table(["HOLDER", "HELD", "OWNER"]);
        holders.add_row(["web-1:77 report".to_owned(), "4.2s".to_owned(), "0123456789abcdef".to_owned()]);
        holders.add_row(["日本".to_owned(), "-".to_owned(), "o".to_owned()]);
        holders
    }

    #[test]
    fn columns_stand_two_apart() {
        let whole = "HOLDER           HELD  OWNER\n\
                     web-1:77 report  4.2s  0123456789abcdef\n\
                     日本             -     o\n";
        assert_eq!(finish(holders(), &["OWNER"]), whole);
        let mut fits = holders();
        fits.cut(&["OWNER"], 39);
        assert_eq!(finish(fits, &[]), whole);
    }

    #[test]
    fn what_is_too_wide_is_cut_column_by_column() {
        for (width, expected) in [
            (35, ["web-1:77 report  4.2s  0123456789a…", "日本             -     o"]),
            (27, ["web-1:77 r…  4.2s  0123456…", "日本         -     o"]),
            (1, ["web-1:7…  4.2s  0123456…", "日本      -     o"]),
        ] {
            let mut narrow = holders();
            narrow.cut(&["OWNER", "HOLDER"], width);
            let text = finish(narrow, &[]);
            assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), expected, "in {width} columns");
        }
    }

    #[test]
    fn a_wide_character_is_not_cut_in_half() {
        let mut text = "日本語".to_owned();
        shorten(&mut text, 4);
        assert_eq!(text, "日…");
    }
}
