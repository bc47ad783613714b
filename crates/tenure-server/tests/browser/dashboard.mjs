// The dashboard of a running service, in a real browser, with real locks.
//
//   node dashboard.mjs http://127.0.0.1:7420 [--shots DIR]
//   node dashboard.mjs --serve 'tenure serve --on memory: --listen 127.0.0.1:{port}' [--shots DIR]

import assert from 'node:assert/strict';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { axe, browser, live, longestTask, open, options, row, Service, shot, soon, state, until } from './harness.mjs';
import './guarded.mjs';

let service;
let chrome;
const run = `t${Date.now().toString(36)}`;
const named = (name) => `${run}/${name}`;
const byText = (page, text) => page.getByRole('button', { name: text });

before(async () => {
  service = await Service.begin();
  chrome = await browser();
});
after(async () => {
  await chrome?.close();
  await service?.stop();
});

/** Opens a page, and sees to it that nothing went wrong on it. */
async function withPage(settings, work, route = '/') {
  const opened = await open(chrome, service.url + route, settings);
  try {
    await work(opened.page, opened.context);
    assert.deepEqual(opened.errors, []);
    assert.deepEqual(await opened.page.evaluate(() => globalThis.seen.violations), []);
  } finally {
    await opened.context.close();
  }
}

test('rows appear, change and vanish as locks do', () => withPage({}, async (page) => {
  await live(page);
  const name = named('orders/42');
  const first = await service.acquire(name, { label: 'web-1' });
  const seen = await until('a row', async () => { const it = await row(page, name); return it?.lease !== '–' && it; });
  assert.equal(seen.holder, 'web-1');
  assert.equal(seen.token, String(first.token));
  assert.match(seen.held, /^\d+s$/);
  assert.match(seen.lease, /s$/);
  const second = await service.acquire(name, { label: 'web-2', queue: true });
  await until('the waiter', async () => /1.*web-2/.test((await row(page, name))?.waiting ?? ''));
  await service.release(first);
  await until('the next holder', async () => (await row(page, name))?.holder === 'web-2');
  assert.ok(Number((await row(page, name)).token) > first.token);
  await service.release(second);
  await until('no row', async () => (await row(page, name)) === null);
}));

test('shared locks and permits say how many hold', () => withPage({}, async (page) => {
  await live(page);
  const readers = [await service.acquire(named('book'), { shared: true }), await service.acquire(named('book'), { shared: true })];
  const permit = await service.acquire(named('gpu'), { units: 2, capacity: 3 });
  await until('readers', async () => /shared by 2/.test((await row(page, named('book')))?.holder ?? ''));
  await until('permits', async () => /2 of 3 permits/.test((await row(page, named('gpu')))?.holder ?? ''));
  for (const one of [...readers, permit]) await service.release(one);
}));

test('search, groups, keys', () => withPage({}, async (page) => {
  await live(page);
  const held = [await service.acquire(named('alpha')), await service.acquire(named('beta'), { label: 'needle-7' })];
  await until('rows', async () => (await row(page, named('alpha'))) && row(page, named('beta')));
  await page.keyboard.press('/');
  await page.keyboard.type('needle-7');
  await until('what is searched', async () => (await row(page, named('beta'))) && (await row(page, named('alpha'))) === null);
  await page.keyboard.press('Escape');
  await page.locator(`.chip[data-group="${run}"]`).click();
  await until('all of the group', () => row(page, named('alpha')));
  await page.locator('#grid').focus();
  await page.keyboard.press('End');
  const last = await page.locator('#grid .row.active a.name').textContent();
  await page.keyboard.press('Enter');
  await until('its own page', async () => (await page.locator('#lock-title').textContent()) === last);
  for (const one of held) await service.release(one);
}));

test('breaking asks first, and reaches the holder', () => withPage({}, async (page) => {
  const name = named('stuck job');
  const holder = await service.acquire(name, { label: 'batch-9' });
  const waiter = await service.acquire(name, { label: 'batch-10', queue: true });
  await page.goto(`${service.url}/#/lock/${encodeURIComponent(name)}`);
  await until('the queue', async () => /batch-10/.test(await page.locator('.line-up').textContent()));
  await byText(page, 'Break lock…').click();
  assert.match(await page.locator('dialog').textContent(), /batch-9 holds it\. batch-10 would be granted it/);
  await byText(page, 'Cancel').click();
  assert.equal((await service.renew(holder)).status, 200, 'nothing is broken unless one says so');
  await byText(page, 'Break lock…').click();
  await page.keyboard.press('Escape');
  assert.equal((await service.renew(holder)).status, 200, 'Escape is no');
  await byText(page, 'Break lock…').click();
  await page.getByLabel('Reason').fill('it hangs');
  await shot(page, 'break');
  await byText(page, 'Break it').click();
  const told = await until('the holder is told', async () => { const it = await service.renew(holder); return it.status === 410 && it; });
  assert.equal(told.body.kind, 'broken');
  await until('the waiter holds', async () => (await page.locator('.holder .who').first().textContent()) === 'batch-10');
  assert.equal((await service.renew(waiter)).body.state, 'held');
  await service.release(waiter);
  await until('free', async () => (await page.locator('.badge.large').textContent()) === 'free');
}));

