// What is known of all locks: taken from listings, moved on by events. Times are kept as instants of this page's own
// clock, so that they run on between two looks.

/** How many waiters of a lock are searched by label: a queue may be long. */
const SEARCHED_MAX = 32;
const LOCKS_MAX = 65_536;

const now = () => performance.now();
const STEPS = [1, 2, 3, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400].map((s) => s * 1000);

/** What the ttl most likely is, if so much of it was once left. */
const likely = (left) => STEPS.find((step) => step >= left) ?? left;

const same = (one, other) => one.owner === other.owner && (one.token === other.token || one.token === null || other.token === null);

function holder(view, at, before) {
  const ends = view.expires_in_ms === null || view.expires_in_ms === undefined ? null : at + view.expires_in_ms;
  const old = before?.find((one) => same(one, view));
  // What is left and what has passed since the last renewal are the ttl. Where the store tells only the former, it is
  // guessed.
  const told = ends === null || view.renewed_ms === null || view.renewed_ms === undefined ? null : view.expires_in_ms + view.renewed_ms;
  const span = told ?? Math.max(old?.span ?? 0, likely(view.expires_in_ms ?? 0));
  return {
    owner: view.owner ?? null, label: view.label ?? null, token: view.token ?? null, shape: view.shape ?? null,
    units: view.units ?? 1, since: view.held_ms === null || view.held_ms === undefined ? null : at - view.held_ms,
    ends, span, looked: at,
  };
}

function waiter(view, at) {
  return {
    owner: view.owner ?? null, label: view.label ?? null, shape: view.shape ?? null, units: view.units ?? 1,
    since: view.waited_ms === null || view.waited_ms === undefined ? null : at - view.waited_ms,
  };
}

export const groupOf = (name) => {
  const slash = name.indexOf('/');
  return slash > 0 ? name.slice(0, slash) : '';
};

export const labelOf = (claim) => claim.label ?? (claim.owner ? claim.owner.slice(0, 8) : 'unknown');

/** A look at one name, as this page keeps it. */
export function fromView(view, before) {
  const at = now();
  return {
    name: view.name, group: groupOf(view.name), capacity: view.capacity ?? null,
    holders: (view.holders ?? []).map((one) => holder(one, at, before?.holders)),
    waiters: (view.waiters ?? []).map((one) => waiter(one, at)),
  };
}

export class Locks {
  #all = new Map();
  #groups = new Map();
  #cycle = 0;
  /** Grows with every change of what exists; rows are sorted and filtered again when it does. */
  version = 0;
  waiting = 0;
  held = 0;

