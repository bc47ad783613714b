//! The plots, as SVG.

use std::ops::Range;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::contestant::RECORDED;
use crate::data::{Data, Pick};
use crate::questions::pairs::LIMIT;

const SIZE: (u32, u32) = (860, 440);
/// Right of the chart, for the names of the series.
const LEGEND: u32 = 190;
/// Colours that can be told apart, also by those who see few; tenure has the first.
const COLOURS: [RGBColor; 12] = [
    RGBColor(204, 37, 41),
    RGBColor(57, 106, 177),
    RGBColor(62, 150, 81),
    RGBColor(218, 124, 48),
    RGBColor(107, 76, 154),
    RGBColor(148, 139, 61),
    RGBColor(0, 158, 178),
    RGBColor(214, 112, 178),
    RGBColor(90, 90, 90),
    RGBColor(140, 86, 75),
    RGBColor(23, 90, 60),
    RGBColor(160, 160, 160),
];

/// One line and its name.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A contestant has the same colour in every plot.
struct Palette(Vec<String>);

impl Palette {
    fn of(data: &Data) -> Self {
        let mut names: Vec<String> = Vec::new();
        for line in &data.measured {
            if !names.contains(&line.contestant) {
                names.push(line.contestant.clone());
            }
        }
        names.sort_by_key(|name| (name != "tenure", name.clone()));
        Self(names)
    }

    /// The colour of a contestant, or else one by its place.
    fn colour(&self, name: &str, place: usize) -> RGBColor {
        let index = self.0.iter().position(|known| known == name).unwrap_or(place);
        COLOURS[index % COLOURS.len()]
    }
}

/// What a chart says around its lines.
struct Chart<'a> {
    title: &'a str,
    x: &'a str,
    y: &'a str,
    log_x: bool,
    log_y: bool,
}

/// All plots that there are data for, by name.
pub(super) fn all(data: &Data) -> Result<Vec<(&'static str, String)>, String> {
    let mut plots = Vec::new();
    let palette = Palette::of(data);
    let mut add = |name, chart: Chart<'_>, series: Vec<Series>| {
        if series.iter().any(|series| !series.points.is_empty()) {
            plots.push((name, lines(&chart, &series, &palette)?));
        }
        Ok::<_, String>(())
    };
    let pick = |question, part| Pick { question, store: "redis", params: &[], part };

    let mut pairs = by(data, &pick("pairs", ""), "tasks", "pairs_per_s", 1.0);
    pairs.retain(|series| !["classic pair", LIMIT, RECORDED].contains(&series.name.as_str()));
    let limit = data.figure(&pick("pairs", ""), LIMIT, "pairs_per_s");
    pairs.extend(limit.map(|limit| Series {
        name: "redis-benchmark (limit)".into(),
        points: vec![(1.0, limit.median), (1_024.0, limit.median)],
    }));
    let chart = Chart { title: "Uncontended pairs", x: "tasks", y: "pairs/s", log_x: true, log_y: true };
    add("pairs", chart, pairs)?;

    let rates = by(data, &pick("hot", ""), "processes", "acquisitions_per_s", 1.0);
    let chart = Chart { title: "One name", x: "processes", y: "acquisitions/s", log_x: true, log_y: true };
    add("hot-acquisitions", chart, rates)?;

    let held = by(data, &pick("held", ""), "leases", "cpu_percent", 1.0);
    let chart = Chart { title: "Leases held", x: "leases", y: "client CPU, % of a core", log_x: true, log_y: true };
    add("held", chart, held)?;

    let ops = ["claim", "renew", "release"].map(|op| Series {
        name: op.into(),
        points: points(data, &pick("waiters", ""), "tenure", "waiters", &format!("{op}.server_us"), 1.0),
    });
    let chart = Chart { title: "Waiters", x: "waiters on the name", y: "server time, µs", log_x: true, log_y: false };
    add("waiters", chart, ops.into())?;

    let names = ["p50_us", "p99_us", "server_us_per_pair"].map(|field| Series {
        name: field.replace("_us", ", µs").replace("server, µs_per_pair", "server CPU, µs"),
        points: points(data, &pick("names", ""), "tenure", "names", field, 1.0),
    });
    let chart = Chart { title: "Names", x: "other names held", y: "a pair, µs", log_x: true, log_y: true };
    add("names", chart, names.into())?;

    let hung = Pick { store: "redlock", ..pick("redlock", "latency") };
    let hung = by(data, &hung, "hung", "p50_us", 1e-3);
    let chart = Chart {
        title: "Redlock over five servers",
        x: "servers hung",
        y: "p50 of a pair, ms",
        log_x: false,
        log_y: true,
    };
    add("redlock", chart, hung)?;

    let eight = [("processes", 8.0)];
    let pick = Pick { params: &eight, ..pick("hot", "") };
    let waits: Vec<(String, [f64; 3])> = data
        .contestants(&pick)
        .into_iter()
        .filter_map(|name| {
            let at = |field| data.figure(&pick, &name, field).map(|figure| figure.median / 1e3);
            let waits = [at("wait_p50_us")?, at("wait_p99_us")?, at("wait_max_us")?];
            Some((name, waits))
        })
        .collect();
    if !waits.is_empty() {
        plots.push(("hot-waits", ranges(&waits, &palette)?));
    }
    Ok(plots)
}