test('a lock has its diagnosis and its past', () => withPage({}, async (page) => {
  const name = named('past');
  await page.goto(`${service.url}/#/lock/${encodeURIComponent(name)}`);
  await live(page);
  for (const label of ['one', 'two']) {
    const held = await service.acquire(name, { label });
    await until('the holder', async () => (await page.locator('.holder .who').allTextContents()).includes(label));
    await service.release(held);
    await until('free', async () => (await page.locator('.badge.large').textContent()) === 'free');
  }
  await until('both in the past', async () => /two[\s\S]*one/.test(await page.locator('.past').textContent()), 15_000);
  await byText(page, 'Look again').click();
  await until('a diagnosis', async () => /It is free/.test(await page.locator('.why').textContent()), 15_000);
}));

test('a memo is shown with its size, version and age, and stays text', () => withPage({}, async (page) => {
  const name = named('memo');
  const held = await service.acquire(name, {});
  await page.goto(`${service.url}/#/lock/${encodeURIComponent(name)}`);
  await live(page);
  await until('the holder', async () => (await page.locator('.holder .who').count()) === 1);
  assert.equal(await page.locator('.memo').isVisible(), false, 'there is none');
  const value = '<img src=x onerror="seen.hurt=1">';
  const { version } = await service.writeMemo(held, value);
  await until('the memo', async () => (await page.locator('.memo pre').textContent()) === value);
  const facts = await page.locator('.memo dl').textContent();
  assert.match(facts, new RegExp(`size${value.length} bytes.*version${version}.*written\\d+s ago.*under token${held.token}.*kept byuser`));
  await service.writeMemo(held, '\0', version);
  await until('no text', async () => /no text/.test(await page.locator('.memo').textContent()));
  assert.equal(await page.evaluate(() => document.querySelectorAll('main img').length + globalThis.seen.hurt), 0);
  await service.release(held);
}));

test('a lost connection is shown and heals', () => withPage({}, async (page, context) => {
  await live(page);
  await context.setOffline(true);
  await until('lost', async () => (await state(page)) === 'lost');
  assert.match(await page.locator('#banner').textContent(), /connection to the service is lost/);
  for (const end = Date.now() + 2_500; Date.now() < end; await soon(100)) assert.equal(await state(page), 'lost', 'and stays so');
  await shot(page, 'lost');
  const name = named('meanwhile');
  const held = await service.acquire(name);
  await context.setOffline(false);
  await live(page);
  assert.ok(await page.locator('#banner').isHidden());
  await until('what happened meanwhile', () => row(page, name));
  await service.release(held);
  await until('and what happens since', async () => (await row(page, name)) === null);
}));

test('a service that is restarted is found again', { skip: !options.serve }, () => withPage({}, async (page) => {
  await live(page);
  await service.stop();
  await until('lost', async () => (await state(page)) === 'lost');
  await service.start();
  await live(page, 15_000);
  const held = await service.acquire(named('after the restart'));
  await until('a row', () => row(page, held.name));
  await service.release(held);
}));

test('a token is asked for, kept for the tab and sent', () => withPage({}, async (page, context) => {
  const sent = [];
  await context.route(/\/v1\/|\/metrics$/, (route) => {
    const bearer = route.request().headers().authorization;
    sent.push(bearer);
    if (bearer === 'Bearer right') route.continue();
    else route.fulfill({ status: 401, contentType: 'application/json', body: '{"kind":"denied","message":"a bearer token is needed"}' });
  });
  await page.reload();
  const field = page.getByLabel('Bearer token');
  await field.waitFor();
  assert.deepEqual(await axe(page), []);
  await field.fill('wrong');
  await page.keyboard.press('Enter');
  await until('refused', async () => /was refused/.test(await page.locator('#token-note').textContent()));
  await field.fill('right');
  await page.keyboard.press('Enter');
  await live(page);
  await page.reload();
  await live(page);
  assert.equal(await page.evaluate(() => `${document.cookie}${localStorage.length}`), '0');
  assert.ok(sent.includes('Bearer right'));
}));

