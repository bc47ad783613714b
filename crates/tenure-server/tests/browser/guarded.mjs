// Services of their own: one that asks who calls, one that a strange name was turned to, one whose store goes away.

import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { browser, freePort, live, open, options, Service, state, until } from './harness.mjs';

const only = { skip: !options.serve };
const byText = (page, text) => page.getByRole('button', { name: text });

/** Gives work a browser and a service that this starts, and ends both. */
async function withService(command, args, work) {
  const service = await Service.begin(command);
  const chrome = await browser(args(service));
  try {
    await work(service, chrome);
  } finally {
    await chrome.close();
    await service.stop();
  }
}

const listens = (port) => new Promise((resolve) => {
  const socket = net.connect(port, '127.0.0.1', () => { socket.destroy(); resolve(true); }).once('error', () => resolve(false));
});

/** A new secret, and its entry in the file of tokens. */
function token(name, may) {
  const [tenure] = options.serve.split(' ');
  const made = spawnSync(tenure, ['serve', 'token', name, '--may', may, '--json'], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  return JSON.parse(made.stdout);
}

test('whoever may not break is offered no break', only, async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tenure-'));
  const [reader, breaker] = [token('reader', 'acquire,read'), token('breaker', 'read,break')];
  const file = path.join(folder, 'tokens.toml');
  writeFileSync(file, reader.entry + breaker.entry);
  try {
    await withService(`${options.serve} --tokens ${file}`, () => [], async (service, chrome) => {
      service.bearer = reader.secret;
      const name = 'guarded/job';
      const held = [await service.acquire(name, { shared: true, label: 'web-1' }), await service.acquire(name, { shared: true, label: 'web-2' })];
      const seen = async (secret) => {
        const { page, context, errors } = await open(chrome, `${service.url}/#/lock/${encodeURIComponent(name)}`);
        await page.getByLabel('Bearer token').fill(secret);
        await page.keyboard.press('Enter');
        await live(page, 60_000);
        await until('both holders', async () => (await page.locator('.holder .who').count()) === 2, 60_000);
        const offered = async () => [await byText(page, 'Break lock…').isVisible(), await byText(page, 'Break this one…').first().isVisible()];
        return { page, context, errors, offered };
      };
      const may = await seen(breaker.secret);
      await until('a break is offered', async () => (await may.offered()).every(Boolean));
      const mayNot = await seen(reader.secret);
      await until('no break is offered', async () => !(await mayNot.offered()).some(Boolean));
      // What is not offered is refused as well.
      assert.equal((await service.ask('DELETE', `/v1/lock?name=${encodeURIComponent(name)}&token=${held[0].token}`)).status, 403);
      for (const one of held) assert.equal((await service.renew(one)).status, 200);
      for (const one of [may, mayNot]) {
        assert.deepEqual(one.errors, []);
        await one.context.close();
      }
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('a name that was turned to this machine can neither acquire, break nor read', only, async () => {
  // What an attacker does with the answers of its own name server.
  const rebound = () => ['--host-resolver-rules=MAP evil.test 127.0.0.1'];
  await withService(options.serve, rebound, async (service, chrome) => {
    const name = 'rebound/job';
    const held = await service.acquire(name, { label: 'secret-label' });
    const evil = `http://evil.test:${service.port}`;
    const { page, context } = await open(chrome, 'about:blank');
    const first = await page.goto(`${evil}/`);
    assert.equal(first.status(), 421, 'not even the dashboard');
    assert.equal(await page.locator('#grid').count(), 0);
    // The refusal is a page of that origin: what it asks for is what a page that the attacker served before would.
    const got = await page.evaluate(async ({ name, token }) => {
      const json = { 'content-type': 'application/json' };
      const target = `/v1/lock?name=${encodeURIComponent(name)}&token=${token}`;
      const body = JSON.stringify({ name: `${name}-stolen`, ttl_ms: 60000 });
      const tries = {
        acquire: ['/v1/acquire', { method: 'POST', headers: json, body }],
        release: ['/v1/release', { method: 'POST', headers: json, body: JSON.stringify({ name, owner: 'x', token }) }],
        break: [target, { method: 'DELETE' }],
        read: [target, {}],
        list: ['/v1/locks', {}],
        recent: ['/v1/recent', {}],
        events: ['/v1/events', {}],
        metrics: ['/metrics', {}],
        store: ['/v1/store', {}],
        dashboard: ['/', {}],
        health: ['/healthz', {}],
      };
      const results = {};
      for (const [what, [address, settings]] of Object.entries(tries)) {
        results[what] = await fetch(address, { ...settings, signal: AbortSignal.timeout(10000) })
          .then(async (response) => ({ origin: location.origin, status: response.status, text: await response.text() }), String);
      }
      return results;
    }, { name, token: held.token });
    for (const [what, result] of Object.entries(got)) {
      assert.equal(result.status, 421, `${what}: ${JSON.stringify(result)}`);
      assert.equal(result.origin, evil, 'the page is of the strange name');
      assert.doesNotMatch(result.text, /secret-label/, what);
    }
    assert.equal((await service.renew(held)).status, 200, 'still held');
    assert.deepEqual((await service.view(`${name}-stolen`)).holders, []);
    await context.close();
  });
});

test('a store that is gone is shown, and that it is back', only, async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tenure-'));
  const port = await freePort();
  const redis = spawn('redis-server', ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--dir', folder], { stdio: 'ignore' });
  try {
    await until('Redis listens', () => listens(port), 60_000);
    const command = options.serve.replace('memory:', `redis://127.0.0.1:${port}`);
    assert.notEqual(command, options.serve, 'the service is on a store in memory');
    await withService(command, () => [], async (service, chrome) => {
      const held = await service.acquire('store/job', { label: 'web-1', ttl_ms: 600_000 });
      const { page, context, errors } = await open(chrome, service.url);
      await live(page, 60_000);
      redis.kill('SIGSTOP');
      await until('it is shown', async () => (await state(page)) === 'away', 60_000);
      assert.match(await page.locator('#banner').textContent(), /does not reach its store/);
      assert.equal(await page.locator('#link-text').textContent(), 'Store away');
      // Whoever comes now is told too.
      const late = await open(chrome, service.url);
      await until('it is shown to others', async () => (await state(late.page)) === 'away', 60_000);
      redis.kill('SIGCONT');
      for (const one of [page, late.page]) {
        await live(one, 60_000);
        assert.ok(await one.locator('#banner').isHidden());
      }
      assert.equal((await service.renew(held)).status, 200);
      assert.deepEqual([errors, late.errors], [[], []]);
      await context.close();
      await late.context.close();
    });
  } finally {
    redis.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
});
