// The protocol step by step, with answers made up here.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, Denied, Lost, TenureError, Unavailable } from '../dist/index.js';

const HELD = { token: 7, number: 1, expires_in_ms: 9_890, state: 'held' };

/** A client whose requests are answered by a script, each once; `null` is no answer. */
function scripted(t, script, urls = 'http://127.0.0.1:1') {
  const posts = [];
  const answer = async (url, { body }) => {
    const path = new URL(url).pathname;
    if (path === '/v1/release' && script[0]?.path !== path) return Response.json({ released: true });
    const asked = JSON.parse(body);
    posts.push({ path, ...asked });
    const told = script.shift();
    if (!told) throw new TypeError('fetch failed');
    const { name, owner, claim } = asked;
    return Response.json({ ...(told.status < 400 ? { name, owner, claim } : {}), ...told.body }, { status: told.status });
  };
  const client = new Client({ urls, fetch: answer, silenceMs: 5_000 });
  t.after(() => client.close());
  return { client, posts };
}

const claims = (posts) => new Set(posts.map(({ owner, claim }) => `${owner} ${claim}`)).size;

test('the deadline counts from before the request was sent', async (t) => {
  const client = new Client({ urls: 'http://127.0.0.1:1', fetch: async (url, { body }) => {
    if (url.endsWith('/v1/acquire')) await new Promise((resolve) => { setTimeout(resolve, 300); });
    const { name, owner, claim } = JSON.parse(body);
    return Response.json(url.endsWith('/v1/release') ? { released: true } : { name, owner, claim, ...HELD });
  } });
  t.after(() => client.close());
  const lease = await client.lock('n').acquire();
  assert.ok(lease.remaining() <= 9_890 - 295, `${lease.remaining()}`);
});

test('waiting goes on with the same claim and keeps its place', async (t) => {
  const { client, posts } = scripted(t, [{ status: 202 }, { status: 202 }, { status: 200, body: HELD }]);
  assert.equal((await client.lock('n').acquire()).token, 7);
  assert.equal(claims(posts), 1);
  assert.deepEqual(posts.map(({ queue, wait_ms: wait }) => [queue, wait]), [[true, 50_000], [true, 50_000], [true, 50_000]]);
});

test('where there is another service, none is waited for longer than the place lasts', async (t) => {
  const { client, posts } = scripted(t, [{ status: 202 }, null, { status: 200, body: HELD }], ['http://127.0.0.1:1', 'http://127.0.0.1:2']);
  await client.lock('n', { ttlMs: 9_000 }).acquire();
  assert.deepEqual(posts.map(({ queue, wait_ms: wait }) => [queue, wait]), [[true, 3_000], [true, 3_000], [true, 3_000]]);
  assert.equal(claims(posts), 1);
});

test('the last wait lets the service end the claim', async (t) => {
  const { client, posts } = scripted(t, [{ status: 200, body: HELD }]);
  await client.lock('n').acquire({ timeoutMs: 5_000 });
  assert.equal(posts[0].queue, undefined);
  assert.ok(posts[0].wait_ms > 4_900 && posts[0].wait_ms <= 5_000);
});

test('a request without an answer is repeated as it was', async (t) => {
  const { client, posts } = scripted(t, [null, { status: 503 }, { status: 200, body: HELD }]);
  assert.ok(await client.lock('n').acquire());
  assert.equal(claims(posts), 1);
  const tried = scripted(t, [null, { status: 409, body: { kind: 'busy' } }]);
  assert.equal(await tried.client.lock('n').tryAcquire(), null);
  assert.equal(claims(tried.posts), 1);
});

test('superseded once is repeated, twice is an error', async (t) => {
  const superseded = { status: 409, body: { kind: 'superseded' } };
  assert.ok(await scripted(t, [superseded, { status: 200, body: HELD }]).client.lock('n').acquire());
  await assert.rejects(scripted(t, [superseded, superseded]).client.lock('n').acquire(), { kind: 'superseded' });
});

test('what is left of a lost holder is sent back', async (t) => {
  const { client, posts } = scripted(t, [{ status: 503, body: { holder_expires_in_ms: 1_234 } }, { status: 200, body: HELD }]);
  await client.lock('n').acquire();
  assert.equal(posts[0].presumed_ms, undefined);
  assert.ok(posts[1].presumed_ms > 0 && posts[1].presumed_ms <= 1_234, posts[1].presumed_ms);
});

