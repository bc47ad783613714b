// A lock's own page: who holds it, the queue in order, why it takes so long, who held it before.

import * as api from './api.js';
import { allowed, ask } from './break.js';
import { byId, el, setText, svg } from './dom.js';
import { sentences } from './explain.js';
import { brief, clock, count, plural, running, span } from './format.js';
import { fromView, labelOf, lease, shapeOf } from './locks.js';
import { beginning } from './memo.js';

const LOOK_MS = 1_000;
const RECENT_MS = 5_000;
const MEMO_MS = 2_000;
const QUEUE_MAX = 200;
const PAST_MAX = 20;
const LANES_MAX = 6;

const empty = (text) => el('p', { class: 'none' }, text);
const panel = (title, ...children) => {
  const id = `panel-${title.toLowerCase().replaceAll(' ', '-')}`;
  return el('section', { class: 'card', 'aria-labelledby': id }, el('h2', { id }, title), ...children);
};

class HolderCard {
  constructor(page) {
    this.who = el('strong', { class: 'who wrap' });
    this.owner = el('dd', { class: 'mono' });
    this.token = el('dd', { class: 'mono' });
    this.held = el('dd');
    this.shape = el('dd');
    this.left = el('dd', { class: 'left' });
    this.fill = el('i', { class: 'fill' });
    this.evict = el('button', { type: 'button', class: 'quiet-danger', on: { click: () => page.break(this.holder) } }, 'Break this one…');
    const fact = (term, value) => el('div', {}, el('dt', {}, term), value);
    this.node = el('li', { class: 'holder' }, this.who,
      el('span', { class: 'bar wide', 'aria-hidden': 'true' }, this.fill),
      el('dl', {}, fact('expires in', this.left), fact('held for', this.held), fact('token', this.token), fact('shape', this.shape), fact('owner', this.owner)),
      this.evict);
  }

  set(holder, lock, mayBreak) {
    this.holder = holder;
    setText(this.who, labelOf(holder));
    setText(this.owner, brief(holder.owner));
    this.owner.title = holder.owner ?? '';
    setText(this.token, holder.token === null ? '–' : String(holder.token));
    setText(this.shape, holder.shape === 'permits' ? `${holder.units} of ${lock.capacity ?? '?'} permits` : holder.shape ?? '–');
    this.evict.hidden = !(mayBreak && lock.holders.length > 1 && holder.owner && holder.token !== null);
  }

  tick(at) {
    const told = lease(this.holder, at);
    setText(this.held, this.holder.since === null ? '–' : running(at - this.holder.since));
    setText(this.left, told.left === null ? 'not known' : told.state === 'over' ? 'now' : span(told.left));
    this.fill.style.transform = `scaleX(${told.part.toFixed(3)})`;
    if (this.node.dataset.lease !== told.state) this.node.dataset.lease = told.state;
  }
}

export class LockPage {
  #stop = null;
  #cards = [];
  #waiting = [];
  #past = [];

  constructor({ locks, feed, store }) {
    Object.assign(this, { locks, feed, store });
    this.node = byId('view-lock');
  }

