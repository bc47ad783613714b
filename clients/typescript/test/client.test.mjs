import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, LockTimeout, Lost, TenureError, Unavailable } from '../dist/index.js';
import { breakLock, fresh, proxy, SERVICE, soon, until, view, waiters } from './harness.mjs';

const connect = (t, urls = SERVICE, more = {}) => {
  const client = new Client({ urls, ...more });
  t.after(() => client.close());
  return client;
};

test('one holds at a time, and tokens rise', async (t) => {
  const client = connect(t);
  const name = fresh();
  const first = await client.lock(name).acquire();
  assert.ok(first.isHeld() && first.remaining() > 5_000 && first.remaining() <= 10_000);
  assert.equal(await client.lock(name).tryAcquire(), null);
  assert.equal((await view(name)).holders[0].token, first.token);
  assert.equal(await first.release(), true);
  assert.equal(await first.release(), false);
  assert.equal(first.isHeld(), false);
  const second = await client.lock(name).tryAcquire();
  assert.ok(second.token > first.token);
  await second[Symbol.asyncDispose]();
  assert.deepEqual((await view(name)).holders, []);
});

test('a timeout names the holder and leaves no waiter', async (t) => {
  const client = connect(t);
  const name = fresh();
  await client.lock(name, { label: 'the holder' }).run(async () => {
    await assert.rejects(client.lock(name).acquire({ timeoutMs: 300 }), (error) => {
      assert.ok(error instanceof LockTimeout && error instanceof TenureError);
      assert.equal(error.kind, 'timeout');
      assert.match(error.holder, /the holder/);
      return true;
    });
    assert.deepEqual(await waiters(name), []);
  });
});

test('those who wait are served in order', async (t) => {
  const client = connect(t);
  const name = fresh();
  const served = [];
  const waiting = [];
  await client.lock(name).run(async () => {
    for (let index = 0; index < 5; index += 1) {
      waiting.push(client.lock(name, { label: `w${index}` }).run(() => { served.push(index); }));
      await until('it waits', async () => (await waiters(name)).length === index + 1);
    }
  });
  await Promise.all(waiting);
  assert.deepEqual(served, [0, 1, 2, 3, 4]);
});

test('a lease is kept beyond its ttl', async (t) => {
  const client = connect(t);
  const name = fresh();
  const lease = await client.lock(name, { ttlMs: 600 }).acquire();
  for (const end = Date.now() + 2_000; Date.now() < end; await soon(20)) assert.ok(lease.isHeld());
  assert.equal((await view(name)).holders[0].token, lease.token);
  await lease.release();
});

test('all leases are renewed in one request, and no name is in a URL', async (t) => {
  const way = await proxy(t);
  const client = connect(t, way.url);
  const name = fresh();
  const leases = await Promise.all(Array.from({ length: 20 }, (_, index) => client.lock(`${name}/${index}`, { ttlMs: 1_500 }).acquire()));
  way.requests.length = 0;
  await soon(2_000); // four rounds of renewals
  const heads = way.requests.filter((text) => text.startsWith('POST ')).map((text) => text.split('\r\n')[0]);
  const renewals = heads.filter((head) => head.includes('/v1/renew'));
  assert.ok(renewals.length >= 2 && renewals.length <= 12, `${renewals.length} renewals`);
  assert.ok(heads.every((head) => !head.includes('typescript')));
  assert.ok(leases.every((lease) => lease.isHeld()));
});

test('shared locks and permits', async (t) => {
  const client = connect(t);
  const name = fresh();
  const readers = [await client.lock(name, { shared: true }).acquire(), await client.lock(name, { shared: true }).acquire()];
  assert.equal(await client.lock(name).tryAcquire(), null);
  for (const reader of readers) await reader.release();
  const permits = client.semaphore(`${name}/permits`, 2);
  const taken = [await permits.acquire(), await permits.acquire()];
  assert.equal(await permits.tryAcquire(), null);
  await assert.rejects(client.semaphore(`${name}/permits`, 3).tryAcquire(), { kind: 'conflict' });
  for (const one of taken) await one.release();
});

test('a bad value is named', async (t) => {
  await assert.rejects(connect(t).lock(fresh(), { ttlMs: 1 }).tryAcquire(), { kind: 'invalid', field: 'ttl_ms' });
});

