// How a claim is made and ended.

import * as clock from './clock.js';
import { LockTimeout, refusal, TenureError, Unavailable, type Problem } from './errors.js';
import type { Answer, Services } from './services.js';

/** The service waits no longer in one request: proxies give up after 60 s. */
const WAIT_MAX_MS = 50_000;
/** How long an answer may take beyond what was asked to be waited for. */
const ANSWER_MAX_MS = 10_000;
const PAUSES_MS = [50, 100, 250, 500, 1_000];
/** A grant with less than half its ttl left is renewed before it is given out; so often at most. */
const REFRESH_MAX = 3;
/** No time that the service tells is nearly as long: a ttl is 24 h at most. */
const MS_MAX = 1_000_000_000;

export interface Wish {
  name: string;
  ttlMs: number;
  label: string;
  shared?: boolean;
  units?: number;
  capacity?: number;
}

const random = (bytes: number): string =>
  Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, '0')).join('');

/** How a claim is named in requests and in their answers. */
export interface Named {
  name: string;
  owner: string;
  claim: string;
}

/** Whether an answer names this very claim. Any other is somebody else's, however it came here. */
export const isAbout = (named: Partial<Named>, body: unknown): body is Record<string, unknown> =>
  typeof body === 'object' && body !== null &&
  Object.entries(named).every(([key, value]) => (body as Record<string, unknown>)[key] === value);

/** A time as the service tells it; undefined if it is none. */
export const milliseconds = (told: unknown): number | undefined =>
  typeof told === 'number' && told >= 0 && told <= MS_MAX ? told : undefined;

/**
 * The answer, unless it names another claim: then nobody has answered, and whether it took effect is unknown. Answers
 * with a status of `naming` have to name the claim; the others may.
 */
export function believed(named: Partial<Named>, answer: Answer, naming: readonly number[] = [200, 202]): Answer {
  const told = Object.fromEntries(Object.entries(answer.body).filter(([, value]) => value !== null));
  if (isAbout(named, naming.includes(answer.status) ? told : { ...named, ...told })) return answer;
  throw new Unavailable('unavailable', 'what was answered is not about this claim', { certainty: 'unknown' }, answer.status);
}

/** One wish to hold a name. Its owner and id are its own, so that tasks do not re-enter each other. */
export class Claim {
  owner = random(16);
  id = random(8);
  /** Whether the store may have it: then it must be released when it is given up. */
  maybe = false;

  constructor(readonly wish: Wish) {}

  named(): Named { return { name: this.wish.name, owner: this.owner, claim: this.id }; }
  renewal() { return { ...this.named(), ttl_ms: this.wish.ttlMs }; }

  acquire(waitMs: number, queue: boolean, presumedMs: number) {
    const { label, shared, units, capacity } = this.wish;
    const wait = Math.floor(waitMs);
    return {
      ...this.renewal(), wait_ms: wait, label,
      ...(queue ? { queue } : {}), ...(shared ? { shared } : {}),
      ...(capacity === undefined ? {} : { capacity, units: units ?? 1 }), ...(presumedMs && (queue || wait) ? { presumed_ms: presumedMs } : {}),
    };
  }

  /** Another claim for the same wish. */
  anew(): void {
    [this.owner, this.id, this.maybe] = [random(16), random(8), false];
  }
}

/** A claim that holds, until a deadline of our own clocks. */
export interface Grant {
  owner: string;
  id: string;
  token: number | null;
  deadline: clock.Moment;
  renewed: clock.Moment;
}

/** The deadline counts from before the request was sent, by what this very answer says is left. */
function granted(claim: Claim, { status, body, sent }: Answer): Grant {
  const left = milliseconds(body['expires_in_ms']);
  const token = body['token'] ?? null;
  if (left === undefined || (token !== null && typeof token !== 'number')) {
    throw new Unavailable('unavailable', 'what answered is not the tenure service', { certainty: 'unknown' }, status);
  }
  return { owner: claim.owner, id: claim.id, token, deadline: clock.after(sent, left), renewed: sent };
}

/** How long to wait before a request is repeated: longer each time, and not all clients at once. */
export const pauseBefore = (attempt: number): number =>
  (PAUSES_MS[Math.min(attempt, PAUSES_MS.length - 1)] as number) * (0.5 + Math.random() / 2);

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(signal?.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener('abort', stop); resolve(); }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener('abort', stop, { once: true });
  });
}

export interface Patience {
  /** How long to wait; undefined waits for ever, 0 does not wait. */
  waitMs: number | undefined;
  /** Fails when nobody has answered for so long. */
  silenceMs: number;
  signal: AbortSignal | undefined;
  /** Throws if it is of no use any more. Looked at before each request. */
  goOn(): void;
}

/**
 * How long one request waits. An instance that hangs does not renew the claim that waits there: where there is another
 * one, it is asked while the claim still has its place.
 */