  open(name) {
    this.close();
    this.name = name;
    this.lock = this.locks.get(name) ?? { name, capacity: null, holders: [], waiters: [], unknown: true };
    this.refused = null;
    this.#stop = new AbortController();
    this.#build();
    this.draw();
    const { signal } = this.#stop;
    this.#again(signal, LOOK_MS, async () => {
      try {
        this.lock = fromView(await api.lock(name, signal), this.lock);
        this.refused = null;
      } catch (error) {
        if (error.status !== 401 && error.status !== 403) throw error;
        // What was known of it before says nothing of now.
        this.lock = { name, capacity: null, holders: [], waiters: [], unknown: true };
        this.refused = 'This token may not read this name.';
      }
      this.draw();
    });
    this.#again(signal, RECENT_MS, async () => {
      this.#past = (await api.recent(signal)).filter((one) => one.name === name).map((one) => ({ ...one, ended_at: Date.now() - (one.ago_ms ?? 0) }));
      this.drawPast();
    });
    this.#again(signal, MEMO_MS, async () => {
      if (this.store()?.capabilities?.memos) this.drawMemo(await api.memo(name, signal));
    });
    this.explain();
  }

  close() {
    this.#stop?.abort();
    this.#stop = null;
  }

  async #again(signal, ms, task) {
    while (!signal.aborted) {
      await task().catch(() => {}); // a lost connection is told above all pages
      await new Promise((resolve) => { setTimeout(resolve, document.hidden ? ms * 10 : ms); });
    }
  }

  #build() {
    this.state = el('span', { class: 'badge large' });
    this.breaker = el('button', { type: 'button', class: 'danger-outline', on: { click: () => this.break(null) } }, 'Break lock…');
    this.holders = el('ul', { class: 'holders' });
    this.noHolders = empty('Nobody holds it.');
    this.queue = el('ol', { class: 'line-up' });
    this.noQueue = empty('Nobody waits.');
    this.moreQueue = el('p', { class: 'quiet' });
    this.why = el('div', { class: 'why', role: 'status' });
    this.again = el('button', { type: 'button', class: 'small', on: { click: () => this.explain() } }, 'Look again');
    this.lanes = el('div', { class: 'lanes' });
    this.past = el('div', { class: 'past' });
    this.memo = el('div', { class: 'memo' });
    this.memoPanel = panel('Memo', this.memo);
    this.memoPanel.hidden = true;
    this.#cards = [];
    this.#waiting = [];
    this.node.replaceChildren(
      el('p', { class: 'back' }, el('a', { href: '#/' }, '← All locks')),
      el('div', { class: 'lock-head' }, el('h1', { id: 'lock-title', class: 'mono wrap', tabindex: '-1' }, this.name), this.state, this.breaker),
      el('div', { class: 'columns' },
        el('div', {}, panel('Holders', this.holders, this.noHolders), panel('Queue', this.queue, this.noQueue, this.moreQueue), this.memoPanel),
        el('div', {}, panel('Diagnosis', this.why, this.again), panel('Recent holders', this.lanes, this.past))));
  }

  draw() {
    const { lock } = this;
    const mayBreak = allowed(this.store(), lock.name);
    setText(this.state, this.refused ? 'not yours to read' : lock.unknown ? '…' : lock.holders.length || lock.waiters.length ? shapeOf(lock) : 'free');
    this.state.dataset.free = String(!lock.holders.length && !lock.unknown);
    this.breaker.hidden = !(mayBreak && lock.holders.some((one) => one.token !== null));
    this.noHolders.hidden = lock.holders.length > 0;
    // Nobody holds it only if the service said so.
    setText(this.noHolders, this.refused ?? (lock.unknown ? 'Looking who holds it.' : 'Nobody holds it.'));
    this.noQueue.hidden = lock.waiters.length > 0 || Boolean(lock.unknown);
    while (this.#cards.length < lock.holders.length) { const card = new HolderCard(this); this.#cards.push(card); this.holders.append(card.node); }
    while (this.#cards.length > lock.holders.length) this.#cards.pop().node.remove();
    lock.holders.forEach((holder, index) => this.#cards[index].set(holder, lock, mayBreak));
    const waiters = lock.waiters.slice(0, QUEUE_MAX);
    while (this.#waiting.length < waiters.length) {
      const row = { who: el('span', { class: 'who' }), shape: el('span', { class: 'badge' }), waited: el('span', { class: 'waited' }) };
      row.node = el('li', {}, row.who, row.shape, row.waited);
      this.#waiting.push(row);
      this.queue.append(row.node);
    }
    while (this.#waiting.length > waiters.length) this.#waiting.pop().node.remove();
    waiters.forEach((waiter, index) => {
      const row = this.#waiting[index];
      row.waiter = waiter;
      setText(row.who, labelOf(waiter));
      row.who.title = waiter.owner ? `owner ${waiter.owner}` : '';
      setText(row.shape, waiter.shape === 'permits' ? plural(waiter.units, 'permit') : waiter.shape === 'exclusive' ? '' : waiter.shape ?? '');
    });
    setText(this.moreQueue, lock.waiters.length > QUEUE_MAX ? `and ${count(lock.waiters.length - QUEUE_MAX)} more` : '');
    this.tick();
  }

  tick() {
    const at = performance.now();
    for (const card of this.#cards) card.tick(at);
    for (const row of this.#waiting) setText(row.waited, row.waiter.since === null ? '' : `waits ${running(at - row.waiter.since)}`);
  }

  async explain() {
    const { signal } = this.#stop;
    this.again.disabled = true;
    this.why.replaceChildren(el('p', { class: 'quiet looking' }, 'Looking whether the holder renews. That may take some seconds.'));
    try {
      const report = await api.explain(this.name, signal);
      this.why.replaceChildren(el('ul', {}, ...sentences(report).map(({ text, warn }) => el('li', { class: warn ? 'warn' : null }, text))));
    } catch (error) {
      if (signal.aborted) return;
      // That this token may not read it is told where its holders would stand.
      const refused = error.status === 401 || error.status === 403;
      this.why.replaceChildren(...(refused ? [] : [empty(`No diagnosis: ${error.message}.`)]));
    }
    this.again.disabled = false;
  }

  /** What is kept with the name. Its bytes are shown as text, whatever they look like. */
  drawMemo(memo) {
    this.memoPanel.hidden = memo === null;
    if (memo === null) return;
    const text = beginning(memo.bytes);
    const fact = (term, value) => el('div', {}, el('dt', {}, term), el('dd', {}, value));
    const facts = [['size', plural(memo.bytes.length, 'byte')], ['version', String(memo.version)], ['written', `${running(memo.age_ms)} ago`],
      ['under token', String(memo.token)], ['kept by', memo.kind ?? '–']];
    this.memo.replaceChildren(el('dl', {}, ...facts.map(([term, value]) => fact(term, value))),
      text === null ? empty('It is no text.') : el('pre', { class: 'wrap' }, text));
  }

  /** Who held it before: what the service recorded, and what this page heard itself. */
  drawPast() {
    const heard = this.feed.filter((event) => event.name === this.name && ['released', 'expired', 'lost', 'broken'].includes(event.event))
      .map((event) => ({ label: event.label ?? brief(event.owner), token: event.token, held_ms: event.held_ms, waited_ms: null, ended: ending(event), ended_at: event.seen_at }));
    const known = new Set(this.#past.map((one) => one.token).filter(Boolean));
    const all = [...this.#past, ...heard.filter((one) => !one.token || !known.has(one.token))].sort((one, other) => other.ended_at - one.ended_at);
    const held = all.filter((one) => one.held_ms !== null && one.held_ms !== undefined);
    this.#drawLanes(held);
    if (!all.length) { this.past.replaceChildren(empty('Nobody is known to have held it.')); return; }
    this.past.replaceChildren(el('table', {},
      el('thead', {}, el('tr', {}, ...['Ended', 'Holder', 'Waited', 'Held', 'How'].map((title) => el('th', { scope: 'col' }, title)))),
      el('tbody', {}, ...all.slice(0, PAST_MAX).map((one) => el('tr', {},
        el('td', {}, el('time', {}, clock(one.ended_at))),
        el('td', { class: 'wrap', title: one.token ? `token ${one.token}` : null }, one.label ?? '–'),
        el('td', { title: one.behind ? `behind ${one.behind}` : null }, span(one.waited_ms)), el('td', {}, span(one.held_ms)),
        el('td', { class: /^(released|left)/.test(one.ended) ? null : 'bad' }, one.ended))))));
  }

  /** Bars over time, a line for each holder. */
  #drawLanes(held) {
    const now = Date.now();
    const here = this.lock.holders.filter((one) => one.since !== null)
      .map((one) => ({ label: labelOf(one), from: now - (performance.now() - one.since), to: now, live: true }));
    const spans = [...here, ...held.map((one) => ({ label: one.label ?? '–', from: one.ended_at - one.held_ms, to: one.ended_at, bad: !/^(released|left)/.test(one.ended) }))];
    const labels = [...new Set(spans.map((one) => one.label))].slice(0, LANES_MAX);
    if (held.length === 0 || labels.length === 0) { this.lanes.replaceChildren(); return; }
    const shown = spans.filter((one) => labels.includes(one.label));
    const wide = Math.min(15 * 60_000, Math.max(30_000, now - Math.min(...shown.map((one) => one.from))));
    const x = (at) => Math.max(0, 1000 - ((now - at) / wide) * 1000);
    this.lanes.replaceChildren(...labels.map((label) => el('div', { class: 'lane' }, el('span', { title: label }, label),
      svg('svg', { viewBox: '0 0 1000 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        ...shown.filter((one) => one.label === label && one.to > now - wide).map((one) => svg('rect', {
          x: x(one.from), y: 0, width: Math.max(4, x(one.to) - x(one.from)), height: 10, class: one.live ? 'live' : one.bad ? 'bad' : null }))))),
    el('div', { class: 'lane scale', 'aria-hidden': 'true' }, el('span'), el('p', {}, el('span', {}, `${span(wide)} ago`), el('span', {}, 'now'))));
  }

  break(holder) { ask(this.lock, holder, () => this.explain()); }
}

function ending(event) {
  if (event.event !== 'broken') return event.event;
  return `broken by ${event.by ?? 'somebody'}${event.reason ? `: ${event.reason}` : ''}`;
}
