import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, Lost, TenureError, Unavailable } from '../dist/index.js';
import { breakLock, fresh, proxy, SERVICE, until } from './harness.mjs';

const connect = (t, urls = SERVICE) => {
  const client = new Client({ urls });
  t.after(() => client.close());
  return client;
};
const text = (memo) => new TextDecoder().decode(memo.value);

test('what the holder writes anyone reads', async (t) => {
  const client = connect(t);
  const name = fresh();
  assert.equal(await client.memo(name), null);
  const value = Uint8Array.from({ length: 300 }, (_, at) => at % 256);
  const lease = await client.lock(name).acquire();
  const first = await lease.writeMemo(value);
  const memo = await client.memo(name);
  assert.deepEqual([...memo.value], [...value]);
  assert.deepEqual([memo.token, memo.version, memo.kind], [lease.token, first, 'user']);
  assert.ok(memo.ageMs >= 0 && memo.ageMs < 60_000);
  // One after the other, without waiting for each.
  const versions = await Promise.all(['a', 'b', 'grüße'].map((one) => lease.writeMemo(one)));
  assert.deepEqual(versions, [...new Set(versions)].sort((one, other) => one - other));
  await lease.release();
  const other = connect(t);
  assert.equal(text(await other.memo(name)), 'grüße');
  // Over what another holder wrote, whose version it does not know.
  await other.lock(name).run((next) => next.writeMemo(''));
  const last = await client.memo(name);
  assert.equal(last.value.length, 0);
  assert.ok(last.token > memo.token && last.version > versions[2]);
});

test('a memo ends when its time is over', async (t) => {
  const client = connect(t);
  const name = fresh();
  await client.lock(name).run(async (lease) => {
    await lease.writeMemo('for a moment', { keepMs: 300 });
    await until('it has ended', async () => (await client.memo(name)) === null);
    await lease.writeMemo('again');
  });
});

test('whoever was broken writes nothing and is told', async (t) => {
  const client = connect(t);
  const name = fresh();
  const lease = await client.lock(name, { ttlMs: 60_000 }).acquire();
  await lease.writeMemo('kept');
  await breakLock(name, lease.token, 'by hand');
  await assert.rejects(lease.writeMemo('late'), Lost);
  assert.ok(lease.signal.aborted && !lease.isHeld());
  assert.equal(text(await client.memo(name)), 'kept');
});

test('what cannot be written is refused', async (t) => {
  const client = connect(t);
  const name = fresh();
  const lease = await client.lock(name).acquire();
  await lease.writeMemo(new Uint8Array(65_536).fill(255));
  await assert.rejects(lease.writeMemo(new Uint8Array(65_537)), (error) => {
    assert.ok(error instanceof TenureError && error.kind === 'too_large' && error.certainty === 'not_applied', error);
    return true;
  });
  // One that failed does not keep the next from being written.
  await lease.writeMemo('next');
  await lease.release();
  await assert.rejects(lease.writeMemo('released'), Lost);
  await client.lock(`${name}/shared`, { shared: true }).run(async (reader) => {
    await assert.rejects(reader.writeMemo('reader'), (error) => error.kind === 'not_held');
    assert.ok(reader.isHeld());
  });
});

test('a write whose answer was lost is one write', async (t) => {
  const between = await proxy(t);
  const client = connect(t, between.url);
  const name = fresh();
  const lease = await client.lock(name, { ttlMs: 60_000 }).acquire();
  const before = await lease.writeMemo('before');
  between.requests.length = 0;
  between.cutAnswers = 1;
  const version = await lease.writeMemo('once');
  assert.equal(between.requests.filter((request) => request.startsWith('PUT ')).length, 2, 'it was repeated');
  const memo = await client.memo(name);
  assert.deepEqual([text(memo), memo.version], ['once', version]);
  assert.ok(version > before);
  await lease.release();
});

/** A client that holds `n`, and whose other requests are answered by a script, each once; `null` is no answer. */
async function scripted(t, script, options = {}) {
  const asked = [];
  const client = new Client({ urls: 'http://127.0.0.1:1', ...options, fetch: async (url, { method, body }) => {
    const { pathname, search } = new URL(url);
    if (pathname === '/v1/release') return Response.json({ released: true });
    if (pathname !== '/v1/memo') {
      const { name, owner, claim } = JSON.parse(body);
      return Response.json({ name, owner, claim, token: 7, number: 1, expires_in_ms: 59_000, state: 'held' });
    }
    asked.push({ method, search, ...(body ? JSON.parse(body) : {}) });
    const told = script.shift();
    if (!told) throw new TypeError('fetch failed');
    return told instanceof Response ? told : Response.json(told.body, { status: told.status });
  } });
  t.after(() => client.close());
  return { client, asked, lease: await client.lock('n', { ttlMs: 60_000 }).acquire() };
}
const kept = (headers = {}) => new Response('x', { headers: {
  'tenure-memo-token': '7', 'tenure-memo-version': '9', 'tenure-memo-age-ms': '1500', 'tenure-memo-kind': 'user', ...headers,
} });

