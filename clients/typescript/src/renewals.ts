// Which leases are renewed when, and with which others. No I/O.

import * as clock from './clock.js';
import type { Lost } from './errors.js';
import type { Lease } from './lease.js';
import type { Answer } from './services.js';

/** A request has no more claims, and a body of no more bytes: proxies refuse a MiB. */
const BATCH_MAX = 1_000;
const BATCH_BYTES_MAX = 1_000_000;

/** Leases that are renewed in one request. */
export class Batch {
  readonly timeoutMs: number;
  /** Whatever sends it is not waited for any longer. */
  readonly until: clock.Moment;

  constructor(readonly leases: readonly Lease[]) {
    // The service answers a batch within a ninth of its shortest ttl; a little is added for the way.
    this.timeoutMs = Math.max(100, leases.reduce((least, { ttlMs }) => Math.min(least, ttlMs), Infinity) / 6);
    this.until = clock.after(clock.now(), this.timeoutMs * 1.5);
    for (const lease of leases) lease.batch = this;
  }

  body() { return { locks: this.leases.map((lease) => lease.renewal()) }; }

  /** Takes note of the answer, or that there was none; returns which leases are lost by it. */
  answered(answer?: Answer): [Lease, Lost][] {
    const told = answer?.status === 200 ? answer.body['locks'] : undefined;
    const each: unknown[] = Array.isArray(told) && told.length === this.leases.length ? told : [];
    const sent = answer?.sent ?? clock.now();
    return this.leases.flatMap((lease, index): [Lease, Lost][] => {
      if (lease.batch === this) lease.batch = undefined;
      const why = lease.renewed(sent, each[index]);
      return why ? [[lease, why]] : [];
    });
  }
}

/**
 * What is to be renewed now. What would be due soon goes along.
 *
 * Leases of like ttls (up to twice as long) go in one request. The shortest ttl decides how long a request may take, so
 * that a lease with a long one would never be renewed by a slow store if it always went with a short one.
 */
export function due(held: Iterable<Lease>): Batch[] {
  const alike = new Map<number, Lease[]>();
  for (const lease of held) {
    const octave = Math.floor(Math.log2(lease.ttlMs));
    const leases = alike.get(octave);
    if (leases) leases.push(lease);
    else alike.set(octave, [lease]);
  }
  return [...alike.values()].filter((leases) => leases.some((lease) => lease.dueIn() <= 0)).flatMap((leases) => {
    const soon = leases.filter((lease) => lease.dueIn() <= (lease.batch ? 0 : lease.ttlMs / 9));
    return parts(soon.sort((one, other) => one.lossIn() - other.lossIn())).map((part) => new Batch(part));
  });
}

/** As many requests as the limits make of it. */
function parts(leases: readonly Lease[]): Lease[][] {
  const made: Lease[][] = [];
  let room = 0;
  for (const lease of leases) {
    const size = new TextEncoder().encode(JSON.stringify(lease.renewal())).length + 1;
    let last = made.at(-1);
    if (!last || last.length === BATCH_MAX || room < size) {
      last = [];
      made.push(last);
      room = BATCH_BYTES_MAX;
    }
    last.push(lease);
    room -= size;
  }
  return made;
}