const longestWait = (ttlMs: number, services: number): number =>
  services === 1 ? WAIT_MAX_MS : Math.min(WAIT_MAX_MS, Math.max(1_000, ttlMs / 3));

/**
 * Acquires. Null if it is not waited for and somebody else holds it. A request that breaks off is repeated with the
 * same owner and claim: that is a retry, and keeps the place in the queue.
 */
export async function acquire(services: Services, claim: Claim, { waitMs, silenceMs, signal, goOn }: Patience): Promise<Grant | null> {
  const until = waitMs === undefined ? Infinity : performance.now() + waitMs;
  const longest = longestWait(claim.wish.ttlMs, services.count);
  const grace = services.count === 1 ? ANSWER_MAX_MS : longest;
  let silentSince: number | undefined;
  let failures = 0;
  /** Until when whoever held it before this claim was lost may hold it still, as any answer has said. */
  let presumed: clock.Moment | undefined;
  let [superseded, canQueue] = [false, true];
  for (;;) {
    goOn();
    const left = Math.max(0, until - performance.now());
    // The last request ends the claim at the service if it is not granted; the others keep its place.
    const queue = canQueue && left > longest;
    const wait = Math.min(left, longest);
    claim.maybe = true;
    let answer: Answer | undefined;
    let problem: TenureError;
    const presumedMs = presumed ? Math.max(0, Math.ceil(clock.left(presumed))) : 0;
    try {
      const told = believed(claim.named(), await services.post('/v1/acquire', claim.acquire(wait, queue, presumedMs), wait + grace, signal));
      const first = told.status === 200 ? granted(claim, told) : undefined;
      answer = told;
      if (answer.status === 202) { silentSince = undefined; failures = 0; continue; }
      if (first) {
        const grant = await fresh(services, claim, first, signal);
        if (grant) return grant;
        claim.anew();
        problem = new LockTimeout('timeout', `${claim.wish.name}: granted too late`);
      } else problem = refusal(answer.status, answer.body as Problem);
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
      problem = error;
    }
    if (answer && answer.status < 500) {
      silentSince = undefined;
      failures = 0;
      if (answer.status === 429) await pause(Math.min(answer.retryAfterMs ?? 1_000, left || 1_000), signal);
      else if (answer.status !== 200) {
        if (problem.kind === 'superseded' && !superseded) { superseded = true; continue; } // most likely a late copy of our own
        if (answer.status === 400 && problem.field === 'queue' && queue) { canQueue = false; continue; }
        claim.maybe = problem.kind === 'superseded';
        if (!(problem instanceof LockTimeout)) throw problem;
        if (waitMs === 0) return null;
      }
    } else {
      const told = milliseconds(answer?.body['holder_expires_in_ms']);
      if (told !== undefined) presumed = clock.later(presumed, clock.after(clock.now(), told));
      silentSince ??= performance.now();
      if (performance.now() - silentSince > silenceMs) throw problem;
      const rest = answer?.retryAfterMs ? Math.min(answer.retryAfterMs, 1_000) : pauseBefore(failures);
      await pause(waitMs === 0 ? rest : Math.min(rest, Math.max(0, until - performance.now())), signal);
      failures += 1;
      if (waitMs === 0) continue; // whether it was granted is not known yet
    }
    if (performance.now() >= until) throw problem;
  }
}

/** A grant that begins with at least half its ttl; null if it was lost before it began. */
async function fresh(services: Services, claim: Claim, first: Grant, signal: AbortSignal | undefined): Promise<Grant | null> {
  let grant = first;
  for (let turn = 0; turn < REFRESH_MAX; turn += 1) {
    if (clock.left(grant.deadline) >= claim.wish.ttlMs / 2) return grant;
    try {
      const answer = believed(claim.named(), await services.post('/v1/renew', claim.renewal(), Math.max(250, claim.wish.ttlMs / 3), signal));
      if (answer.status === 410) return null;
      if (answer.status === 200 && answer.body['state'] === 'held') grant = granted(claim, answer);
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
    }
  }
  if (clock.left(grant.deadline) > 0) return grant;
  await release(services, claim, 1_000);
  return null;
}

/** Ends a claim, waiting or holding. True if this did it; false if it was gone, or nobody said so in time. */
export async function release(services: Services, claim: { named(): Named }, patienceMs: number): Promise<boolean> {
  const until = performance.now() + patienceMs;
  for (let failures = 0; ; failures += 1) {
    try {
      const timeoutMs = Math.max(500, Math.min(5_000, until - performance.now()));
      const answer = believed(claim.named(), await services.post('/v1/release', claim.named(), timeoutMs), []);
      if (answer.status === 200 && answer.body['released'] === true) return true;
      if (answer.status === 410) return false;
      if (answer.status >= 400 && answer.status < 500 && answer.status !== 429) throw refusal(answer.status, answer.body as Problem);
    } catch (error) {
      if (!(error instanceof Unavailable)) throw error;
    }
    if (performance.now() >= until) return false;
    await pause(pauseBefore(failures));
  }
}
