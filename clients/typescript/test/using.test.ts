// What people write, compiled: `await using`, and the types that the package declares.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, Lost, type Lease } from 'tenure-client';
import { fresh, SERVICE, view } from './harness.mjs';

test('leaving an `await using` block releases the lock', async () => {
  const name = fresh();
  await using client = new Client({ urls: SERVICE });
  let left: Lease;
  {
    await using lease = await client.lock(name, { ttlMs: 10_000 }).acquire();
    left = lease;
    assert.equal((await view(name)).holders[0]?.token, lease.token);
  }
  assert.equal(left.isHeld(), false);
  assert.throws(() => left.check(), Lost);
  assert.deepEqual((await view(name)).holders, []);
});
