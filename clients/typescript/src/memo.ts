// What is kept with a name: written by its exclusive holder, read by anyone.

import { refusal, TenureError, Unavailable, type Problem } from './errors.js';
import { believed, pause, pauseBefore, type Named } from './protocol.js';
import type { Answer, Services } from './services.js';

/** The service keeps no more bytes. */
const BYTES_MAX = 64 * 1024;
/** How long one request may take: one that hangs leaves another instance its time. */
const REQUEST_MAX_MS = 5_000;
/** Nobody but the holder writes a memo: one try tells the version, and the next writes. */
const CHANGES_MAX = 8;

/** What is kept with a name. */
export interface Memo {
  /** What was written. */
  readonly value: Uint8Array;
  /** The fencing number of the holder that wrote it. */
  readonly token: number;
  /** Which write it is. */
  readonly version: number;
  /** How long ago it was written, by the store's clock. */
  readonly ageMs: number;
  /** Who keeps it: `user`, `once`, `election` or `cached`. */
  readonly kind: string;
}

export interface MemoOptions {
  /** How long it is kept; for ever without. */
  keepMs?: number;
}

/** What is to be written, as requests have it. It has a number, by which a repetition is known as one. */
export interface Write {
  write: number;
  value: string;
  keep_ms?: number;
}

/** What a write needs of its lease. */
export interface Writer {
  readonly token: number | null;
  named(): Named;
  remaining(): number;
}

const invalid = (field: string, message: string, kind = 'invalid') => new TenureError(kind, message, { certainty: 'not_applied', field });

/** A value as it is now: whoever gave it may change it afterwards. */
export function write(value: Uint8Array | string, { keepMs }: MemoOptions): Write {
  const isValue = typeof value === 'string' ? !/\p{Surrogate}/u.test(value) : value instanceof Uint8Array;
  if (!isValue) throw invalid('value', 'a memo is a Uint8Array or valid text');
  const bytes = typeof value === 'string' ? new TextEncoder().encode(value) : value;
  if (bytes.length > BYTES_MAX) throw invalid('value', `a memo has at most ${BYTES_MAX} bytes, this one ${bytes.length}`, 'too_large');
  const made = { write: writeNumber(), value: base64(bytes) };
  if (keepMs === undefined) return made;
  // In JSON any of these would be null, which keeps it for ever.
  if (!Number.isFinite(keepMs) || keepMs <= 0) throw invalid('keepMs', `keepMs is a number of milliseconds, and not ${keepMs}`);
  return { ...made, keep_ms: Math.max(1, Math.round(keepMs)) };
}

/**
 * Writes over the version that is known, or over the one that is there; answers its version. What is not answered is
 * repeated as it was, which is one write: for `silenceMs`, while the lease has time left.
 */
export async function writeMemo(services: Services, lease: Writer, version: number, what: Write, silenceMs: number): Promise<number> {
  const named = lease.named();
  const until = performance.now() + silenceMs;
  const left = (): number => Math.min(lease.remaining(), until - performance.now());
  let after = version;
  let changes = 0;
  let unknown = false;
  for (let failures = 0; ; failures += 1) {
    let problem: TenureError;
    let answer: Answer | undefined;
    try {
      const body = { ...named, token: lease.token ?? 0, after, ...what };
      const told = believed(named, await services.ask('PUT', '/v1/memo', body, requestMs(left())), []);
      if (told.status === 200) return versionOf(believed({ name: named.name }, told));
      if (told.status === 412 && changes < CHANGES_MAX) {
        after = versionOf(told);
        changes += 1;
        continue;
      }
      problem = refusal(told.status, told.body as Problem);
      answer = told;
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      problem = error;
    }
    unknown ||= problem.certainty === 'unknown';
    const rest = left();
    if (isFinal(answer) || rest <= 0) throw Object.assign(problem, { certainty: unknown ? 'unknown' : 'not_applied' });
    await pause(Math.min(pauseAfter(answer, failures), rest));
  }
}

/** The memo of a name, or null. Rejects when nobody has answered for `silenceMs`. `goOn` throws if it is of no use any more. */
export async function readMemo(services: Services, name: string, silenceMs: number, goOn: () => void): Promise<Memo | null> {
  const path = `/v1/memo?name=${inQuery(name)}`;
  const until = performance.now() + silenceMs;
  for (let failures = 0; ; failures += 1) {
    goOn();
    let problem: TenureError;
    let answer: Answer | undefined;
    try {
      const told = believed({ name }, await services.ask('GET', path, undefined, requestMs(until - performance.now())), []);
      if (told.status === 200) return memo(told);
      if (told.status === 404 && told.body['kind'] === 'no_memo') return null;
      problem = refusal(told.status, told.body as Problem);
      answer = told;
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      problem = error;
    }
    const rest = until - performance.now();
    if (isFinal(answer) || rest <= 0) throw problem;
    await pause(Math.min(pauseAfter(answer, failures), rest));
  }
}

const requestMs = (left: number): number => Math.max(250, Math.min(REQUEST_MAX_MS, left));

/** Whether the same request would be answered the same. */
const isFinal = (answer: Answer | undefined): boolean => answer !== undefined && answer.status < 500 && answer.status !== 429;

const pauseAfter = (answer: Answer | undefined, failures: number): number =>
  answer?.retryAfterMs ? Math.min(answer.retryAfterMs, 1_000) : pauseBefore(failures);

const notTheService = ({ status }: Answer) => new Unavailable('unavailable', 'what answered is not the tenure service', { certainty: 'unknown' }, status);

function versionOf(answer: Answer): number {
  const version = answer.body['version'];
  if (typeof version !== 'number' || !Number.isInteger(version) || version < 0) throw notTheService(answer);
  return version;
}

function memo(answer: Answer): Memo {
  const number = (name: string): number => {
    const told = answer.header(`tenure-memo-${name}`);
    if (told === null || !/^\d+$/.test(told)) throw notTheService(answer);
    return Number(told);
  };
  return {
    value: answer.bytes, token: number('token'), version: number('version'), ageMs: number('age-ms'),
    kind: answer.header('tenure-memo-kind') ?? '',
  };
}

function inQuery(name: string): string {
  if (typeof name !== 'string' || name === '') throw invalid('name', `a name is text of 1 to 512 bytes, and not ${String(name)}`);
  try {
    return encodeURIComponent(name);
  } catch {
    throw invalid('name', 'the name is not valid Unicode');
  }
}

/** As many random bits as a number of JSON keeps. */
function writeNumber(): number {
  const [high = 0, low = 0] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1f_ffff) * 0x1_0000_0000 + low;
}

function base64(bytes: Uint8Array): string {
  const CHUNK = 0x8000; // a call takes only so many arguments
  let text = '';
  for (let at = 0; at < bytes.length; at += CHUNK) text += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  return btoa(text);
}
