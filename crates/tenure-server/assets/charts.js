// Lines over time, drawn by hand in SVG. Colours come from the style sheet, so they follow the theme.

import { byId, el, setText, show, svg } from './dom.js';
import { clock, seconds, small } from './format.js';

/** Fewer points than this do not fill a drawing: a line of two points would look like a trend. */
const [SPARK_MIN, CHART_MIN] = [12, 40];

const amount = (value) => small(value);

/** What is drawn. Of the lines the first is the one whose value is shown large on the locks page. */
const CHARTS = [
  { id: 'acquires', title: 'Acquires', unit: 'per second', axis: 'per second', lines: [['granted', 'granted', 'a'], ['refused', 'not granted', 'b']], show: amount, strip: true },
  { id: 'wait', title: 'Wait', unit: 'p99', lines: [['wait99', 'p99', 'b'], ['wait50', 'p50', 'a']], show: seconds, strip: true },
  { id: 'hold', title: 'Hold', unit: 'p50', lines: [['hold50', 'p50', 'a'], ['hold99', 'p99', 'b']], show: seconds, strip: true },
  { id: 'lost', title: 'Lost leases', unit: 'per minute', lines: [['lost', 'lost', 'c']], show: amount, strip: true, alarm: (point) => point.lost > 0 },
  { id: 'margin', title: 'Renewal margin', unit: 'p1', lines: [['margin1', 'p1', 'b'], ['margin50', 'p50', 'a']], show: seconds, strip: true,
    about: 'What was left of a lease when its renewal was answered. It sinks before leases are lost.' },
  { id: 'trip', title: 'Store round trip', unit: 'p99', lines: [['trip99', 'p99', 'b'], ['trip50', 'p50', 'a']], show: seconds, strip: true, up: true, alarm: (point) => point.up === 0 },
  { id: 'now', title: 'Held and waiting', unit: 'now', lines: [['held', 'held', 'a'], ['waiting', 'waiting', 'b']], show: amount,
    about: 'Claims in the store, of all services and programs.' },
];

/** The path of one line; where nothing is known it is broken. Lone points are drawn as short strokes. */
function path(points, key, x, y) {
  let drawn = '';
  let pen = false;
  points.forEach((point, index) => {
    const value = point[key];
    if (value === null || value === undefined) { pen = false; return; }
    const [across, up] = [x(index).toFixed(1), y(value).toFixed(1)];
    drawn += pen ? `L${across} ${up}` : `M${across} ${up}h.01`;
    pen = true;
  });
  return drawn;
}

function highest(points, lines) {
  let top = 0;
  for (const point of points) for (const [key] of lines) top = Math.max(top, point[key] ?? 0);
  return top;
}

