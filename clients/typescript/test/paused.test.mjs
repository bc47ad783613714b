// A holder that is paused past its ttl, and then writes: only the token at the resource stops it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from '../dist/index.js';
import { fresh, SERVICE, view } from './harness.mjs';

/** A resource that many write to. It accepts a token above the highest it has seen, or that one of the same owner. */
class Fenced {
  #highest = { token: 0, owner: '' };
  value = 0;

  add({ token, owner }) {
    if (token < this.#highest.token || (token === this.#highest.token && owner !== this.#highest.owner)) return false;
    this.#highest = { token, owner };
    this.value += 1;
    return true;
  }
}

test('a paused holder is refused at the resource', { timeout: 60_000 }, async (t) => {
  const client = new Client({ urls: SERVICE });
  t.after(() => client.close());
  const [name, resource] = [fresh(), new Fenced()];
  const child = spawn(process.execPath, [fileURLToPath(new URL('./holder.mjs', import.meta.url)), name], {
    stdio: ['pipe', 'pipe', 'inherit'], env: { ...process.env, TENURE_SERVICE: SERVICE },
  });
  t.after(() => child.kill('SIGKILL'));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  const held = await next();
  child.kill('SIGSTOP');
  const lease = await client.lock(name).acquire({ timeoutMs: 10_000 });
  assert.ok(lease.token > held.token);
  assert.ok(resource.add(lease));
  child.stdin.write('go\n');
  child.kill('SIGCONT');
  const woken = await next();
  assert.equal(woken.held, false, 'it knows by its clocks, at once');
  assert.equal(resource.add(woken), false, 'a holder that does not look is refused');
  assert.equal((await next()).lost, 'expired');
  await once(child, 'exit');
  assert.equal((await view(name)).holders[0].token, lease.token, 'what the paused one cleans up is its own');
  assert.equal(resource.value, 1);
  await lease.release();
});
