// A lock that is held.

import * as clock from './clock.js';
import { Lost, refusal, refuseUnknown } from './errors.js';
import { write, type MemoOptions, type Write } from './memo.js';
import { isAbout, milliseconds, type Claim, type Grant, type Named, type Wish } from './protocol.js';

// Older browsers have `await using` compiled away, and look for this symbol all the same.
(Symbol as { asyncDispose?: symbol }).asyncDispose ??= Symbol.for('Symbol.asyncDispose');

/** A suspended machine is noticed this long after it wakes, at most. */
export const LOOK_MAX_MS = 500;

/** What a lease needs of its client. */
export interface Keeper {
  end(lease: Lease): Promise<boolean>;
  write(lease: Lease, version: number, what: Write): Promise<number>;
}

/** A lock that is held. It is renewed in the background until it is released or lost. */
export class Lease {
  readonly name: string;
  /** The fencing number: rises from holder to holder. Null where the store has none. */
  readonly token: number | null;
  /** Who holds it. Whoever knows it may release it: keep it to yourself. */
  readonly owner: string;
  readonly #wish: Wish;
  readonly #claim: string;
  readonly #keeper: Keeper;
  readonly #controller = new AbortController();
  #deadline: clock.Moment;
  #over = false;
  /** The version of the memo, as far as it is known, once the write before has ended. */
  #written: Promise<number> = Promise.resolve(0);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #renewAt: clock.Moment;
  /** @internal The renewal that is under way. */ batch: { readonly until: clock.Moment } | undefined;

  /** @internal */
  constructor(claim: Claim, grant: Grant, keeper: Keeper) {
    this.name = claim.wish.name;
    this.token = grant.token;
    this.owner = grant.owner;
    this.#wish = claim.wish;
    this.#claim = grant.id;
    this.#keeper = keeper;
    this.#deadline = grant.deadline;
    this.#renewAt = clock.after(grant.renewed, claim.wish.ttlMs / 3);
  }

  /** Aborted a few milliseconds before the deadline when the lease is lost; its reason is a `Lost`. */
  get signal(): AbortSignal { return this.#controller.signal; }

  /** Why the lease was lost. */
  get loss(): Lost | undefined { return this.signal.aborted ? (this.signal.reason as Lost) : undefined; }

  /** Milliseconds until the lease ends unless it is renewed. Reads clocks, and asks nobody. */
  remaining(): number {
    return this.#over || this.signal.aborted ? 0 : Math.max(0, clock.left(this.#deadline));
  }

  /** Whether the lease can be trusted now. Reads clocks, and asks nobody. */
  isHeld(): boolean { return this.remaining() > 0; }

  /** Throws `Lost` unless the lease is held. */
  check(): void {
    if (!this.isHeld()) throw this.loss ?? new Lost('lost', `${this.name} is not held any more`);
  }

  /** Ends the lease. True if this did it; false if it was over already, or nobody answered until it was. */
  release(): Promise<boolean> { return this.#keeper.end(this); }

  /**
   * Keeps a value (at most 64 KiB; text as UTF-8) with the name, and answers its version. Only `keepMs` ends it. Rejects
   * with `Lost` if the lease is lost, and with `Unavailable` if nobody answers in time. `certainty` of the error says
   * whether it may be written all the same.
   */
  async writeMemo(value: Uint8Array | string, options: MemoOptions = {}): Promise<number> {
    refuseUnknown(options, ['keepMs']);
    const what = write(value, options);
    const before = this.#written;
    const written = before.then((version) => {
      this.check();
      return this.#keeper.write(this, version, what);
    });
    // One after the other; one that failed leaves the version that was known.
    this.#written = written.catch(() => before);
    return written;
  }

  /** Leaving an `await using` block releases; if the lease was lost meanwhile, it throws. */
  async [Symbol.asyncDispose](): Promise<void> {
    const { loss } = this;
    await this.release();
    if (loss) throw loss;
  }

  /** @internal */ get ttlMs(): number { return this.#wish.ttlMs; }
  /** @internal */ named(): Named { return { name: this.name, owner: this.owner, claim: this.#claim }; }
  /** @internal */ renewal() { return { ...this.named(), ttl_ms: this.ttlMs }; }
  /** @internal */ deadlineIn(): number { return clock.left(this.#deadline); }

  /** @internal Milliseconds until the loss is told: a little early, since whoever is told has to stop by then. */
  lossIn(): number {
    return clock.left(this.#deadline) - Math.min(Math.max(5, this.ttlMs * 0.01), 50);
  }

  /** @internal Looks again and again whether its time is up: timers stand still while the machine sleeps. */
  watch(lost: (lease: Lease, why: Lost) => void): void {
    if (this.#over || this.signal.aborted) return;
    const left = this.lossIn();
    if (left <= 0) lost(this, new Lost('expired', `${this.name} was not renewed in time`));
    else this.#timer = unref(setTimeout(() => this.watch(lost), Math.min(left, LOOK_MAX_MS)));
  }

  /** @internal Takes note of an answer, whatever it is; says why the lease is lost, if it is. The deadline never comes sooner by it. */
  renewed(sent: clock.Moment, answer: unknown): Lost | undefined {
    const told: Record<string, unknown> = isAbout(this.named(), answer) ? answer : {};
    const { state, message } = told;
    if (state === 'lost' || state === 'broken' || state === 'waiting') {
      const why = `the lease was ${state}${typeof message === 'string' ? ` ${message}` : ''}`;
      return refusal(410, { ...told, kind: state === 'broken' ? 'broken' : 'lost', message: why }) as Lost;
    }
    const left = milliseconds(told['expires_in_ms']);
    if (state === 'held' && left !== undefined) {
      this.#deadline = clock.later(this.#deadline, clock.after(sent, left));
      this.#renewAt = clock.later(this.#renewAt, clock.after(sent, this.ttlMs / 3));
    } else this.#renewAt = clock.after(clock.now(), Math.min(250, this.ttlMs / 18) * (0.5 + Math.random() / 2));
    return undefined;
  }

  /** @internal Milliseconds until it is to be renewed. While a renewal is under way it is not, unless that takes too long. */
  dueIn(): number { return clock.left(this.batch ? this.batch.until : this.#renewAt); }

  /** @internal */
  finish(why?: Lost): void {
    clearTimeout(this.#timer);
    if (why) this.#controller.abort(why);
    else this.#over = true;
  }
}

/** A timer that does not keep a program from ending. */
export function unref<T>(timer: T): T {
  (timer as { unref?: () => void }).unref?.();
  return timer;
}
