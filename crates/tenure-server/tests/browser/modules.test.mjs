// The dashboard's parts that draw nothing: what is made of metrics, and of listings and events.
//
//   node --test modules.test.mjs

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

// Modules without imports: as they stand, without a package around them.
const load = (name) => import(`data:text/javascript,${encodeURIComponent(readFileSync(new URL(`../../assets/${name}`, import.meta.url), 'utf8'))}`);
const { parse, point, quantile, Series } = await load('metrics.js');
const { beginning } = await load('memo.js');
const { chosen, lease, Locks } = await load('locks.js');

const text = (granted, buckets, more = '') => [
  '# TYPE tenure_acquire_total counter',
  `tenure_acquire_total{store="redis",group="a}b,le=\\"9\\"",result="granted"} ${granted}`,
  'tenure_acquire_total{store="redis",result="busy"} 2',
  ...Object.entries(buckets).map(([le, count]) => `tenure_acquire_wait_seconds_bucket{contended="false",le="${le}"} ${count}`),
  'tenure_store_up{store="redis"} 1', 'process_cpu_seconds_total 12', 'tenure_nonsense', more].join('\n');

test('a scrape is summed over labels, and what is not ours is passed over', () => {
  const sample = parse(text(5, { 0.1: 3, 1: 4, '+Inf': 4 }, 'tenure_acquire_total{result="granted"} 7'), 0);
  assert.equal(sample.granted, 12);
  assert.equal(sample.refused, 2);
  assert.equal(sample.up, 1);
  assert.deepEqual([...sample.histograms.acquire_wait].sort((a, b) => a[0] - b[0]), [[0.1, 3], [1, 4], [Infinity, 4]]);
});

test('quantiles are those of what was added, as Prometheus reckons them', () => {
  const before = new Map([[1, 10], [2, 10], [Infinity, 10]]);
  const now = new Map([[1, 10], [2, 20], [Infinity, 20]]);
  assert.equal(quantile(0.5, now, before), 1.5);
  assert.equal(quantile(0.99, now, before), 1.99);
  assert.equal(quantile(0.5, before, before), null);
  assert.equal(quantile(0.5, undefined, undefined), null);
  assert.equal(quantile(0.5, new Map([[1, 0], [Infinity, 4]]), undefined), 1, 'beyond the last bound it is the last bound');
});

test('a service that was restarted counts from zero, and no rate is below it', () => {
  const [before, now] = [parse(text(100, { 1: 50, '+Inf': 50 }), 0), parse(text(10, { 1: 2, '+Inf': 2 }), 2_000)];
  const made = point(now, before);
  assert.equal(made.granted, 5);
  assert.ok(made.wait50 > 0 && made.wait50 <= 1);
  const series = new Series();
  for (let index = 0; index < 400; index += 1) series.add(text(index, {}), index * 3_000, { held: 1 });
  assert.equal(series.points.length, 300);
  assert.ok(Math.abs(series.last.granted - 1 / 3) < 1e-9);
});

const held = (name, more = {}) => ({ name, capacity: 1, holders: [{ owner: 'o1', label: 'web-1', token: 5, shape: 'exclusive', units: 1, held_ms: 10, expires_in_ms: 9_000, renewed_ms: 1_000, ...more }], waiters: [] });
const event = (kind, name, owner, more = {}) => ({ event: kind, name, owner, label: owner, token: null, ...more });

test('events move locks on, and a listing has the last word', () => {
  const locks = new Locks();
  locks.begin();
  locks.take([held('a/1'), held('a/2'), held('b')]);
  assert.deepEqual([locks.size, locks.held, locks.groups().get('a')], [3, 3, 2]);
  locks.hear(event('waiting', 'a/1', 'o2'));
  locks.hear(event('waiting', 'a/1', 'o2'));
  assert.equal(locks.get('a/1').waiters.length, 1);
  locks.hear(event('released', 'a/1', 'o1', { token: 5 }));
  locks.hear(event('granted', 'a/1', 'o2', { token: 6 }));
  assert.deepEqual(locks.get('a/1').holders.map((one) => one.token), [6]);
  assert.deepEqual([locks.held, locks.waiting], [3, 0]);
  locks.hear(event('expired', 'b', 'o1', { token: 5 }));
  assert.equal(locks.get('b'), undefined);
  const cycle = locks.begin();
  locks.take([held('a/1', { owner: 'o2', token: 6 })]);
  locks.hear(event('granted', 'new', 'o9', { token: 9 }));
  locks.sweep(cycle);
  assert.deepEqual([...locks.values()].map((lock) => lock.name), ['a/1', 'new']);
});

test('a row that is shown keeps its lock, and hears of every look', () => {
  const locks = new Locks();
  locks.take([held('a')]);
  const [lock, version] = [locks.get('a'), locks.version];
  const { revision } = lock;
  locks.take([held('a', { expires_in_ms: 8_000, renewed_ms: 2_000 })]);
  assert.equal(locks.get('a'), lock);
  assert.notEqual(lock.revision, revision);
  assert.equal(locks.version, version, 'nothing is sorted again for a renewal');
});

test('locks are found by name and holder, in order', () => {
  const locks = new Locks();
  locks.take([held('b/2'), held('a/1', { label: 'needle' }), held('a/2', { expires_in_ms: 10 })]);
  const names = (choice) => chosen(locks, { search: '', group: null, sort: 'name', reverse: false, ...choice }).map((lock) => lock.name);
  assert.deepEqual(names({}), ['a/1', 'a/2', 'b/2']);
  assert.deepEqual(names({ reverse: true }), ['b/2', 'a/2', 'a/1']);
  assert.deepEqual(names({ search: 'NEEDLE a/' }), ['a/1']);
  assert.deepEqual(names({ group: 'a' }), ['a/1', 'a/2']);
  assert.equal(names({ sort: 'lease' })[0], 'a/2');
});

test('a lease is late by what a look says, not by how long ago that was', () => {
  const claim = { ends: 10_000, looked: 1_000, span: 10_000 };
  assert.deepEqual(lease(claim, 5_000), { left: 5_000, part: 0.5, state: 'full' });
  assert.equal(lease(claim, 9_900).state, 'full');
  assert.deepEqual(lease(claim, 10_001), { left: null, part: 0, state: 'full' });
  assert.equal(lease({ ...claim, looked: 6_000 }, 6_000).state, 'late');
  assert.equal(lease({ ...claim, looked: 9_000 }, 9_000).state, 'thin');
  assert.equal(lease({ ...claim, looked: 10_000 }, 10_500).state, 'over');
  assert.equal(lease({ ...claim, ends: null }, 0).state, 'unknown');
});

test('a memo is shown as text only if it is text, and not all of a long one', () => {
  const bytes = (text) => new TextEncoder().encode(text);
  assert.equal(beginning(bytes('<b>grüße</b>\n')), '<b>grüße</b>\n');
  assert.equal(beginning(bytes('')), '');
  assert.equal(beginning(bytes('a\0b')), null);
  assert.equal(beginning(Uint8Array.of(0xff, 0xfe)), null);
  assert.equal(beginning(bytes('x'.repeat(500))), 'x'.repeat(500));
  assert.equal(beginning(bytes('x'.repeat(501))), `${'x'.repeat(500)}…`);
  assert.equal(beginning(bytes('x\n'.repeat(30))), `${Array(20).fill('x').join('\n')}…`);
  // No character is cut in two.
  assert.equal(beginning(bytes('🔒'.repeat(501))), `${'🔒'.repeat(500)}…`);
});
