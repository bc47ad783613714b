// The table of locks. Only rows on the screen exist, so ten thousand locks cost as much as ten.

import { byId, el, setText } from './dom.js';
import { count, running, span } from './format.js';
import { groupOf, labelOf, lease, shapeOf } from './locks.js';

const COLUMNS = [
  ['name', 'Name'], ['holder', 'Holder'], ['token', 'Token'], ['held', 'Held for'], ['lease', 'Expires in'], ['waiting', 'Waiting'],
];
/** Rows beyond the screen's edge, so that a quick scroll shows no gap. */
const SPARE = 8;
const FLASH_MS = 800;
/** Waiters named in a row; the lock's own page has all of them. */
const NAMED_MAX = 3;

export const hashOf = (name) => `#/lock/${encodeURIComponent(name)}`;

class Row {
  constructor() {
    this.group = el('span', { class: 'of' });
    this.rest = el('span');
    this.link = el('a', { class: 'name', tabindex: '-1' }, this.group, this.rest);
    this.holder = el('span', { class: 'who' });
    this.shape = el('span', { class: 'badge' });
    this.left = el('span', { class: 'left' });
    this.fill = el('i', { class: 'fill' });
    this.token = el('div', { role: 'gridcell', class: 'c-token' });
    this.held = el('div', { role: 'gridcell', class: 'c-held' });
    this.lease = el('div', { role: 'gridcell', class: 'c-lease' }, this.left, el('span', { class: 'bar', 'aria-hidden': 'true' }, this.fill));
    this.waiting = el('span', { class: 'badge' });
    this.queue = el('span', { class: 'queue' });
    this.node = el('div', { role: 'row', class: 'row' },
      el('div', { role: 'gridcell', class: 'c-name' }, this.link),
      el('div', { role: 'gridcell', class: 'c-holder' }, this.holder, this.shape),
      this.token, this.held, this.lease,
      el('div', { role: 'gridcell', class: 'c-waiting' }, this.waiting, this.queue));
    this.lock = null;
  }

  /** Shows a lock. What did not change is left alone. */
  set(lock, index, height, active) {
    if (this.index !== index || this.height !== height) {
      [this.index, this.height] = [index, height];
      this.node.style.transform = `translateY(${index * height}px)`;
      this.node.setAttribute('aria-rowindex', String(index + 2));
      this.node.id = `row-${index}`;
      this.node.classList.toggle('odd', index % 2 === 1);
    }
    if (this.active !== active) {
      this.active = active;
      this.node.classList.toggle('active', active);
      this.node.setAttribute('aria-selected', String(active));
    }
    if (this.lock !== lock || this.revision !== lock.revision) this.#fill(lock);
  }

  #fill(lock) {
    if (this.named !== lock.name) {
      this.named = lock.name;
      const group = groupOf(lock.name);
      setText(this.group, group ? `${group}/` : '');
      setText(this.rest, group ? lock.name.slice(group.length + 1) : lock.name);
      this.link.href = hashOf(lock.name);
      this.link.title = lock.name;
      this.node.classList.add('jump');
    }
    this.lock = lock;
    this.revision = lock.revision;
    const [first] = lock.holders;
    const shape = shapeOf(lock);
    setText(this.holder, first ? labelOf(first) : '');
    this.holder.title = first?.owner ? `${labelOf(first)}\nowner ${first.owner}` : '';
    setText(this.shape, shape === 'held' ? '' : shape);
    setText(this.token, first?.token ? String(first.token) : '–');
    setText(this.waiting, lock.waiters.length ? count(lock.waiters.length) : '');
    this.waiting.title = lock.waiters.length ? `${lock.waiters.length} waiting` : '';
    setText(this.queue, lock.waiters.slice(0, NAMED_MAX).map(labelOf).join(' › ') + (lock.waiters.length > NAMED_MAX ? ' › …' : ''));
  }

  /** Moves on what time moves. */
  tick(at) {
    const { lock } = this;
    const [first] = lock.holders;
    setText(this.held, first && first.since !== null ? running(at - first.since) : '–');
    const soonest = lock.holders.length > 1 ? lock.holders.reduce((one, other) => ((other.ends ?? Infinity) < (one.ends ?? Infinity) ? other : one)) : first;
    const told = soonest ? lease(soonest, at) : { left: null, part: 0, state: 'none' };
    setText(this.left, told.left === null ? '–' : told.state === 'over' ? 'now' : span(told.left));
    const part = told.part.toFixed(3);
    if (this.part !== part) { this.part = part; this.fill.style.transform = `scaleX(${part})`; }
    if (this.node.dataset.lease !== told.state) this.node.dataset.lease = told.state;
    const fresh = at - lock.changed < FLASH_MS;
    if (this.fresh !== fresh) { this.fresh = fresh; this.node.classList.toggle('fresh', fresh); }
  }
}