test('what is left of a lost holder is not forgotten by the next failure', async (t) => {
  const told = [{ holder_expires_in_ms: 90_000 }, {}, { holder_expires_in_ms: 500 }, { holder_expires_in_ms: 120_000 }, {}];
  const { client, posts } = scripted(t, [...told.map((body) => ({ status: 503, body })), { status: 200, body: HELD }]);
  await client.lock('n').acquire();
  const sent = posts.map((post) => post.presumed_ms);
  assert.ok(sent.slice(1, 4).every((ms) => ms > 80_000 && ms <= 90_000), `${sent}`);
  assert.ok(sent.slice(4).every((ms) => ms > 110_000 && ms <= 120_000), `${sent}`);
});

test('who does not wait presumes nothing', async (t) => {
  const { client, posts } = scripted(t, [{ status: 503, body: { holder_expires_in_ms: 1_234 } }, { status: 409, body: { kind: 'busy' } }]);
  assert.equal(await client.lock('n').tryAcquire(), null);
  assert.equal(posts[1].presumed_ms, undefined, 'the service refuses it there');
});

test('an answer about another claim is not believed', async (t) => {
  for (const [status, kind] of [[200], [202], [409, 'busy'], [410, 'broken']]) {
    for (const wrong of [{ owner: 'another' }, { claim: 'another' }, { name: 'another' }]) {
      const { client, posts } = scripted(t, [{ status, body: { ...HELD, token: 1, kind, ...wrong } }, { status: 200, body: HELD }]);
      assert.equal((await client.lock('n').acquire()).token, 7);
      assert.equal(posts.length, 2);
      assert.equal(claims(posts), 1);
    }
  }
  const { client, posts } = scripted(t, [{ status: 200, body: { ...HELD, owner: null } }, { status: 200, body: HELD }]);
  await client.lock('n').acquire();
  assert.equal(posts.length, 2, 'a grant has to name its claim');
});

test('a grant that does not say how long is not believed', async (t) => {
  for (const wrong of [{ expires_in_ms: null }, { expires_in_ms: '9890' }, { expires_in_ms: true }, { expires_in_ms: -1 }, { expires_in_ms: 1e300 }, { token: '7' }]) {
    const { client, posts } = scripted(t, [{ status: 200, body: { ...HELD, ...wrong } }, { status: 200, body: HELD }]);
    assert.equal((await client.lock('n').acquire()).token, 7);
    assert.equal(posts.length, 2, JSON.stringify(wrong));
  }
});

test('a release believes only its own answer', async (t) => {
  const path = '/v1/release';
  const { client, posts } = scripted(t, [{ status: 200, body: HELD }, { path, status: 200, body: { ...HELD, owner: 'another' } }, { path, status: 200 }, { path, status: 200, body: { released: true } }]);
  assert.equal(await (await client.lock('n').acquire()).release(), true);
  assert.equal(posts.length, 4);
});

test('a grant with little left is renewed before work starts', async (t) => {
  const { client, posts } = scripted(t, [{ status: 200, body: { ...HELD, expires_in_ms: 4_000 } }, { status: 200, body: HELD }]);
  const lease = await client.lock('n').acquire();
  assert.deepEqual(posts.map((post) => post.path), ['/v1/acquire', '/v1/renew']);
  assert.ok(lease.remaining() > 9_000);
});

test('a grant that is gone when it is renewed is made anew', async (t) => {
  const { client, posts } = scripted(t, [{ status: 200, body: { ...HELD, expires_in_ms: 0 } }, { status: 410, body: { kind: 'lost' } }, { status: 200, body: HELD }]);
  const lease = await client.lock('n').acquire();
  assert.equal(claims(posts), 2);
  assert.equal(lease.owner, posts[2].owner);
});

test('a store without a queue is asked without one', async (t) => {
  const { client, posts } = scripted(t, [{ status: 400, body: { kind: 'invalid', field: 'queue' } }, { status: 409, body: { kind: 'timeout' } }, { status: 200, body: HELD }]);
  await client.lock('n').acquire();
  assert.deepEqual(posts.map((post) => post.queue), [true, undefined, undefined]);
});

test('refusals are told at once, with what the service says', async (t) => {
  for (const [status, kind, made] of [[400, 'invalid', TenureError], [401, 'unauthorized', Denied], [403, 'forbidden', Denied], [409, 'conflict', TenureError], [410, 'broken', Lost]]) {
    const { client } = scripted(t, [{ status, body: { kind, message: 'no', hint: 'do this', request_id: 'r1' } }]);
    await assert.rejects(client.lock('n').acquire(), (error) => {
      assert.ok(error instanceof made);
      assert.deepEqual([error.kind, error.hint, error.requestId, error.status], [kind, 'do this', 'r1', status]);
      return true;
    });
  }
});

test('what is not the service is not believed', async (t) => {
  const client = new Client({ urls: 'http://127.0.0.1:1', silenceMs: 100, fetch: async () => new Response('<html>', { status: 200 }) });
  t.after(() => client.close());
  await assert.rejects(client.lock('n').tryAcquire(), Unavailable);
});
