// A service that runs ($TENURE_SERVICE), and a proxy before it that goes wrong when told to.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import net from 'node:net';

export const SERVICE = (process.env.TENURE_SERVICE ?? '').replace(/\/$/, '');
if (!SERVICE) {
  console.error('set TENURE_SERVICE to the URL of a service that runs, say http://127.0.0.1:7420');
  process.exit(4);
}

export const fresh = () => `typescript/${randomUUID()}`;
export const soon = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

export async function until(what, condition, ms = 10_000) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await condition();
    if (value) return value;
    assert.ok(Date.now() < end, `${what}: not within ${ms} ms`);
    await soon(10);
  }
}

export const view = async (name) => (await fetch(`${SERVICE}/v1/lock?${new URLSearchParams({ name })}`)).json();
export const waiters = async (name) => (await view(name)).waiters.map((waiter) => waiter.label);
export const breakLock = (name, token, reason) => fetch(`${SERVICE}/v1/lock?${new URLSearchParams({ name, token, reason })}`, { method: 'DELETE' });

/** Passes bytes on to the service. Frozen, it passes none; `cutAnswers` closes before so many answers arrive. */
export async function proxy(t) {
  const target = new URL(SERVICE);
  const sockets = new Set();
  const made = { requests: [], cutAnswers: 0, frozen: false };
  const server = net.createServer((client) => {
    const upstream = net.connect(Number(target.port), target.hostname);
    const held = [];
    const pass = (to, data) => (made.frozen ? held.push([to, data]) : to.write(data));
    const end = () => { client.destroy(); upstream.destroy(); };
    for (const one of [client, upstream]) { sockets.add(one); one.on('error', end); one.on('close', end); }
    client.on('data', (data) => { made.requests.push(data.toString()); pass(upstream, data); });
    upstream.on('data', (data) => {
      if (made.cutAnswers > 0) { made.cutAnswers -= 1; end(); } else pass(client, data);
    });
  });
  await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
  made.url = `http://127.0.0.1:${server.address().port}`;
  made.freeze = () => { made.frozen = true; };
  made.close = () => { for (const one of sockets) one.destroy(); server.close(); };
  t.after(made.close);
  return made;
}