test('a loss is told before the deadline when the service is gone', async (t) => {
  const way = await proxy(t);
  const [cutOff, client] = [connect(t, way.url), connect(t)];
  const name = fresh();
  const lease = await cutOff.lock(name, { ttlMs: 5_000 }).acquire();
  const told = [];
  lease.signal.addEventListener('abort', () => told.push({ at: performance.now(), left: lease.deadlineIn() }));
  way.freeze();
  const next = await client.lock(name).acquire({ timeoutMs: 20_000 });
  const grantedAt = performance.now();
  assert.equal(told.length, 1);
  assert.ok(told[0].left > 0, `told ${told[0].left} ms before its deadline`);
  assert.ok(told[0].at < grantedAt, 'told before the next one holds');
  assert.ok(lease.loss instanceof Lost);
  assert.equal(lease.loss.kind, 'expired');
  assert.throws(() => lease.check(), Lost);
  assert.ok(next.token > lease.token);
  await assert.rejects(lease[Symbol.asyncDispose](), Lost);
  await next.release();
  way.close();
});

test('run rejects as soon as the lease is lost', async (t) => {
  const way = await proxy(t);
  const client = connect(t, way.url);
  await assert.rejects(client.lock(fresh(), { ttlMs: 500 }).run(() => { way.freeze(); return soon(60_000); }), { kind: 'expired' });
  way.close();
});

test('a break reaches the holder', async (t) => {
  const client = connect(t);
  const name = fresh();
  const lease = await client.lock(name, { ttlMs: 1_000 }).acquire();
  await breakLock(name, lease.token, 'it hangs');
  await until('it is told', () => lease.signal.aborted);
  assert.equal(lease.loss.kind, 'broken');
  assert.match(lease.loss.message, /it hangs/);
});

test('an answer that never came is asked for again', async (t) => {
  const way = await proxy(t);
  const client = connect(t, way.url);
  const name = fresh();
  way.cutAnswers = 2;
  const lease = await client.lock(name).acquire({ timeoutMs: 20_000 });
  const seen = await view(name);
  assert.deepEqual(seen.holders.map((holder) => holder.token), [lease.token]);
  assert.deepEqual(seen.waiters, []);
  await lease.release();
  assert.deepEqual((await view(name)).holders, []);
});

test('the next service is asked if one is away; without any it is said', async (t) => {
  const way = await proxy(t);
  way.close();
  const lease = await connect(t, [way.url, SERVICE]).lock(fresh()).acquire();
  assert.ok(lease.isHeld());
  const alone = connect(t, way.url, { silenceMs: 500 });
  for (const attempt of [() => alone.lock(fresh()).tryAcquire(), () => alone.lock(fresh()).acquire()]) {
    await assert.rejects(attempt(), (error) => error instanceof Unavailable && error.certainty === 'unknown');
  }
});

test('giving up ends the claim', async (t) => {
  const client = connect(t);
  const name = fresh();
  // Long ttls: a claim that nobody ends would wait on for a minute.
  const lease = await client.lock(name, { ttlMs: 60_000 }).acquire();
  const controller = new AbortController();
  const waiting = client.lock(name, { ttlMs: 60_000 }).acquire({ signal: controller.signal });
  await until('it waits', async () => (await waiters(name)).length === 1);
  controller.abort(new Error('enough'));
  await assert.rejects(waiting, /enough/);
  await until('no waiter is left', async () => (await waiters(name)).length === 0);
  await lease.release();
});

test('a lease past its deadline is not held, though nobody could be told', async (t) => {
  const client = connect(t);
  const lease = await client.lock(fresh(), { ttlMs: 300 }).acquire();
  const until = performance.now() + 350;
  while (performance.now() < until); // neither timers nor renewals run meanwhile
  assert.equal(lease.signal.aborted, false);
  assert.equal(lease.isHeld(), false);
  assert.throws(() => lease.check(), Lost);
});

test('an option that is not known is refused', (t) => {
  const client = connect(t);
  for (const make of [() => client.lock('x', { ttl: 5 }), () => client.semaphore('x', 2, { permits: 1 })]) {
    assert.throws(make, (error) => error.kind === 'invalid' && /there is no option (ttl|permits)/.test(error.message));
  }
});
