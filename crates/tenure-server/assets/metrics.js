// Series over time, made in the page from /metrics: nothing is kept anywhere else.

const LINE = /^(tenure_[a-z_]+)(?:\{(.*)\})?\s+(\S+)/;
const LE = /(?:^|,)le="([^"]*)"/;
const RESULT = /(?:^|,)result="([^"]*)"/;

/** How many samples are kept: a quarter of an hour at one every three seconds. */
export const SAMPLES_MAX = 300;
/** Quantiles and rates look back so many samples, so that quiet times do not leave gaps. */
const WINDOW = 5;

/** One scrape, summed over stores, groups and operations. */
export function parse(text, at) {
  const sample = { at, granted: 0, refused: 0, lost: 0, up: null, histograms: {} };
  for (const line of text.split('\n')) {
    if (!line.startsWith('tenure_')) continue;
    const found = LINE.exec(line);
    if (!found) continue;
    const [, name, labels = '', written] = found;
    const value = Number(written);
    if (Number.isNaN(value)) continue;
    if (name === 'tenure_acquire_total') {
      if (RESULT.exec(labels)?.[1] === 'granted') sample.granted += value;
      else sample.refused += value;
    } else if (name === 'tenure_lost_total') sample.lost += value;
    else if (name === 'tenure_store_up') sample.up = Math.min(sample.up ?? 1, value);
    else if (name.endsWith('_seconds_bucket')) {
      const le = LE.exec(labels)?.[1];
      const buckets = (sample.histograms[name.slice('tenure_'.length, -'_seconds_bucket'.length)] ??= new Map());
      const bound = le === '+Inf' ? Infinity : Number(le);
      buckets.set(bound, (buckets.get(bound) ?? 0) + value);
    }
  }
  return sample;
}

/**
 * The q-quantile of what was added to a histogram between two scrapes, as Prometheus reckons it; null if nothing was.
 */
export function quantile(q, buckets, before) {
  if (!buckets) return null;
  const reset = before && [...buckets].some(([bound, count]) => count < (before.get(bound) ?? 0));
  const added = [...buckets].map(([bound, count]) => [bound, count - (reset ? 0 : before?.get(bound) ?? 0)]).sort((a, b) => a[0] - b[0]);
  const total = added.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  const rank = q * total;
  let [lower, below] = [0, 0];
  for (const [bound, count] of added) {
    if (count >= rank) {
      if (bound === Infinity) return lower;
      return count === below ? bound : lower + (bound - lower) * ((rank - below) / (count - below));
    }
    [lower, below] = [bound, count];
  }
  return lower;
}

const rate = (now, before, seconds) => Math.max(0, now < before ? now : now - before) / seconds;

/** What is drawn of two scrapes. */
export function point(now, before) {
  const seconds = Math.max(0.001, (now.at - before.at) / 1000);
  const of = (name, q) => quantile(q, now.histograms[name], before.histograms[name]);
  return {
    at: now.at,
    granted: rate(now.granted, before.granted, seconds),
    refused: rate(now.refused, before.refused, seconds),
    lost: rate(now.lost, before.lost, seconds) * 60,
    wait50: of('acquire_wait', 0.5), wait99: of('acquire_wait', 0.99),
    hold50: of('hold', 0.5), hold99: of('hold', 0.99),
    margin50: of('renewal_margin', 0.5), margin1: of('renewal_margin', 0.01),
    trip50: of('store_roundtrip', 0.5), trip99: of('store_roundtrip', 0.99),
    up: now.up,
  };
}

export class Series {
  #samples = [];
  points = [];

  /** Takes a scrape, with what the page itself counts. */
  add(text, at, counted) {
    const sample = parse(text, at);
    this.#samples.push(sample);
    if (this.#samples.length > WINDOW + 1) this.#samples.shift();
    if (this.#samples.length < 2) return;
    this.points.push({ ...point(sample, this.#samples[0]), ...counted });
    if (this.points.length > SAMPLES_MAX) this.points.shift();
  }

  get last() { return this.points.at(-1) ?? null; }
}
