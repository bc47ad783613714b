// The pictures in docs/: the dashboard while programs of a small shop take locks, over a minute and a half.
//
//   node pictures.mjs http://127.0.0.1:7420 --shots DIR

import { browser, live, open, options, Service, shot, soon } from './harness.mjs';

const service = await Service.begin();
/** How long the shop works before the pictures are taken: the charts need some past. */
const WORKS_MS = Number(process.env.TENURE_PICTURES_MS ?? 90_000);
let closing = false;

const between = (least, most) => least + Math.random() * (most - least);

/** Waits for a name, holds it, releases it, rests; again and again. */
async function worker(label, names, { ttlMs = 10_000, holds = [1_000, 3_000], rests = [500, 2_000], ...shape }) {
  const rest = (range) => soon(between(...range));
  await rest([0, rests[1]]);
  while (!closing) {
    const name = names[Math.floor(Math.random() * names.length)];
    const held = await service.acquire(name, { ttl_ms: ttlMs, wait_ms: 40_000, queue: true, label, ...shape });
    if (held.state === 'waiting') {
      await service.release(held);
      continue;
    }
    const until = Date.now() + between(...holds);
    while (!closing && Date.now() < until) {
      await soon(Math.min(ttlMs / 3, Math.max(0, until - Date.now())));
      if (Date.now() < until) await service.renew(held);
    }
    await service.release(held);
    await rest(rests);
  }
}

const orders = Array.from({ length: 9 }, (_, index) => `orders/${10_438 + index * 7}`);
const forLong = { holds: [600_000, 600_000] };
const shop = [
  ...Array.from({ length: 7 }, (_, index) => worker(`web-${1 + index % 3}:${4100 + index} checkout`, orders, { holds: [1_500, 4_000] })),
  ...Array.from({ length: 4 }, (_, index) => worker(`batch-${1 + index % 2}:${977 + index} invoices`, ['invoices/2026-11'], { holds: [300, 700], rests: [400, 1_200] })),
  worker('billing-1:88 leader', ['leader/billing'], forLong),
  worker('search-2:91 leader', ['leader/search'], forLong),
  worker('search-1:90 leader', ['leader/search'], forLong),
  worker('cron-1:5021 nightly-report', ['nightly-report'], { holds: [45_000, 60_000], ttlMs: 30_000 }),
  ...Array.from({ length: 3 }, (_, index) => worker(`web-${1 + index}:${4200 + index} catalog`, ['catalog'], { shared: true, holds: [6_000, 9_000] })),
  ...Array.from({ length: 4 }, (_, index) => worker(`media-1:${700 + index} upload`, ['uploads'], { capacity: 3, holds: [4_000, 7_000] })),
  ...Array.from({ length: 3 }, (_, index) => worker(`stock-${1 + index}:31 count`, ['stock/berlin', 'stock/lyon', 'stock/porto'], { holds: [2_000, 5_000], ttlMs: 20_000 })),
].map((work) => work.catch((error) => { if (!closing) throw error; }));

const chrome = await browser();
const desk = { viewport: { width: 1280, height: 860 } };
const light = await open(chrome, service.url, { ...desk, colorScheme: 'light' });
const dark = await open(chrome, service.url, { ...desk, colorScheme: 'dark' });
const phone = await open(chrome, service.url, { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, colorScheme: 'light' });
for (const { page } of [light, dark, phone]) await live(page);
await soon(WORKS_MS);
await shot(light.page, 'dashboard-light');
await shot(dark.page, 'dashboard-dark');
await shot(phone.page, 'dashboard-phone');
await dark.page.goto(`${service.url}/#/charts`);
await dark.page.locator('.chart-card').first().waitFor();
await soon(500);
await shot(dark.page, 'dashboard-charts');
await light.page.goto(`${service.url}/#/lock/${encodeURIComponent('invoices/2026-11')}`);
await light.page.locator('.why li').first().waitFor({ timeout: 30_000 });
await soon(500);
await shot(light.page, 'dashboard-lock');
const wrong = [light, dark, phone].flatMap(({ errors }) => errors);
closing = true;
await chrome.close();
await Promise.all(shop);
if (wrong.length > 0) throw new Error(wrong.join('\n'));
if (!options.shots) console.error('no --shots DIR: no pictures were kept');
