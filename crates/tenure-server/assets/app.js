// The page: which view is seen, and what moves it.

import * as api from './api.js';
import { Charts } from './charts.js';
import { byId, el, setText, show } from './dom.js';
import { clock, count, plural, span } from './format.js';
import { Grid, hashOf } from './grid.js';
import { chosen, Locks } from './locks.js';
import { LockPage } from './lock.js';
import { Series } from './metrics.js';
import { Sync } from './sync.js';

const FEED_MAX = 500;
const FEED_SHOWN = 200;
const GROUPS_MAX = 24;
const TICK_MS = 250;
const SCRAPE_MS = 3_000;
/** At least so long between two sortings of all locks: between them rows only move on in time. */
const ARRANGE_MS = 200;

const locks = new Locks();
const sync = new Sync(locks);
const series = new Series();
const charts = new Charts(series);
const feed = [];
let store = null;
let view = 'locks';
const filter = { search: '', group: null };

const grid = new Grid({ sorted: () => arrange(true), opened: (name) => { location.hash = hashOf(name); } });
const page = new LockPage({ locks, feed, store: () => store });

// --- views -----------------------------------------------------------------------------------------------------------

function route() {
  const [, name, rest] = /^#\/([^/]*)\/?(.*)$/.exec(location.hash) ?? [null, '', ''];
  const asked = sync.state === 'token' ? 'token' : { '': 'locks', charts: 'charts', activity: 'activity', lock: 'lock' }[name] ?? 'locks';
  const target = asked === 'lock' ? decode(rest) : null;
  if (asked === view && (asked !== 'lock' || page.name === target) && !byId(`view-${view}`).hidden) return;
  view = asked;
  for (const one of ['locks', 'charts', 'activity', 'lock', 'token']) show(byId(`view-${one}`), one === view);
  for (const link of document.querySelectorAll('.views a')) {
    if (link.dataset.view === view || (view === 'lock' && link.dataset.view === 'locks')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  // What was asked of another page is not asked of this one.
  byId('break').close();
  if (view === 'lock') { page.open(target); scrollTo(0, 0); byId('lock-title').focus({ preventScroll: true }); } else page.close();
  if (view === 'locks') { scrollTo(0, kept); arrange(true); }
  if (view === 'activity') drawFeed();
  if (view === 'token') byId('token-field').focus();
  charts.draw(view);
  setText(document.querySelector('title'), view === 'lock' ? `${target} – tenure` : 'tenure');
}

const decode = (text) => { try { return decodeURIComponent(text); } catch { return text; } };

// Where the table was scrolled to when a lock was opened from it.
let kept = 0;
addEventListener('scroll', () => { if (view === 'locks') kept = scrollY; }, { passive: true });

// --- the table of locks ----------------------------------------------------------------------------------------------

let arranged = { version: -1, at: 0 };
let later = null;

/** Sorts and filters again if something changed, and not more often than needed. */
function arrange(force = false) {
  if (view !== 'locks') return;
  const since = performance.now() - arranged.at;
  const moves = grid.sort.by !== 'name' && grid.sort.by !== 'holder';
  if (!force && arranged.version === locks.version && !(moves && since > 1_000)) { grid.ask(); return; }
  if (!force && since < ARRANGE_MS) {
    later ??= setTimeout(() => { later = null; arrange(); }, ARRANGE_MS - since);
    return;
  }
  const found = chosen(locks, { ...filter, sort: grid.sort.by, reverse: grid.sort.reverse });
  arranged = { version: locks.version, at: performance.now() };
  grid.set(found);
  drawGroups();
  const whole = found.length === locks.size;
  setText(byId('count'), sync.listed || locks.size ? `${whole ? plural(locks.size, 'lock') : `${count(found.length)} of ${plural(locks.size, 'lock')}`}, ${count(locks.waiting)} waiting` : '');
  const none = found.length === 0;
  show(byId('grid'), !none);
  show(byId('locks-empty'), none);
  if (none) drawEmpty();
}

function drawEmpty() {
  const box = byId('locks-empty');
  if (!sync.listed) box.replaceChildren(el('p', {}, 'Looking…'));
  else if (locks.size) {
    box.replaceChildren(el('h2', {}, 'No lock fits'), el('p', {}, 'Free locks are not listed: a name is here while it is held or waited for.'),
      el('button', { type: 'button', on: { click: clear } }, 'Show all'));
  } else {
    box.replaceChildren(el('h2', {}, 'Nothing is locked'), el('p', {}, 'A name appears here as soon as somebody holds it or waits for it. Try:'),
      el('pre', {}, `tenure run --on ${location.origin} hello -- sleep 30`));
  }
}

function clear() {
  filter.search = '';
  filter.group = null;
  byId('search').value = '';
  arrange(true);
}

let drawnGroups = '';
function drawGroups() {
  const all = [...locks.groups()].filter(([name]) => name !== '').sort((one, other) => other[1] - one[1] || (one[0] < other[0] ? -1 : 1));
  const shown = all.slice(0, GROUPS_MAX);
  if (filter.group !== null && !shown.some(([name]) => name === filter.group)) shown.unshift([filter.group, locks.groups().get(filter.group) ?? 0]);
  const key = JSON.stringify([shown, filter.group, all.length]);
  if (key === drawnGroups) return;
  drawnGroups = key;
  const focused = document.activeElement?.dataset?.group;
  byId('groups').replaceChildren(...shown.map(([name, number]) => el('button', {
    type: 'button', class: 'chip', 'aria-pressed': String(filter.group === name), 'data-group': name,
    on: { click: () => { filter.group = filter.group === name ? null : name; scrollTo(0, 0); arrange(true); } },
  }, `${name}/`, el('span', {}, count(number)))), ...(all.length > GROUPS_MAX ? [el('span', { class: 'quiet' }, `and ${count(all.length - GROUPS_MAX)} more`)] : []));
  if (focused !== undefined) [...byId('groups').children].find((one) => one.dataset.group === focused)?.focus();
}

byId('search').addEventListener('input', (event) => { filter.search = event.target.value; arrange(true); });
byId('search').addEventListener('keydown', (event) => {
  if (event.key === 'Escape') { clear(); event.target.blur(); }
  if (event.key === 'ArrowDown') { event.preventDefault(); byId('grid').focus(); }
});
document.addEventListener('keydown', (event) => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea, dialog')) return;
  if (view === 'token') return;
  event.preventDefault();
  if (view !== 'locks') { location.hash = '#/'; route(); }
  // At once: what is typed next belongs to the search, however busy the page is.
  byId('search').focus();
});

// --- what happened ---------------------------------------------------------------------------------------------------

const rest = (event) => [
  event.token && event.event === 'granted' ? `token ${event.token}` : null,
  event.waited_ms && event.event !== 'waiting' ? `waited ${span(event.waited_ms)}` : null,
  event.held_ms && event.event !== 'granted' ? `held ${span(event.held_ms)}` : null,
  event.event === 'broken' ? `by ${event.by ?? 'somebody'}${event.reason ? `: ${event.reason}` : ''}` : null,
].filter(Boolean).join(', ');

function drawFeed() {
  show(byId('activity-empty'), feed.length === 0);
  const drawn = feed.slice(0, FEED_SHOWN);
  byId('activity').replaceChildren(...drawn.map((event) => (event.node ??= el('li', {},
    el('time', {}, clock(event.seen_at)), el('span', { class: `kind ${event.event}` }, event.event),
    el('a', { class: 'name', href: hashOf(event.name) }, event.name), el('span', { class: 'who' }, event.label ?? ''), el('span', { class: 'quiet' }, rest(event))))));
}

let fed = false;
sync.addEventListener('told', ({ detail }) => {
  const at = Number.isFinite(detail.at_ms) ? detail.at_ms : Date.parse(detail.at);
  feed.unshift({ ...detail, seen_at: Number.isFinite(at) ? at : Date.now() });
  if (feed.length > FEED_MAX) feed.length = FEED_MAX;
  fed = true;
});

sync.addEventListener('locks', () => arrange());

// --- the connection --------------------------------------------------------------------------------------------------

const WORDS = { connecting: 'Connecting', live: 'Live', lost: 'Connection lost', token: 'Token needed', denied: 'Refused' };

function drawState() {
  const away = sync.storeAway && (sync.state === 'live' || sync.state === 'connecting');
  byId('link').dataset.state = away ? 'away' : sync.state;
  setText(byId('link-text'), away ? 'Store away' : WORDS[sync.state]);
  const banner = byId('banner');
  const ago = sync.lastHeard ? ` What is shown was seen at ${clock(sync.lastHeard)}.` : '';
  const text = sync.state === 'lost' ? `The connection to the service is lost. Trying again.${ago}`
    : sync.state === 'denied' ? 'This token has no right to read locks.'
      : away ? `The service does not reach its store. Locks may be held on, and no claim is granted.${ago}` : '';
  setText(banner, text);
  show(banner, text !== '');
  document.body.classList.toggle('stale', sync.state === 'lost' || away);
}

sync.addEventListener('state', () => {
  drawState();
  if (sync.state === 'live') { readStore(); arrange(true); }
  if (sync.state === 'token') setText(byId('token-note'), api.bearer() ? 'That token was refused. It may have been changed or mistyped.' : 'It is kept for this tab only, and sent to this service alone.');
  route();
});

byId('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  api.bearer(byId('token-field').value.trim());
  byId('token-field').value = '';
  sync.start();
});

