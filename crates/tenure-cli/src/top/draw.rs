//! The screen of `top`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};
use tenure::NameView;

use super::detail;
use super::model::{Mode, Model};
use super::rows::Column;
use crate::label;
use crate::plain::plain;
use crate::show::{shown, time};

/// What is needed to show anything at all.
pub(super) const WIDTH_MIN: u16 = 40;
pub(super) const HEIGHT_MIN: u16 = 6;
const KEYS: &str = "q quit  ? help  / filter  s sort  r reverse  Enter open  b break";
const HELP: [&str; 11] = [
    "Up Down PgUp PgDn Home End   move",
    "Enter                        open one lock: its queue, what happened to it",
    "/                            filter by name or holder; Esc shows all again",
    "s                            sort by the next column",
    "1 to 6                       sort by a column",
    "r                            reverse the order",
    "b                            break the lock, after a yes",
    "q, Ctrl-C                    leave",
    "",
    "The store is looked at again and again: what comes and goes between two",
    "looks is not seen. Any key closes this.",
];

/// Draws it all; answers how many rows of the table that took.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model, store: &str) -> usize {
    let area = frame.area();
    if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
        let text = format!("too small: tenure top needs {WIDTH_MIN} by {HEIGHT_MIN}");
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return 0;
    }
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    frame.render_widget(Line::from(heading(model, store)).style(Style::new().add_modifier(Modifier::BOLD)), head);
    frame.render_widget(Line::from(footing(model)), foot);
    // The table has a header.
    model.rows.resize(usize::from(body.height.saturating_sub(1)));
    match &model.mode {
        Mode::Detail(name) | Mode::Confirm { name, in_detail: true, .. } => {
            let lines = detail::lines(model, name);
            let last = lines.len().saturating_sub(usize::from(body.height));
            let from = model.scrolled.min(last);
            let shown = lines.into_iter().skip(from).take(usize::from(body.height));
            frame.render_widget(Paragraph::new(shown.map(Line::from).collect::<Vec<_>>()), body);
            model.scrolled = from;
            0
        }
        Mode::Help => {
            frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()), body);
            0
        }
        Mode::List | Mode::Filter | Mode::Confirm { .. } => table(frame, model, body),
    }
}

/// The columns that a width has room for, so that names stay readable.
fn columns(width: u16) -> &'static [Column] {
    match width {
        80.. => &Column::ALL,
        56.. => &[Column::Name, Column::Holder, Column::Held, Column::ExpiresIn, Column::Waiting],
        _ => &[Column::Name, Column::Holder, Column::ExpiresIn, Column::Waiting],
    }
}

fn room(column: Column) -> Constraint {
    match column {
        Column::Name => Constraint::Fill(3),
        Column::Holder => Constraint::Fill(2),
        Column::Held | Column::Waiting => Constraint::Length(8),
        Column::ExpiresIn => Constraint::Length(11),
        Column::Token => Constraint::Length(17),
    }
}

fn table(frame: &mut Frame<'_>, model: &Model, area: Rect) -> usize {
    let columns = columns(area.width);
    let titles = columns.iter().map(|column| match (*column == model.rows.column(), model.rows.is_reversed()) {
        (true, false) => format!("{}*", column.title()),
        (true, true) => format!("{}^", column.title()),
        _ => column.title().to_owned(),
    });
    let rows: Vec<Row<'_>> = model.rows.visible().map(|(view, chosen)| row(view, chosen, columns)).collect();
    let count = rows.len();
    let header = Row::new(titles).style(Style::new().add_modifier(Modifier::UNDERLINED));
    let widths = columns.iter().map(|column| room(*column));
    frame.render_widget(Table::new(rows, widths).header(header).column_spacing(1), area);
    count
}

fn row(view: &NameView, chosen: bool, columns: &[Column]) -> Row<'static> {
    let style = if chosen { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
    Row::new(columns.iter().map(|column| cell(view, *column))).style(style)
}

fn cell(view: &NameView, column: Column) -> String {
    let first = view.holders.first();
    match column {
        Column::Name => plain(view.name.as_str()),
        Column::Holder => match (first, view.holders.len()) {
            (None, _) => "-".to_owned(),
            (Some(held), 1) => plain(&label::of_holder(held)),
            (Some(held), count) => format!("{} and {} more", plain(&label::of_holder(held)), count - 1),
        },
        Column::Held => time(first.and_then(|held| held.held)),
        Column::ExpiresIn => time(first.and_then(|held| held.expires_in)),
        Column::Waiting => view.waiters.len().to_string(),
        Column::Token => shown(first.and_then(|held| held.token.as_ref())),
    }
}

fn heading(model: &Model, store: &str) -> String {
    let (all, shown) = model.rows.counts();
    let names = if all == 1 { "name" } else { "names" };
    let mut text = format!("tenure top  {all} {names}");
    if model.cut {
        text.push_str(" and more, which are not shown");
    }
    if !model.rows.filter().is_empty() {
        text.push_str(&format!("  {shown} with {:?}", plain(model.rows.filter())));
    }
    match &model.away {
        Some(why) => text.push_str(&format!("  NO ANSWER: {}", plain(why))),
        None => text.push_str(&format!("  {store}")),
    }
    text
}

fn footing(model: &Model) -> String {
    match (&model.mode, &model.notice) {
        (Mode::Confirm { name, typed, .. }, _) => {
            let name = plain(name.as_str());
            format!("break {name}? Type yes (and a reason), then Enter; Esc leaves it alone: {}_", plain(typed))
        }
        (Mode::Filter, _) => format!("/{}_", plain(model.rows.filter())),
        (_, Some(notice)) => plain(notice),
        (Mode::Detail(_), None) => "Esc back  b break  Up Down scroll  q quit".to_owned(),
        _ => KEYS.to_owned(),
    }
}
