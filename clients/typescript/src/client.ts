// Locks, and the task that keeps them.

import { Lost, refuseUnknown, Unavailable } from './errors.js';
import { LOOK_MAX_MS, Lease, unref } from './lease.js';
import { readMemo, writeMemo, type Memo, type Write } from './memo.js';
import { acquire, Claim, release, type Named, type Wish } from './protocol.js';
import { due, type Batch } from './renewals.js';
import { Services, type Answer, type Connecting } from './services.js';

/** How long a claim that was given up is tried to be ended. */
const CLEAN_UP_MS = 10_000;

export interface ClientOptions extends Connecting {
  /** Who this is, for people. Default: the process id, or `browser`. */
  label?: string;
  /** An acquire fails when no service has answered for so long, and so does a memo that is written or read. Default: 10 s. */
  silenceMs?: number;
}

export interface LockOptions {
  /** How long the claim lives in the store without a renewal. Default: 10 s. */
  ttlMs?: number;
  /** Held together with all others that take it shared. */
  shared?: boolean;
  label?: string;
}

export interface PermitOptions {
  ttlMs?: number;
  label?: string;
  /** How many permits to take. Default: 1. */
  units?: number;
}

export interface AcquireOptions {
  /** Rejects with `LockTimeout` after so long. Default: waits for ever. */
  timeoutMs?: number;
  /** Gives up when it is aborted; the claim is then ended in the background. */
  signal?: AbortSignal;
}

const closed = (certainty: string) => new Unavailable('unavailable', 'the client is closed', { certainty });

/** A name and how it is to be held. Costs nothing until it is acquired. */
export class Lock {
  readonly #client: Client;
  readonly #wish: Wish;

  /** @internal */
  constructor(client: Client, wish: Wish) {
    this.#client = client;
    this.#wish = wish;
  }

  /** Waits its turn. */
  async acquire({ timeoutMs, signal }: AcquireOptions = {}): Promise<Lease> {
    return (await this.#client.take(this.#wish, timeoutMs === undefined ? undefined : Math.max(1, timeoutMs), signal)) as Lease;
  }

  /** Takes it if it is free now, else null. */
  tryAcquire({ signal }: Pick<AcquireOptions, 'signal'> = {}): Promise<Lease | null> {
    return this.#client.take(this.#wish, 0, signal);
  }

  /**
   * Acquires, does the work, releases. Rejects with `Lost` as soon as the lease is lost; the work should heed
   * `lease.signal`.
   */
  async run<T>(work: (lease: Lease) => Promise<T> | T, options: AcquireOptions = {}): Promise<T> {
    const lease = await this.acquire(options);
    const lost = new Promise<never>((_, reject) => {
      lease.signal.addEventListener('abort', () => reject(lease.loss), { once: true });
    });
    lost.catch(() => {}); // told by the race, or nobody is waiting any more
    try {
      const result = await Promise.race([work(lease), lost]);
      if (lease.loss) throw lease.loss;
      return result;
    } finally {
      await lease.release();
    }
  }
}

/** A client of the tenure service. Renews what it holds, leases of like ttls in one request. */
export class Client {
  readonly #services: Services;
  readonly #label: string;
  readonly #silenceMs: number;
  readonly #leases = new Set<Lease>();
  readonly #background = new Set<Promise<unknown>>();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #closed = false;

  constructor(options: ClientOptions = {}) {
    this.#services = new Services(options);
    this.#label = options.label ?? (typeof process === 'undefined' ? 'browser' : `node:${process.pid}`);
    this.#silenceMs = options.silenceMs ?? 10_000;
  }

