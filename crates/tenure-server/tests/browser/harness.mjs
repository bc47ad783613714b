// A service, a browser, and bounded waits.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import net from 'node:net';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';

export const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    // A command that starts the service, `{port}` in it: then restarts are tested too.
    serve: { type: 'string' },
    shots: { type: 'string' },
    chromium: { type: 'string', default: process.env.CHROMIUM ?? '/usr/bin/chromium' },
    locks: { type: 'string', default: '10000' },
    // How long a task may block the page, in milliseconds.
    blocked: { type: 'string', default: '100' },
  },
});

export const soon = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

/** Waits until a condition holds. What it last was is in the failure. */
export async function until(what, condition, ms = 10_000) {
  const end = Date.now() + ms;
  let last;
  for (;;) {
    try {
      last = await condition();
      if (last) return last;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) assert.fail(`${what}: not within ${ms} ms; last: ${last?.message ?? JSON.stringify(last)}`);
    await soon(50);
  }
}

export const freePort = () => new Promise((resolve, reject) => {
  const server = net.createServer().once('error', reject).listen(0, '127.0.0.1', () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

/** The service: one that runs already, or one that this starts, stops and starts again. */
export class Service {
  #child = null;
  #command = null;
  /** The token that is sent. */
  bearer = null;

  static async begin(command = options.serve) {
    const service = new Service();
    if (command) {
      service.#command = command;
      service.port = await freePort();
      service.url = `http://127.0.0.1:${service.port}`;
      await service.start();
    } else {
      assert.ok(positionals[0], 'usage: dashboard.mjs URL | --serve "COMMAND {port}" [--shots DIR]');
      service.url = positionals[0].replace(/\/$/, '');
    }
    return service;
  }

  get restarts() { return Boolean(this.#command); }

  async start() {
    const command = this.#command.replaceAll('{port}', String(this.port));
    this.#child = spawn('/bin/sh', ['-c', `exec ${command}`], { stdio: ['ignore', 'inherit', 'inherit'] });
    await until('the service answers', async () => (await fetch(`${this.url}/healthz`)).ok);
  }

  async stop() {
    if (!this.#child) return;
    const gone = new Promise((resolve) => { this.#child.once('exit', resolve); });
    this.#child.kill('SIGKILL');
    await gone;
    this.#child = null;
  }

  async ask(method, route, body) {
    const response = await fetch(this.url + route, {
      method, body: body === undefined ? undefined : JSON.stringify(body),
      headers: {
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(this.bearer ? { authorization: `Bearer ${this.bearer}` } : {}),
      },
    });
    const text = await response.text();
    return { status: response.status, body: text && response.headers.get('content-type')?.includes('json') ? JSON.parse(text) : text };
  }

  async acquire(name, more = {}) {
    const claim = { owner: randomBytes(16).toString('hex'), claim: randomBytes(8).toString('hex') };
    const { status, body } = await this.ask('POST', '/v1/acquire', { name, ...claim, ttl_ms: 60_000, wait_ms: 0, label: 'test', ...more });
    assert.ok(status === 200 || status === 202, `acquire ${name}: ${status} ${JSON.stringify(body)}`);
    return { name, ...claim, ...body, name };
  }

  renew({ name, owner, claim }) { return this.ask('POST', '/v1/renew', { name, owner, claim }); }
  release({ name, owner, claim }) { return this.ask('POST', '/v1/release', { name, owner, claim }); }
  async writeMemo({ name, owner, claim, token }, text, after = 0) {
    const value = Buffer.from(text).toString('base64');
    const { status, body } = await this.ask('PUT', '/v1/memo', { name, owner, claim, token, after, write: after + 1, value });
    assert.equal(status, 200, `memo of ${name}: ${status} ${JSON.stringify(body)}`);
    return body;
  }

  async view(name) { return (await this.ask('GET', `/v1/lock?name=${encodeURIComponent(name)}`)).body; }
}

export const browser = (args = []) => chromium.launch({ executablePath: options.chromium, args: ['--no-sandbox', ...args] });

/** A page that keeps what went wrong on it: errors, and refusals by its security policy. */
export async function open(browserOf, url, settings = {}) {
  const context = await browserOf.newContext({ viewport: { width: 1280, height: 800 }, ...settings });
  await context.addInitScript(() => {
    globalThis.seen = { violations: [], hurt: 0 };
    document.addEventListener('securitypolicyviolation', (event) => globalThis.seen.violations.push(`${event.violatedDirective} ${event.blockedURI}`));
  });
  const page = await context.newPage();
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.message));
  page.on('dialog', (dialog) => { errors.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
  await page.goto(url);
  return { page, context, errors };
}

export const state = (page) => page.evaluate(() => document.getElementById('link').dataset.state);
export const live = (page, ms) => until('the page is live', async () => (await state(page)) === 'live', ms);

/** What a row of the table shows, or null. */
export const row = (page, name) => page.evaluate((wanted) => {
  const link = [...document.querySelectorAll('#grid .row a.name')].find((one) => one.textContent === wanted);
  const cell = (kind) => link?.closest('.row').querySelector(`.c-${kind}`).textContent;
  return link ? { holder: cell('holder'), token: cell('token'), held: cell('held'), lease: cell('lease'), waiting: cell('waiting') } : null;
}, name);

export async function shot(page, name) {
  if (!options.shots) return;
  mkdirSync(options.shots, { recursive: true });
  await page.screenshot({ path: path.join(options.shots, `${name}.png`) });
}

/** The longest task of a page's main thread while something is done: its processor time and how long it took in all. */
export async function longestTask(browserOf, page, work) {
  await browserOf.startTracing(page, { categories: ['toplevel', '__metadata'] });
  let trace;
  try {
    await work();
  } finally {
    trace = JSON.parse((await browserOf.stopTracing()).toString());
  }
  const mains = new Set(trace.traceEvents.filter((one) => one.name === 'thread_name' && one.args.name === 'CrRendererMain').map((one) => `${one.pid}/${one.tid}`));
  const tasks = trace.traceEvents.filter((one) => one.ph === 'X' && one.name.endsWith('RunTask') && mains.has(`${one.pid}/${one.tid}`));
  assert.ok(tasks.some((one) => one.tdur > 0), 'the browser told of no task');
  const most = (key) => Math.round(tasks.reduce((top, one) => Math.max(top, one[key] ?? 0), 0) / 1_000);
  return { longest: most('tdur'), stretched: most('dur') };
}

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** What axe-core finds, a line each. */
export async function axe(page) {
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.html.slice(0, 160)} (${node.failureSummary})`));
}