test('hostile names and labels stay text', () => withPage({}, async (page) => {
  await live(page);
  const names = ['<img src=x onerror="seen.hurt=1">', '"><script>seen.hurt=1</script>', "javascript:seen.hurt=1//'", '../../%2F#/charts?x=1', '\u202egpj.exe', '{{7*7}}${7*7}', '🔒'.repeat(60)].map((one) => `${run}-hostile/${one}`);
  const held = [];
  for (const name of names) held.push(await service.acquire(name, { label: '<b onclick="seen.hurt=1">label</b>' }));
  for (const name of names) {
    await until(`the row of ${name}`, async () => (await row(page, name))?.holder === '<b onclick="seen.hurt=1">label</b>');
    await page.goto(`${service.url}/#/lock/${encodeURIComponent(name)}`);
    await until('its page', async () => (await page.locator('#lock-title').textContent()) === name);
    await until('its holder', async () => (await page.locator('.holder .who').allTextContents())[0] === '<b onclick="seen.hurt=1">label</b>');
    await byText(page, 'Break lock…').click();
    assert.equal(await page.locator('dialog .mono').textContent(), name);
    await page.keyboard.press('Escape');
    await page.goto(`${service.url}/#/`);
  }
  await page.goto(`${service.url}/#/activity`);
  assert.equal(await page.evaluate(() => document.querySelectorAll('main img, main script, main b[onclick]').length), 0);
  assert.equal(await page.evaluate(() => globalThis.seen.hurt), 0);
  for (const one of held) await service.release(one);
}));

for (const [kind, settings] of Object.entries({
  light: { colorScheme: 'light' }, dark: { colorScheme: 'dark' },
  phone: { colorScheme: 'light', viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true },
})) {
  test(`everybody can use it: ${kind}`, () => withPage(settings, async (page) => {
    await live(page);
    const name = named(`axe ${kind}`);
    const held = [await service.acquire(name, { label: 'web-1', shared: true }), await service.acquire(name, { label: 'web-2', shared: true }),
      await service.acquire(name, { label: 'web-3', queue: true }), await service.acquire(named(`late ${kind}`), { ttl_ms: 2_000, label: 'web-4' })];
    await until('the row', async () => /1/.test((await row(page, name))?.waiting ?? ''));
    await until('a chart', async () => /\d/.test(await page.locator('.tile .figure').first().textContent()), 15_000);
    assert.deepEqual(await axe(page), [], 'locks');
    await shot(page, `${kind}-locks`);
    for (const [route, what] of [['charts', '.chart-card'], ['activity', '.feed li'], [`lock/${encodeURIComponent(name)}`, '.why li']]) {
      await page.goto(`${service.url}/#/${route}`);
      await page.locator(what).first().waitFor({ timeout: 15_000 });
      assert.deepEqual(await axe(page), [], route);
      await shot(page, `${kind}-${route.split('/')[0]}`);
    }
    await byText(page, 'Break lock…').click();
    assert.deepEqual(await axe(page), [], 'the dialog');
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `the page is ${wide} px wider than the screen`);
    for (const one of held.slice(0, 3)) await service.release(one);
  }));
}

