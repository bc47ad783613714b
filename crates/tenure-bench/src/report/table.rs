//! Tables and numbers, as people read them.

use std::fmt::Write as _;

use crate::stats::Figure;

/// A table of Markdown.
#[derive(Clone, Debug, Default)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| cell.into().replace('|', "\\|")).collect());
    }

    /// Whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// As text; nothing, if it has no rows.
    pub fn text(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let rule = vec!["---".to_owned(); self.head.len()];
        let mut text = String::new();
        for cells in [&self.head, &rule].into_iter().chain(&self.rows) {
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }
}

/// A measured number: three digits that count, and commas between thousands.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    if digits > 0 {
        return format!("{value:.*}", digits.clamp(0, 4) as usize);
    }
    let unit = 10_f64.powi(-digits);
    exact((value / unit).round() * unit)
}

/// A number that was chosen: all its digits, and commas between thousands.
pub fn exact(value: f64) -> String {
    if value.fract() != 0.0 {
        return value.to_string();
    }
    let whole = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && digit != '-' && (whole.len() - index).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The median, and the spread of the rounds.
pub fn spread(figure: Option<Figure>) -> String {
    match figure {
        None => "-".into(),
        Some(figure) if figure.rounds == 1 => number(figure.median),
        Some(figure) => format!("{} ({}..{})", number(figure.median), number(figure.min), number(figure.max)),
    }
}

/// The median alone.
pub fn median(figure: Option<Figure>) -> String {
    figure.map_or_else(|| "-".into(), |figure| number(figure.median))
}

/// A figure in another unit.
pub fn scaled(figure: Option<Figure>, factor: f64) -> Option<Figure> {
    figure.map(|figure| Figure {
        median: figure.median * factor,
        min: figure.min * factor,
        max: figure.max * factor,
        rounds: figure.rounds,
    })
}