fn points(data: &Data, pick: &Pick<'_>, name: &str, vary: &str, field: &str, scale: f64) -> Vec<(f64, f64)> {
    let values = data.values(pick, vary);
    let at = |value: f64| {
        let params = [(vary, value)];
        let figure = data.figure(&Pick { params: &params, ..*pick }, name, field)?;
        Some((value, figure.median * scale))
    };
    values.into_iter().filter_map(at).collect()
}

/// A series for each contestant.
fn by(data: &Data, pick: &Pick<'_>, vary: &str, field: &str, scale: f64) -> Vec<Series> {
    let series = |name: String| Series { points: points(data, pick, &name, vary, field, scale), name };
    data.contestants(pick).into_iter().map(series).collect()
}

/// From somewhat less than the least to somewhat more than the greatest.
fn span(values: impl Iterator<Item = f64>, log: bool) -> Range<f64> {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite() && (!log || *value > 0.0)) {
        (least, most) = (least.min(value), most.max(value));
    }
    if least > most {
        return 1.0..10.0;
    }
    if log && most < least * 100.0 {
        // Whole decades, so that there is a label at either end.
        return 10_f64.powf(least.log10().floor()) * 0.999..10_f64.powf(most.log10().floor() + 1.0);
    }
    if log {
        return least / 1.3..most * 1.3;
    }
    0.0..(most * 1.1).max(f64::MIN_POSITIVE)
}

fn lines(chart: &Chart<'_>, series: &[Series], palette: &Palette) -> Result<String, String> {
    let all = || series.iter().flat_map(|series| series.points.iter().copied());
    let x = if chart.log_x { span(all().map(|point| point.0), true) } else { -0.1..2.1 };
    let heights = || all().map(|point| point.1);
    // Within a factor of five a line from zero says more.
    let log_y = chart.log_y && heights().fold(0.0, f64::max) > 5.0 * heights().fold(f64::INFINITY, f64::min);
    let y = span(heights(), log_y);
    let mut svg = String::new();
    let named = |(place, one): (usize, &Series)| palette.colour(&one.name, place);
    let colours: Vec<RGBColor> = series.iter().enumerate().map(named).collect();
    let series = (series, colours.as_slice());
    match (chart.log_x, log_y) {
        (true, true) => draw(&mut svg, chart, series, x.log_scale(), y.log_scale()),
        (true, false) => draw(&mut svg, chart, series, x.log_scale(), y),
        (false, true) => draw(&mut svg, chart, series, x, y.log_scale()),
        (false, false) => draw(&mut svg, chart, series, x, y),
    }
    .map_err(|error| format!("{}: {error}", chart.title))?;
    Ok(svg)
}