export class Grid {
  #locks = [];
  #rows = [];
  #active = -1;
  #asked = false;

  constructor({ sorted, opened }) {
    this.node = byId('grid');
    this.sort = { by: 'name', reverse: false };
    this.headers = COLUMNS.map(([key, title]) => el('div', { role: 'columnheader', class: `c-${key}` },
      el('button', { type: 'button', on: { click: () => this.#sortBy(key, sorted) } }, title, el('span', { class: 'arrow', 'aria-hidden': 'true' }))));
    this.body = el('div', { role: 'rowgroup', class: 'body' });
    this.node.append(el('div', { role: 'rowgroup', class: 'head' }, el('div', { role: 'row', 'aria-rowindex': '1' }, ...this.headers)), this.body);
    this.#mark();
    this.node.addEventListener('keydown', (event) => this.#key(event, opened));
    this.body.addEventListener('click', (event) => {
      if (event.target.closest('a') || String(getSelection())) return;
      const row = this.#rows.find((one) => one.node.contains(event.target));
      if (row?.lock) opened(row.lock.name);
    });
    addEventListener('scroll', () => this.ask(), { passive: true });
    addEventListener('resize', () => { this.height = 0; this.ask(); });
  }

  #sortBy(key, sorted) {
    this.sort = { by: key, reverse: this.sort.by === key ? !this.sort.reverse : false };
    this.#mark();
    sorted();
  }

  #mark() {
    COLUMNS.forEach(([key], index) => {
      const own = this.sort.by === key;
      this.headers[index].setAttribute('aria-sort', own ? (this.sort.reverse ? 'descending' : 'ascending') : 'none');
      setText(this.headers[index].querySelector('.arrow'), own ? (this.sort.reverse ? '↓' : '↑') : '');
    });
  }

  set(locks) {
    this.#locks = locks;
    this.node.setAttribute('aria-rowcount', String(locks.length + 1));
    if (this.#active >= locks.length) this.#active = locks.length - 1;
    this.ask();
  }

  /** Draws at the next frame, once for however many ask. */
  ask() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => { this.#asked = false; this.draw(); });
  }

  draw() {
    if (this.#locks.length === 0) for (const row of this.#rows.splice(0)) row.node.remove();
    if (this.node.closest('[hidden]')) return;
    // The style sheet decides how high a row is: a narrow screen has two lines.
    this.height ||= Number.parseFloat(getComputedStyle(this.node).getPropertyValue('--row')) || 44;
    const { height } = this;
    const tall = `${this.#locks.length * height}px`;
    if (this.body.style.height !== tall) this.body.style.height = tall;
    const above = -this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(above / height) - SPARE);
    const end = Math.min(this.#locks.length, Math.ceil((above + innerHeight) / height) + SPARE);
    const wanted = Math.max(0, end - first);
    while (this.#rows.length < wanted) {
      const row = new Row();
      this.#rows.push(row);
      this.body.append(row.node);
    }
    while (this.#rows.length > wanted) this.#rows.pop().node.remove();
    const at = performance.now();
    // A row keeps its place in the pool while it scrolls, so that only rows that come in are filled.
    for (let index = first; index < end; index += 1) {
      const row = this.#rows[index % wanted];
      row.set(this.#locks[index], index, height, index === this.#active);
      row.tick(at);
    }
    this.#point();
  }

  tick() {
    if (this.node.closest('[hidden]')) return;
    const at = performance.now();
    for (const row of this.#rows) {
      row.node.classList.remove('jump');
      row.tick(at);
    }
  }

  #point() {
    const id = `row-${this.#active}`;
    if (this.#active >= 0 && byId(id)) this.node.setAttribute('aria-activedescendant', id);
    else this.node.removeAttribute('aria-activedescendant');
  }

  #key(event, opened) {
    if (event.target !== this.node || event.ctrlKey || event.metaKey || event.altKey) return;
    const screen = Math.max(1, Math.floor(innerHeight / (this.height || 44)) - 2);
    const last = this.#locks.length - 1;
    const to = { ArrowDown: this.#active + 1, ArrowUp: this.#active - 1, PageDown: this.#active + screen, PageUp: this.#active - screen, Home: 0, End: last }[event.key];
    if (to !== undefined && last >= 0) {
      event.preventDefault();
      this.#active = Math.max(0, Math.min(last, to));
      this.#reveal();
      this.draw();
    } else if (event.key === 'Enter' && this.#locks[this.#active]) {
      event.preventDefault();
      opened(this.#locks[this.#active].name);
    }
  }

  #reveal() {
    const { height } = this;
    const top = this.body.getBoundingClientRect().top + this.#active * height;
    const covered = this.node.firstElementChild.getBoundingClientRect().bottom;
    if (top < covered) scrollBy(0, top - covered);
    else if (top + height > innerHeight - 8) scrollBy(0, top + height - innerHeight + 8);
  }
}