async function readStore() {
  try {
    store = await api.store();
    setText(byId('store'), store.url ?? store.store ?? '');
    byId('store').title = [store.store, store.caller ? `you are ${store.caller}` : null].filter(Boolean).join('; ');
  } catch {
    // told by the connection's state; asked again when that mends
  }
}

/** The token that may not read metrics: it is not asked with again. */
let refusedAs;

async function scrape() {
  if (sync.state === 'live' && refusedAs !== (api.bearer() ?? '')) {
    try {
      series.add(await api.metrics(), Date.now(), { held: locks.held, waiting: locks.waiting });
      charts.allow(true);
      charts.note(series.points.length < 5 ? 'A sample is taken every three seconds and kept while this page is open.' : '');
    } catch (error) {
      const refused = error.status === 401 || error.status === 403;
      charts.allow(!refused);
      if (refused) refusedAs = api.bearer() ?? '';
      if (refused) charts.note('Metrics need a token with the right to read all names.');
    }
    charts.draw(view);
  }
  setTimeout(scrape, document.hidden ? SCRAPE_MS * 5 : SCRAPE_MS);
}

// --- time ------------------------------------------------------------------------------------------------------------

setInterval(() => {
  if (document.hidden) return;
  if (view === 'locks') { grid.tick(); if (grid.sort.by !== 'name') arrange(); }
  if (view === 'lock') page.tick();
  if (fed && view === 'activity') { fed = false; drawFeed(); }
}, TICK_MS);

byId('skip').addEventListener('click', (event) => { event.preventDefault(); byId('main').focus(); });
addEventListener('hashchange', route);
route();
drawState();
sync.start();
scrape();