fn draw<X, Y>(
    svg: &mut String,
    chart: &Chart<'_>,
    (series, colours): (&[Series], &[RGBColor]),
    x: X,
    y: Y,
) -> Result<(), Box<dyn std::error::Error>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(SIZE.0 - LEGEND);
    let mut context = ChartBuilder::on(&left)
        .caption(chart.title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(x, y)?;
    let x_labels = if chart.log_x { 8 } else { 3 };
    let mut mesh = context.configure_mesh();
    mesh.x_desc(chart.x).y_desc(chart.y).label_style(("sans-serif", 13)).axis_desc_style(("sans-serif", 15));
    mesh.x_labels(x_labels)
        .y_labels(8)
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(220, 220, 220));
    mesh.x_label_formatter(&|value| brief(*value)).y_label_formatter(&|value| brief(*value)).draw()?;
    for (index, (one, colour)) in series.iter().zip(colours).enumerate() {
        let style = colour.stroke_width(if index == 0 { 3 } else { 2 });
        context.draw_series(LineSeries::new(one.points.iter().copied(), style))?;
        context.draw_series(one.points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
        let row = 60 + 22 * index as i32;
        right.draw(&PathElement::new(vec![(0, row), (20, row)], colour.stroke_width(3)))?;
        right.draw(&Text::new(one.name.clone(), (26, row - 6), ("sans-serif", 13)))?;
    }
    root.present()?;
    Ok(())
}

/// For each contestant p50, p99 and the longest wait, on one line.
fn ranges(waits: &[(String, [f64; 3])], palette: &Palette) -> Result<String, String> {
    let mut svg = String::new();
    draw_ranges(&mut svg, waits, palette).map_err(|error| format!("waits: {error}"))?;
    Ok(svg)
}

fn draw_ranges(
    svg: &mut String,
    waits: &[(String, [f64; 3])],
    palette: &Palette,
) -> Result<(), Box<dyn std::error::Error>> {
    let height = 130 + 30 * waits.len() as u32;
    let root = SVGBackend::with_string(svg, (SIZE.0, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let x = span(waits.iter().flat_map(|(_, waits)| *waits), true).log_scale();
    let rows = waits.len() as f64;
    let mut context = ChartBuilder::on(&root)
        .caption("8 processes on one name: how long each waits", ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(LEGEND)
        .build_cartesian_2d(x, 0.0..rows)?;
    let mut mesh = context.configure_mesh();
    mesh.x_desc("ms: p50 (circle), p99 (square), longest (line's end)")
        .axis_desc_style(("sans-serif", 15))
        .disable_y_mesh();
    mesh.x_labels(10).y_labels(0).label_style(("sans-serif", 13)).light_line_style(RGBColor(240, 240, 240));
    mesh.bold_line_style(RGBColor(220, 220, 220)).x_label_formatter(&|value| brief(*value)).draw()?;
    for (index, (name, [p50, p99, longest])) in waits.iter().enumerate() {
        let (row, colour) = (rows - index as f64 - 0.5, palette.colour(name, index));
        context.draw_series(LineSeries::new([(*p50, row), (*longest, row)], colour.stroke_width(2)))?;
        context.draw_series([Circle::new((*p50, row), 5, colour.filled())])?;
        context.draw_series([EmptyElement::at((*p99, row)) + Rectangle::new([(-4, -4), (4, 4)], colour.filled())])?;
        let end = PathElement::new(vec![(0, -6), (0, 6)], colour.stroke_width(2));
        context.draw_series([EmptyElement::at((*longest, row)) + end])?;
        let place = context.backend_coord(&(*p50, row));
        root.draw(&Text::new(name.clone(), (16, place.1 - 6), ("sans-serif", 14)))?;
    }
    root.present()?;
    Ok(())
}

/// A number for an axis: 20k, 1.5M, 0.3.
fn brief(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        large if large >= 1e6 => (value / 1e6, "M"),
        large if large >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}