  get size() { return this.#all.size; }
  get(name) { return this.#all.get(name); }
  values() { return this.#all.values(); }
  /** Groups with how many names each has. */
  groups() { return this.#groups; }

  /** Begins a listing of all names. */
  begin() { return ++this.#cycle; }

  /** Takes what was looked at: one page of a listing, or a single name. */
  take(views) {
    for (const view of views) {
      const before = this.#all.get(view.name);
      const lock = fromView(view, before);
      if (!lock.holders.length && !lock.waiters.length) this.#drop(before);
      else this.#put(lock, before);
    }
  }

  /** Ends a listing: what was neither listed nor heard of since it began is gone. */
  sweep(cycle) {
    for (const lock of this.#all.values()) if (lock.seen < cycle) this.#drop(lock);
  }

  /** Moves a lock on by an event. The next look fills in what the event does not tell. */
  hear(event) {
    const before = this.#all.get(event.name);
    const lock = before ? { ...before } : { name: event.name, group: groupOf(event.name), capacity: null, holders: [], waiters: [] };
    const claim = { owner: event.owner ?? null, label: event.label ?? null, token: event.token ?? null };
    const others = lock.waiters.filter((one) => one.owner !== claim.owner);
    switch (event.event) {
      case 'granted':
        lock.waiters = others;
        if (!lock.holders.some((one) => same(one, claim))) {
          lock.holders = [...lock.holders, { ...claim, shape: null, units: 1, since: now() - (event.held_ms ?? 0), ends: null, span: 0, looked: now() }];
        }
        break;
      case 'waiting':
        if (others.length === lock.waiters.length) {
          lock.waiters = [...lock.waiters, { ...claim, shape: null, units: 1, since: now() - (event.waited_ms ?? 0) }];
        }
        break;
      case 'left': lock.waiters = others; break;
      case 'released': case 'expired': case 'lost': case 'broken':
        lock.holders = lock.holders.filter((one) => !same(one, claim));
        break;
      default: return;
    }
    if (!lock.holders.length && !lock.waiters.length) this.#drop(before);
    else this.#put(lock, before);
  }

  #put(lock, before) {
    if (!before && this.#all.size >= LOCKS_MAX) return;
    const changes = !before || moved(before, lock);
    const handedOver = !before || otherHolders(before, lock);
    if (before) this.#count(before, -1);
    // A known lock is changed in place: rows that show it keep it. `revision` tells them.
    const kept = Object.assign(before ?? { revision: 0 }, lock);
    kept.revision += 1;
    kept.seen = this.#cycle;
    if (handedOver) kept.changed = now();
    const labels = [...kept.holders, ...kept.waiters.slice(0, SEARCHED_MAX)].map((claim) => claim.label ?? '');
    kept.searched = [kept.name, ...labels].join('\n').toLowerCase();
    this.#all.set(kept.name, kept);
    this.#count(kept, 1);
    if (changes) this.version += 1;
  }

  #drop(lock) {
    if (!lock || !this.#all.delete(lock.name)) return;
    this.#count(lock, -1);
    this.version += 1;
  }

  #count(lock, by) {
    this.held += by * lock.holders.length;
    this.waiting += by * lock.waiters.length;
    const group = (this.#groups.get(lock.group) ?? 0) + by;
    if (group > 0) this.#groups.set(lock.group, group);
    else this.#groups.delete(lock.group);
  }
}

/** Whether others hold than before. */
const otherHolders = (before, lock) => before.holders.length !== lock.holders.length
  || lock.holders.some((one, index) => !same(one, before.holders[index]));

/** Whether others hold or wait than before. */
const moved = (before, lock) => before.waiters.length !== lock.waiters.length || otherHolders(before, lock);

const BY = {
  name: (lock) => lock.name,
  holder: (lock) => (lock.holders.length ? labelOf(lock.holders[0]).toLowerCase() : '\uffff'),
  token: (lock) => -(lock.holders[0]?.token ?? 0),
  held: (lock) => lock.holders[0]?.since ?? Infinity,
  lease: (lock) => Math.min(Infinity, ...lock.holders.slice(0, 64).map((one) => one.ends ?? Infinity)),
  waiting: (lock) => -lock.waiters.length,
};

/** The locks of a group that a search finds, in order. */
export function chosen(locks, { search, group, sort, reverse }) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const key = BY[sort] ?? BY.name;
  const found = [];
  for (const lock of locks.values()) {
    if (group !== null && lock.group !== group) continue;
    if (words.every((word) => lock.searched.includes(word))) found.push({ lock, key: key(lock) });
  }
  const order = (one, other) => (one.key < other.key ? -1 : one.key > other.key ? 1 : one.lock.name < other.lock.name ? -1 : 1);
  found.sort(reverse ? (one, other) => order(other, one) : order);
  return found.map((one) => one.lock);
}

/**
 * How much of a lease is left: `part` from 1 to 0, and a word for it. Holders renew every third of their ttl, so less
 * than half is late. The word is of the last look: what runs out since may have been renewed unseen.
 */
export function lease(claim, at = now()) {
  if (claim.ends === null) return { left: null, part: 0, state: 'unknown' };
  const share = (left) => (claim.span > 0 ? Math.max(0, Math.min(1, left / claim.span)) : 0);
  const seen = share(claim.ends - claim.looked);
  const state = seen <= 0 ? 'over' : seen < 1 / 6 ? 'thin' : seen < 1 / 2 ? 'late' : 'full';
  const left = claim.ends - at;
  if (left <= 0 && state !== 'over') return { left: null, part: 0, state };
  return { left: Math.max(0, left), part: share(left), state };
}

/** In which way a lock is held, in few words. */
export function shapeOf(lock) {
  const [first] = lock.holders;
  if (!first) return 'waited for';
  if (first.shape === 'shared') return `shared by ${lock.holders.length}`;
  if (first.shape === 'permits') return `${lock.holders.reduce((sum, one) => sum + one.units, 0)} of ${lock.capacity ?? '?'} permits`;
  return 'held';
}