/** A round number that is not below: 1, 2 or 5 times a power of ten. */
function round(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

function spoken(chart, points) {
  const last = points.at(-1);
  if (!last) return `${chart.title}: nothing yet`;
  const now = chart.lines.map(([key, label]) => `${label} ${chart.show(last[key])}`).join(', ');
  return `${chart.title}, ${chart.unit}: ${now} now; highest ${chart.show(highest(points, chart.lines))}`;
}

/** A small line without axes. */
class Spark {
  constructor(chart) {
    this.chart = chart;
    this.value = el('strong', { class: 'figure' }, '–');
    this.drawing = svg('svg', { viewBox: '0 0 120 32', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'spark' });
    this.node = el('a', { class: 'tile', href: '#/charts', 'data-chart': chart.id },
      el('span', { class: 'tile-title' }, chart.title), this.value, el('span', { class: 'tile-unit' }, chart.unit), this.drawing);
  }

  draw(points) {
    const { chart } = this;
    const [[key]] = chart.lines;
    const recent = points.slice(-60);
    const latest = recent.at(-1);
    const known = recent.findLast((point) => point[key] !== null && point[key] !== undefined);
    setText(this.value, latest && known ? chart.show(known[key]) : '–');
    this.node.classList.toggle('alarm', Boolean(latest && chart.alarm?.(latest)));
    this.node.classList.toggle('stale', known !== latest);
    if (chart.up && latest?.up === 0) setText(this.value, 'down');
    const top = highest(recent, chart.lines) || 1;
    const x = (index) => 120 - (recent.length - 1 - index) * (120 / (Math.max(recent.length, SPARK_MIN) - 1));
    const y = (value) => 30 - (value / top) * 27;
    const lines = chart.lines.map(([line, , tone]) => svg('path', { d: path(recent, line, x, y), class: `line ${tone}` }));
    const main = path(recent, key, x, y);
    const whole = recent.length > 1 && recent.every((point) => point[key] !== null && point[key] !== undefined);
    const area = whole ? [svg('path', { d: `${main}V32H${x(0).toFixed(1)}Z`, class: `area ${chart.lines[0][2]}` })] : [];
    this.drawing.replaceChildren(...area, ...lines.reverse());
  }
}

const [WIDE, HIGH, LEFT, BOTTOM] = [640, 200, 56, 24];

/** A chart with axes, and values where one points. */
class Chart {
  #points = [];

  constructor(chart) {
    this.chart = chart;
    this.drawing = svg('svg', { viewBox: `0 0 ${WIDE} ${HIGH}`, role: 'img', class: 'chart' });
    this.legend = el('p', { class: 'legend' });
    this.values = chart.lines.map(([, label, tone]) => {
      const value = el('b', {}, '–');
      this.legend.append(el('span', {}, el('i', { class: `key ${tone}`, 'aria-hidden': 'true' }), `${label} `, value));
      return value;
    });
    this.time = el('span', { class: 'quiet when' });
    this.legend.append(this.time);
    this.node = el('article', { class: 'card chart-card' },
      el('h2', {}, chart.title, el('small', {}, chart.lines.length > 1 ? chart.axis ?? '' : chart.unit)), this.legend, this.drawing,
      chart.about ? el('p', { class: 'quiet' }, chart.about) : null);
    this.drawing.addEventListener('pointermove', (event) => this.#point(event));
    this.drawing.addEventListener('pointerleave', () => this.#leave());
  }

  #step() { return (WIDE - LEFT - 8) / (Math.max(this.#points.length, CHART_MIN) - 1); }

  #x(index) { return WIDE - 8 - (this.#points.length - 1 - index) * this.#step(); }

  draw(points) {
    this.#points = points;
    const { chart } = this;
    const top = round(highest(points, chart.lines));
    const y = (value) => HIGH - BOTTOM - (value / top) * (HIGH - BOTTOM - 10);
    const x = (index) => this.#x(index);
    const rules = [0, 0.5, 1].map((part) => svg('g', {},
      svg('line', { x1: LEFT, x2: WIDE - 8, y1: y(top * part), y2: y(top * part), class: 'rule' }),
      svg('text', { x: LEFT - 8, y: y(top * part) + 4, class: 'mark end' }, chart.show(top * part))));
    const every = Math.ceil(Math.max(points.length, CHART_MIN) / 4);
    const times = points.map((point, index) => ({ point, index })).filter(({ index }) => (points.length - 1 - index) % every === 0 && x(index) > LEFT + 20)
      .map(({ point, index }) => svg('text', { x: x(index), y: HIGH - 6, class: index === points.length - 1 ? 'mark end' : 'mark middle' }, clock(point.at)));
    const downs = chart.up ? points.map((point, index) => (point.up === 0
      ? svg('rect', { x: x(index) - 1.2, y: y(top), width: 2.4, height: y(0) - y(top), class: 'down' }) : null)).filter(Boolean) : [];
    const lines = chart.lines.map(([key, , tone]) => svg('path', { d: path(points, key, x, y), class: `line ${tone}` })).reverse();
    this.cross = svg('line', { y1: y(top), y2: y(0), x1: -9, x2: -9, class: 'cross' });
    this.drawing.replaceChildren(...rules, ...times, ...downs, ...lines, this.cross);
    this.drawing.setAttribute('aria-label', spoken(chart, points));
    if (this.pointed === undefined) this.#leave();
  }

  #tell(point) { this.chart.lines.forEach(([key], index) => setText(this.values[index], point ? this.chart.show(point[key]) : '–')); }

  #point(event) {
    const box = this.drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDE;
    const index = Math.max(0, Math.min(this.#points.length - 1, Math.round(this.#points.length - 1 - (WIDE - 8 - at) / this.#step())));
    const point = this.#points[index];
    if (!point) return;
    this.pointed = index;
    this.cross.setAttribute('x1', this.#x(index));
    this.cross.setAttribute('x2', this.#x(index));
    this.#tell(point);
    setText(this.time, clock(point.at));
  }

  #leave() {
    this.pointed = undefined;
    this.cross?.setAttribute('x1', -9);
    this.cross?.setAttribute('x2', -9);
    this.#tell(this.#points.at(-1));
    setText(this.time, '');
  }
}

/** The strip above the locks, and the page of charts. */
export class Charts {
  constructor(series) {
    this.series = series;
    this.sparks = CHARTS.filter((chart) => chart.strip).map((chart) => new Spark(chart));
    this.charts = CHARTS.map((chart) => new Chart(chart));
    byId('strip').append(...this.sparks.map((spark) => spark.node));
    byId('charts').append(...this.charts.map((chart) => chart.node));
    this.draw();
  }

  /** Draws what is to be seen. */
  draw(view = 'locks') {
    if (view === 'locks') for (const spark of this.sparks) spark.draw(this.series.points);
    if (view === 'charts') for (const chart of this.charts) chart.draw(this.series.points);
  }

  note(text) { setText(byId('charts-note'), text); }

  /** Whether there is anything to draw: not everybody may read metrics. */
  allow(allowed) { show(byId('strip'), allowed); show(byId('charts'), allowed); }
}
