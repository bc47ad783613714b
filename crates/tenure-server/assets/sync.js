// Keeps what the page knows in step with the service: a listing that goes round, events in between, and what becomes of
// the connection.

import * as api from './api.js';

const PAGE = 500;
const PAGES_MAX = 200;
/** Time between two listings: at least this, and a millisecond for each lock. */
const PAUSE_MS = 2_000;
const HIDDEN_MS = 20_000;
const RETRY_MS = [400, 800, 1_500, 3_000, 5_000];
/** Names that an event told of and that are looked at singly; when there are more, the next listing has them. */
const LOOKS_MAX = 24;
const LOOKS_EVERY_MS = 150;

const soon = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

export class Sync extends EventTarget {
  #locks;
  #wakes = new Set();
  #failing = new Map();
  #stopped = null;
  #dirty = new Set();
  #looking = false;
  #opened = false;
  /** `connecting`, `live`, `lost`, `token` (one is asked for) or `denied`. */
  state = 'connecting';
  /** Whether the store itself is out of the service's reach. */
  storeAway = false;
  lastHeard = null;
  listed = false;

  constructor(locks) {
    super();
    this.#locks = locks;
    // A browser that says it is offline may still reach a service on its own machine: it is asked, not believed.
    addEventListener('online', () => this.wake());
    addEventListener('offline', () => this.wake());
    document.addEventListener('visibilitychange', () => { if (!document.hidden) this.wake(); });
  }

  /** Begins, or begins again with another token. */
  start() {
    this.#stopped?.abort();
    this.#stopped = new AbortController();
    const { signal } = this.#stopped;
    this.#failing.clear();
    this.listed = false;
    this.#become('connecting');
    this.#again(signal, 'list', () => this.#list(signal), () => {
      const pause = Math.max(PAUSE_MS, this.#locks.size);
      return document.hidden ? Math.max(pause, HIDDEN_MS) : pause;
    });
    this.#again(signal, 'events', () => this.#listen(signal), () => 0);
  }

  /** Tries again at once whatever waits. */
  wake() { for (const wake of this.#wakes) wake(); }

  /** Does something again and again; after a failure sooner at first, then later. */
  async #again(signal, what, task, pause) {
    let failures = 0;
    while (!signal.aborted) {
      let wait;
      try {
        await task();
        if (signal.aborted) return;
        failures = 0;
        if (what === 'list') this.#mend(what);
        wait = pause();
      } catch (error) {
        if (signal.aborted) return;
        this.#fail(what, error);
        wait = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)];
        failures += 1;
      }
      await this.#rest(wait);
    }
  }

  #rest(ms) {
    return new Promise((resolve) => {
      const done = () => { clearTimeout(timer); this.#wakes.delete(done); resolve(); };
      const timer = setTimeout(done, ms);
      this.#wakes.add(done);
    });
  }

  async #list(signal) {
    const cycle = this.#locks.begin();
    let after = null;
    for (let turn = 0; turn < PAGES_MAX && !signal.aborted; turn += 1) {
      const views = await api.page(after, PAGE);
      if (signal.aborted) return;
      if (!views.length) break;
      this.#locks.take(views);
      const { name } = views.at(-1);
      if (name === after) break;
      after = name;
      this.dispatchEvent(new Event('locks'));
      await soon(this.listed ? 40 : 0);
    }
    this.#locks.sweep(cycle);
    this.listed = true;
    this.#store(false);
    this.dispatchEvent(new Event('locks'));
  }

  async #listen(signal) {
    this.#opened = false;
    await api.events({
      signal,
      opened: () => {
        this.#opened = true;
        this.#mend('events');
      },
      told: (event) => this.#hear(event),
    });
    // A stream that ends is one that broke.
    throw new api.ApiError(0);
  }

  #hear(event) {
    if (event.event === 'away') this.#store(true);
    else if (event.event === 'back') { this.#store(false); this.wake(); }
    else if (event.event === 'gap' || event.event === 'dropped') this.wake();
    else if (typeof event.name === 'string') {
      this.lastHeard = Date.now();
      this.#locks.hear(event);
      if (this.#dirty.size < LOOKS_MAX) this.#dirty.add(event.name);
      this.#look();
      this.dispatchEvent(new CustomEvent('told', { detail: event }));
      this.dispatchEvent(new Event('locks'));
    }
  }

  /** Looks at names that changed: an event does not tell when a lease ends. */
  async #look() {
    if (this.#looking) return;
    this.#looking = true;
    await soon(LOOKS_EVERY_MS);
    const names = [...this.#dirty];
    this.#dirty.clear();
    this.#looking = false;
    const views = await Promise.all(names.map((name) => api.lock(name).catch(() => null)));
    this.#locks.take(views.filter(Boolean));
    this.dispatchEvent(new Event('locks'));
  }

  #store(away) {
    if (this.storeAway === away) return;
    this.storeAway = away;
    this.dispatchEvent(new Event('state'));
  }

  #mend(what) {
    this.lastHeard = Date.now();
    this.#failing.delete(what);
    if (this.#failing.size === 0 && this.listed && this.#opened) this.#become('live');
    // What was missed while the stream was away is in the listing.
    if (what === 'events') this.wake();
  }

  #fail(what, error) {
    if (error.status === 401) {
      this.#stopped?.abort();
      this.#become('token');
    } else if (error.status === 403) {
      this.#stopped?.abort();
      this.#become('denied');
    } else if (error.status === 503 && what === 'list') {
      this.#store(true);
    } else {
      this.#failing.set(what, error);
      this.#become(this.listed ? 'lost' : 'connecting');
    }
  }

  #become(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event('state'));
  }
}
