// Renewals that are slow, garbled or many, and a client that is closed, with a service made up here.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, Unavailable } from '../dist/index.js';
import { until } from './harness.mjs';

const held = ({ name, owner, claim, ttl_ms: ttl }) => ({ name, owner, claim, state: 'held', token: 7, number: 1, expires_in_ms: Math.floor(ttl * 0.98) });

/** A client of a service that grants everything; `instead` may answer otherwise, or wait. */
function granting(t, instead = () => undefined) {
  const posts = [];
  const client = new Client({ urls: 'http://127.0.0.1:1', fetch: async (url, { body, signal }) => {
    const { pathname: path } = new URL(url);
    const asked = JSON.parse(body);
    posts.push({ path, bytes: Buffer.byteLength(body), ...asked });
    const cut = new Promise((_, reject) => { signal.addEventListener('abort', () => reject(signal.reason)); });
    cut.catch(() => {});
    const told = await Promise.race([instead(path, asked), cut]);
    if (told) return Response.json(told, { status: told.state === 'waiting' ? 202 : 200 });
    if (path === '/v1/release') return Response.json({ released: true });
    return Response.json(asked.locks ? { locks: asked.locks.map(held) } : held(asked));
  } });
  t.after(() => client.close());
  const renewals = (name) => posts.filter(({ locks }) => locks?.some((lock) => lock.name === name)).length;
  return { client, posts, renewals };
}

test('a renewal that is slow costs no other lease', async (t) => {
  let open;
  const opened = new Promise((resolve) => { open = resolve; });
  const { client, renewals } = granting(t, (path, { locks }) => (locks?.some(({ name }) => name === 'slow') ? opened.then(() => undefined) : undefined));
  const slow = await client.lock('slow', { ttlMs: 9_000 }).acquire(); // is asked for after 3 s, and given 1.5 s
  const healthy = await client.lock('healthy', { ttlMs: 1_500 }).acquire();
  await until('the slow one is asked for', () => renewals('slow') > 0);
  const before = renewals('healthy');
  await until('the other is renewed', () => renewals('healthy') >= before + 4 || healthy.loss);
  assert.ok(healthy.isHeld() && slow.isHeld());
  open();
});

const garbled = {
  'no time': (lock) => ({ ...held(lock), expires_in_ms: undefined }),
  'a time that is text': (lock) => ({ ...held(lock), expires_in_ms: '3600000' }),
  'another owner': (lock) => ({ ...held(lock), owner: 'another', expires_in_ms: 3_600_000 }),
  "another's loss": (lock) => ({ ...held(lock), state: 'lost', claim: 'another' }),
  'no state': (lock) => ({ ...held(lock), state: undefined }),
  nothing: () => null,
};

for (const [what, answer] of Object.entries(garbled)) {
  test(`a renewal answered by ${what} is repeated, and renewals go on`, async (t) => {
    let left = 2;
    const { client, renewals } = granting(t, (path, { locks }) => {
      if (!locks || left === 0) return undefined;
      left -= 1;
      return { locks: locks.map(answer) };
    });
    const lease = await client.lock('n', { ttlMs: 3_000 }).acquire();
    await until('it is renewed after that', () => renewals('n') >= 4 || lease.loss);
    assert.ok(lease.isHeld());
    assert.ok(lease.remaining() < 4_000, `${lease.remaining()}`);
  });
}

test('renewals go in as few requests as their ttls, the number and the length of names allow', async (t) => {
  const { client, posts } = granting(t);
  const names = Array.from({ length: 1_100 }, (_, index) => `${'\u0001'.repeat(200)}${index}`);
  await Promise.all(names.map((name) => client.lock(name, { ttlMs: 3_000 }).acquire()));
  await client.lock('other', { ttlMs: 9_000 }).acquire();
  const renewed = () => new Set(posts.flatMap(({ locks }) => locks?.map(({ name }) => name) ?? []));
  await until('all are renewed', () => renewed().size === names.length + 1);
  const batches = posts.filter(({ locks }) => locks);
  assert.ok(batches.every(({ locks, bytes }) => locks.length <= 1_000 && bytes <= 1_000_100));
  assert.ok(batches.every(({ locks }) => new Set(locks.map(({ ttl_ms: ttl }) => ttl)).size === 1));
});

test('what is granted while the client closes is given back', async (t) => {
  let [asked, answer] = [];
  const isAsked = new Promise((resolve) => { asked = resolve; });
  const answered = new Promise((resolve) => { answer = resolve; });
  const { client, posts } = granting(t, (path) => { if (path !== '/v1/acquire') return undefined; asked(); return answered; });
  const acquiring = client.lock('n').acquire();
  await isAsked;
  await client.close();
  answer();
  await assert.rejects(acquiring, (error) => error instanceof Unavailable && error.certainty === 'not_applied');
  const [ask, release] = posts;
  assert.deepEqual([release.path, release.claim], ['/v1/release', ask.claim]);
});

test('who waits when the client closes gives up', async (t) => {
  let [asked, answer] = [];
  const isAsked = new Promise((resolve) => { asked = resolve; });
  const answered = new Promise((resolve) => { answer = resolve; });
  const { client, posts } = granting(t, (path, { name, owner, claim }) => {
    if (path !== '/v1/acquire' || posts.length > 3) return undefined;
    asked();
    return answered.then(() => ({ state: 'waiting', name, owner, claim }));
  });
  const acquiring = client.lock('n').acquire();
  await isAsked;
  await client.close();
  answer();
  await assert.rejects(acquiring, Unavailable);
  assert.equal(posts.filter(({ path }) => path === '/v1/acquire').length, 1);
  await until('it is released', () => posts.some(({ path }) => path === '/v1/release'));
});