test('a write believes only its own answer and is repeated as it was', async (t) => {
  const others = [{ name: 'another' }, { owner: 'another' }, { claim: 'another' }];
  const script = [
    ...[200, 409, 410, 412].flatMap((status) => others.map((other) => ({ status, body: { name: 'n', version: 5, ...other } }))),
    { status: 200, body: { version: 5 } },
    ...[null, true, '5', -1, 5.5].map((version) => ({ status: 200, body: { name: 'n', version } })),
    { status: 412, body: { kind: 'changed' } }, { status: 503, body: {} }, null,
  ];
  await Promise.all(script.map(async (wrong) => {
    const { asked, lease } = await scripted(t, [wrong, { status: 200, body: { name: 'n', version: 6 } }]);
    assert.equal(await lease.writeMemo('x'), 6, JSON.stringify(wrong));
    assert.equal(asked.length, 2);
    assert.deepEqual(asked[0], asked[1]);
    assert.ok(lease.isHeld());
  }));
});

test('a write learns which version is there', async (t) => {
  const { asked, lease } = await scripted(t, [{ status: 412, body: { version: 4 } }, { status: 200, body: { name: 'n', version: 5 } }]);
  assert.equal(await lease.writeMemo('x'), 5);
  assert.deepEqual(asked.map(({ after }) => after), [0, 4]);
  assert.equal(asked[0].write, asked[1].write);
  const changing = await scripted(t, Array.from({ length: 20 }, (_, version) => ({ status: 412, body: { version, kind: 'changed' } })));
  await assert.rejects(changing.lease.writeMemo('x'), { kind: 'changed', certainty: 'not_applied' });
});

test('a refusal after a write without an answer does not say that nothing was written', async (t) => {
  const lost = { status: 410, body: { kind: 'lost' } };
  for (const [script, certainty] of [[[lost], 'not_applied'], [[null, lost], 'unknown'], [[{ status: 410, body: { owner: 'another' } }, lost], 'unknown']]) {
    const { lease } = await scripted(t, script);
    await assert.rejects(lease.writeMemo('x'), (error) => error instanceof Lost && error.certainty === certainty);
    assert.ok(lease.signal.aborted);
  }
});

test('a read believes only its own answer', async (t) => {
  const script = [
    ...['token', 'version', 'age-ms'].flatMap((key) => ['', '-1', 'x', '1.5'].map((value) => kept({ [`tenure-memo-${key}`]: value }))),
    { status: 200, body: { name: 'n' } }, { status: 404, body: { kind: 'no_memo', name: 'another' } }, { status: 429, body: {} }, null,
  ];
  await Promise.all(script.map(async (wrong) => {
    const { asked, client } = await scripted(t, [wrong, kept()]);
    const memo = await client.memo('a/ü&?');
    assert.deepEqual([text(memo), memo.token, memo.version, memo.ageMs, memo.kind], ['x', 7, 9, 1_500, 'user']);
    assert.deepEqual(asked, Array(2).fill({ method: 'GET', search: '?name=a%2F%C3%BC%26%3F' }));
  }));
  const { client } = await scripted(t, [{ status: 404, body: { kind: 'not_found' } }]);
  await assert.rejects(client.memo('n'), TenureError);
});

test('nothing is asked for longer than it may take', async (t) => {
  const between = await proxy(t);
  const client = new Client({ urls: between.url, silenceMs: 1_000 });
  const lease = await client.lock(fresh(), { ttlMs: 60_000 }).acquire();
  between.freeze();
  for (const ask of [() => lease.writeMemo('x'), () => client.memo(lease.name)]) {
    const began = performance.now();
    await assert.rejects(ask(), Unavailable);
    const took = performance.now() - began;
    assert.ok(took > 900 && took < 5_000, `${took}`);
  }
  assert.ok(lease.isHeld());
  // Nobody answers the release: the claim ends by its ttl.
});

test('what is no value, time, option or name is refused before it is sent', async (t) => {
  const { asked, client, lease } = await scripted(t, []);
  for (const value of [5, null, ['x'], '\ud800']) await assert.rejects(lease.writeMemo(value), { field: 'value' });
  for (const keepMs of [0, -1, NaN, Infinity, '1']) await assert.rejects(lease.writeMemo('x', { keepMs }), { field: 'keepMs' });
  await assert.rejects(lease.writeMemo('x', { keep: 5 }), { field: 'keep' });
  for (const name of ['', undefined, 5, '\ud800']) await assert.rejects(client.memo(name), { field: 'name' });
  assert.deepEqual(asked, []);
});

test('a value may change after it was given', async (t) => {
  const { asked, lease } = await scripted(t, [1, 2].map((version) => ({ status: 200, body: { name: 'n', version } })));
  const value = new Uint8Array([1]);
  const writes = [lease.writeMemo('first'), lease.writeMemo(value)];
  value[0] = 2;
  assert.deepEqual(await Promise.all(writes), [1, 2]);
  assert.equal(asked[1].value, 'AQ==');
});

test('a closed client reads nothing', async () => {
  const client = new Client({ urls: SERVICE });
  await client.close();
  await assert.rejects(client.memo('n'), Unavailable);
});