  /** An exclusive lock, or one that all who take it shared hold together. */
  lock(name: string, options: LockOptions = {}): Lock {
    refuseUnknown(options, ['ttlMs', 'shared', 'label']);
    const { ttlMs = 10_000, shared = false, label = this.#label } = options;
    return new Lock(this, { name, ttlMs: Math.round(ttlMs), shared, label });
  }

  /** Takes permits of `capacity`. Their tokens are for tracing: they do not order writes. */
  semaphore(name: string, capacity: number, options: PermitOptions = {}): Lock {
    refuseUnknown(options, ['ttlMs', 'units', 'label']);
    const { ttlMs = 10_000, units = 1, label = this.#label } = options;
    return new Lock(this, { name, ttlMs: Math.round(ttlMs), label, units, capacity });
  }

  /** What the last exclusive holder of a name has kept with it, or null. */
  async memo(name: string): Promise<Memo | null> {
    return readMemo(this.#services, name, this.#silenceMs, () => { if (this.#closed) throw closed('not_applied'); });
  }

  /** Releases what is held, ends what was given up, and stops. What is being acquired meanwhile is given up, and rejects. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.allSettled([...this.#leases].map((lease) => lease.release()));
    clearTimeout(this.#timer);
    await Promise.allSettled(this.#background);
  }

  async [Symbol.asyncDispose](): Promise<void> { await this.close(); }

  /** @internal */
  async take(wish: Wish, waitMs: number | undefined, signal: AbortSignal | undefined): Promise<Lease | null> {
    if (this.#closed) throw closed('not_applied');
    signal?.throwIfAborted();
    const claim = new Claim(wish);
    let grant;
    try {
      grant = await acquire(this.#services, claim, { waitMs, silenceMs: this.#silenceMs, signal, goOn: () => { if (this.#closed) throw closed('unknown'); } });
    } catch (error) {
      if (claim.maybe) this.#cleanUp(claim, wish.ttlMs);
      throw error;
    }
    if (!grant) return null;
    if (this.#closed) {
      // Nobody would renew it.
      const released = await release(this.#services, claim, Math.min(wish.ttlMs, CLEAN_UP_MS));
      throw closed(released ? 'not_applied' : 'unknown');
    }
    const lease = new Lease(claim, grant, this);
    this.#leases.add(lease);
    lease.watch((one, why) => this.#lose(one, why));
    this.#plan();
    return lease;
  }

  /** @internal */
  async end(lease: Lease): Promise<boolean> {
    if (!this.#leases.delete(lease)) return false;
    const left = Math.max(0, lease.deadlineIn());
    lease.finish();
    return release(this.#services, lease, Math.min(left, CLEAN_UP_MS));
  }

  /** @internal */
  async write(lease: Lease, version: number, what: Write): Promise<number> {
    try {
      return await writeMemo(this.#services, lease, version, what, this.#silenceMs);
    } catch (error) {
      if (error instanceof Lost) this.#lose(lease, error);
      throw error;
    }
  }

  /** Ends a claim that was given up. What fails ends by its ttl. */
  #cleanUp(claim: { named(): Named }, ttlMs: number): void {
    const { named } = claim;
    const once = named.call(claim);
    const work = release(this.#services, { named: () => once }, Math.min(ttlMs, CLEAN_UP_MS)).catch(() => false);
    this.#background.add(work);
    void work.then(() => this.#background.delete(work));
  }

  #lose(lease: Lease, why: Lost): void {
    if (!this.#leases.delete(lease)) return;
    lease.finish(why);
    if (why.kind === 'expired') this.#cleanUp(lease, lease.ttlMs);
  }

  /** Sets the timer for the next renewal. */
  #plan(): void {
    clearTimeout(this.#timer);
    if (this.#closed || this.#leases.size === 0) return;
    let soonest = LOOK_MAX_MS;
    for (const lease of this.#leases) soonest = Math.min(soonest, lease.dueIn());
    this.#timer = unref(setTimeout(() => this.#renew(), Math.max(1, soonest)));
  }

  /** Renews what is due. One request that is slow does not delay the others. */
  #renew(): void {
    for (const batch of due(this.#leases)) void this.#send(batch);
    this.#plan();
  }

  async #send(batch: Batch): Promise<void> {
    let answer: Answer | undefined;
    try {
      answer = await this.#services.post('/v1/renew', batch.body(), batch.timeoutMs);
    } catch {
      // it is repeated
    }
    for (const [lease, why] of batch.answered(answer)) this.#lose(lease, why);
    this.#plan();
  }
}
