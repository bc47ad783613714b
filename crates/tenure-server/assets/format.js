// Numbers as people read them.

/** A time span: 740ms, 3.2s, 4m 05s, 2h 10m, 3d 4h. Unknown is a dash. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '–';
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)}ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${(Math.floor(seconds * 10) / 10).toFixed(1)}s`;
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${pad(Math.floor(seconds % 60))}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours}h ${pad(minutes % 60)}m`;
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

/** A time span in whole seconds: for what is redrawn while one looks at it. */
export function running(ms) {
  if (ms === null || ms === undefined) return '–';
  return ms < 60_000 ? `${Math.floor(Math.max(0, ms) / 1000)}s` : span(ms);
}

const pad = (number) => String(number).padStart(2, '0');

/** A count: 9,312. */
export const count = (number) => number.toLocaleString('en-US');

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** A rate or other small number: 0, 0.4, 12, 1.3k. */
export function small(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return '–';
  if (number === 0) return '0';
  if (number < 0.01) return '<0.01';
  if (number < 10) return String(Number(number.toFixed(number < 1 ? 2 : 1)));
  if (number < 1000) return String(Math.round(number));
  return number < 1e6 ? `${Number((number / 1000).toFixed(1))}k` : `${Number((number / 1e6).toFixed(1))}M`;
}

/** Seconds of a metric: 320µs, 4.1ms, 1.2s. */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value === 0) return '0';
  if (value < 0.001) return `${Math.round(value * 1e6)}µs`;
  if (value < 1) return `${small(value * 1000)}ms`;
  return value < 60 ? `${small(value)}s` : span(value * 1000);
}

/** A time of day. */
export const clock = (at) => new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });

/** The start of an id: enough to tell two apart. */
export const brief = (id) => (id && id.length > 12 ? `${id.slice(0, 8)}…` : id ?? '–');