test('a page of another origin can neither acquire, break nor read', async () => {
  const name = named('guarded');
  const held = await service.acquire(name, { label: 'secret-label' });
  const other = http.createServer((_, response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<!doctype html><title>other</title><body>'));
  await new Promise((resolve) => { other.listen(0, '127.0.0.1', resolve); });
  try {
    // The same host on another port is the same site; another name of it is another one.
    for (const host of ['127.0.0.1', 'localhost']) {
      const { page, context } = await open(chrome, `http://${host}:${other.address().port}/`);
      const got = await page.evaluate(async ({ url, name, token }) => {
        const target = `${url}/v1/lock?name=${encodeURIComponent(name)}&token=${token}`;
        const json = { 'content-type': 'application/json' };
        const body = JSON.stringify({ name: `${name}-stolen`, ttl_ms: 60000 });
        const tries = {
          acquire: [`${url}/v1/acquire`, { method: 'POST', headers: json, body }],
          'acquire as text': [`${url}/v1/acquire`, { method: 'POST', body }],
          'acquire without cors': [`${url}/v1/acquire`, { method: 'POST', mode: 'no-cors', body }],
          break: [target, { method: 'DELETE' }],
          read: [target, {}],
          'read without cors': [target, { mode: 'no-cors' }],
          list: [`${url}/v1/locks`, {}],
          events: [`${url}/v1/events`, {}],
          metrics: [`${url}/metrics`, {}],
        };
        const results = {};
        for (const [what, [address, options]] of Object.entries(tries)) {
          results[what] = await fetch(address, { ...options, signal: AbortSignal.timeout(5000) })
            .then((response) => (response.type === 'opaque' ? 'opaque' : `answered ${response.status}`), () => 'refused');
        }
        const form = document.createElement('form');
        Object.assign(form, { method: 'POST', action: `${url}/v1/acquire`, enctype: 'text/plain', target: 'elsewhere' });
        const field = document.createElement('input');
        Object.assign(field, { name: `{"name":"${name}-stolen","ttl_ms":60000,"label":"`, value: '"}' });
        form.append(field);
        const frame = document.createElement('iframe');
        frame.name = 'elsewhere';
        document.body.append(form, frame);
        form.submit();
        await new Promise((resolve) => { frame.addEventListener('load', resolve); setTimeout(resolve, 3000); });
        const dashboard = document.createElement('iframe');
        dashboard.src = `${url}/`;
        document.body.append(dashboard);
        await new Promise((resolve) => { dashboard.addEventListener('load', resolve); setTimeout(resolve, 3000); });
        return results;
      }, { url: service.url, name, token: held.token });
      for (const [what, text] of Object.entries(got)) assert.ok(text === 'refused' || text === 'opaque', `${what} from ${host}: ${text}`);
      const framed = page.frames().filter((frame) => frame.url() === `${service.url}/`);
      for (const frame of framed) assert.equal(await frame.locator('#grid').count(), 0, 'the dashboard is not framed');
      await context.close();
    }
    assert.equal((await service.renew(held)).status, 200, 'still held');
    assert.deepEqual((await service.view(`${name}-stolen`)).holders, []);
  } finally {
    other.close();
    await service.release(held);
  }
});

test(`${options.locks} locks stay smooth`, { timeout: 300_000 }, async (t) => {
  const total = Number(options.locks);
  const held = [];
  for (let from = 0; from < total; from += 64) {
    const some = Array.from({ length: Math.min(64, total - from) }, (_, index) => from + index);
    held.push(...await Promise.all(some.map((index) => service.acquire(`${run}-many-${index % 23}/${String(index).padStart(6, '0')}`, { ttl_ms: 600_000, label: `host-${index % 200}` }))));
  }
  await withPage({}, async (page) => {
    const counted = async () => Number((await page.locator('#count').textContent()).split(' ')[0].replaceAll(',', ''));
    // A busy machine stretches every task, so what counts is the processor time of the longest one.
    const worst = async (what, work) => {
      const { longest, stretched } = await longestTask(chrome, page, work);
      t.diagnostic(`${what}: the longest task took ${longest} ms of processor time, ${stretched} ms in all`);
      assert.ok(longest <= Number(options.blocked), `${what}: a task took ${longest} ms`);
    };
    await worst('loading', async () => {
      await page.reload();
      await until('all are counted', async () => (await counted()) >= total, 60_000);
      await live(page, 60_000);
    });
    await worst('scrolling', async () => {
      await page.mouse.move(640, 500);
      for (let turn = 0; turn < 60; turn += 1) await page.mouse.wheel(0, turn % 2 ? 900 : 4_000);
      await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
      await until('the last row', () => page.evaluate(() => {
        const rows = Number(document.getElementById('grid').getAttribute('aria-rowcount')) - 1;
        return document.getElementById(`row-${rows - 1}`) !== null;
      }));
    });
    assert.ok(await page.evaluate(() => document.querySelectorAll('#grid .row').length) < 100, 'rows off the screen do not exist');
    await shot(page, 'many');
    await worst('typing', async () => {
      await page.keyboard.press('/');
      for (const word of ['host-17', '-many-3 ', 'zzz', '00999']) {
        await page.keyboard.type(word);
        for (let back = 0; back < word.length; back += 1) await page.keyboard.press('Backspace');
      }
    });
    await worst('sorting', async () => {
      for (const column of ['Held for', 'Waiting', 'Expires in', 'Token', 'Name']) await page.getByRole('columnheader', { name: column }).getByRole('button').click();
    });
    await worst('a thousand releases', async () => {
      const gone = held.splice(0, 1_000);
      for (let from = 0; from < gone.length; from += 32) await Promise.all(gone.slice(from, from + 32).map((one) => service.release(one)));
      await until('they are gone', async () => (await counted()) <= total - 1_000, 60_000);
    });
  });
  for (let from = 0; from < held.length; from += 64) await Promise.all(held.slice(from, from + 64).map((one) => service.release(one)));
});
