// node-redlock 5 over ioredis as a contestant (see ../README.md).
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const { performance } = require("node:perf_hooks");
const { setTimeout: pause } = require("node:timers/promises");
const { default: Client } = require("ioredis");
const { default: Redlock, ResourceLockedError } = require("redlock");

const ACQUIRING = 256;

// Told for each acquire and not for all of the client, or a release of a lock that is lost would never give up either.
const FOREVER = { retryCount: -1 };

/** Microseconds since the Unix epoch. */
const now = () => (performance.timeOrigin + performance.now()) * 1000;

/** Seconds of user and system time of this process since `before`. */
function cpuSince(before) {
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}

/** Waits for a time that is told in microseconds since the Unix epoch. */
async function until(us) {
  // A timer may fire a little before its time.
  for (let left = us - now(); left > 0; left = us - now()) await pause(left / 1000);
}

const say = (answer) => console.log(JSON.stringify(answer));

async function connect({ urls }) {
  const clients = urls.map((url) => new Client(url));
  for (const client of clients) client.on("error", (error) => console.error(error));
  await Promise.all(clients.map((client) => client.ping()));
  const redlock = new Redlock(clients);
  // Each refusal of a server is also an event; that a lock is taken is no news here.
  redlock.on("error", (error) => {
    if (!(error instanceof ResourceLockedError)) console.error(error);
  });
  return redlock;
}

function fail(error) {
  console.error(String(error));
  process.exit(1);
}

const acquire = (redlock, name, { ttl_ms }) => redlock.acquire([name], ttl_ms, FOREVER);

/** Acquires with `using`, which renews, and never releases; the signal tells if it is lost. */
function keep(redlock, name, { ttl_ms }) {
  return new Promise((resolve, reject) => {
    const routine = (signal) => {
      resolve(signal);
      return new Promise(() => {});
    };
    redlock.using([name], ttl_ms, FOREVER, routine).catch(reject);
  });
}

/** The nearest rank of sorted times. */
function percentile(sorted, percent) {
  return sorted.length === 0 ? 0 : Math.round(sorted[Math.ceil((sorted.length * percent) / 100) - 1]);
}

const orders = {
  async pairs(order) {
    const redlock = await connect(order);
    const begin = now() + order.warmup_s * 1e6;
    const end = begin + order.seconds * 1e6;
    const took = [];
    let all = 0;
    async function task(number) {
      for (let turn = 0; ; turn++) {
        const asked = now();
        if (asked >= end) return;
        const lock = await acquire(redlock, `${order.prefix}/${number}/${turn % order.names}`, order);
        await lock.release();
        all++;
        const done = now();
        if (done >= begin && done <= end) took.push(done - asked);
      }
    }
    async function measure() {
      await until(begin);
      const before = process.cpuUsage();
      await until(end);
      return cpuSince(before);
    }
    const tasks = Array.from({ length: order.tasks }, (_, number) => task(number));
    const [cpu_s] = await Promise.all([measure(), ...tasks]);
    const sorted = Float64Array.from(took).sort();
    const [p50_us, p99_us, max_us] = [50, 99, 100].map((percent) => percentile(sorted, percent));
    say({ pairs: sorted.length, all, seconds: order.seconds, p50_us, p99_us, max_us, cpu_s });
  },

  async hot(order) {
    const redlock = await connect(order);
    for (let turn = 0; turn < order.warmup_pairs; turn++) {
      await (await acquire(redlock, `${order.prefix}/warmup-${process.pid}`, order)).release();
    }
    console.log("ready");
    const lines = readline.createInterface({ input: process.stdin });
    const { value: line, done } = await lines[Symbol.asyncIterator]().next();
    const start = Number(line);
    if (done || !(start > 0)) throw new Error("no start time");
    await until(start);
    const before = process.cpuUsage();
    const turns = [];
    const asked = new Map();
    async function task(number) {
      for (;;) {
        const since = now();
        asked.set(number, since);
        const lock = await acquire(redlock, order.name, order);
        const got = now();
        asked.delete(number);
        turns.push([Math.round(got - start), Math.round(got - since), number]);
        await lock.release();
      }
    }
    for (let number = 0; number < order.tasks; number++) task(number).catch(fail);
    await until(start + order.seconds * 1e6);
    const end = now();
    const waiting = [...asked].map(([number, since]) => [number, Math.round(end - since)]);
    say({ turns, waiting, cpu_s: cpuSince(before) });
  },

  async hold(order) {
    const redlock = await connect(order);
    const signal = await keep(redlock, order.name, order);
    console.log("held");
    await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.error)));
  },

  async take(order) {
    const redlock = await connect(order);
    console.log("asking");
    const lock = await acquire(redlock, order.name, order);
    say({ got_us: Math.round(now()) });
    await lock.release();
  },

  async leases(order) {
    const redlock = await connect(order);
    const memory = process.memoryUsage.rss();
    const signals = [];
    let next = 0;
    async function acquirer() {
      while (next < order.leases) signals.push(await keep(redlock, `${order.prefix}/${next++}`, order));
    }
    await Promise.all(Array.from({ length: ACQUIRING }, acquirer));
    const before = process.cpuUsage();
    const begin = now();
    await until(begin + order.seconds * 1e6);
    say({
      leases: order.leases,
      cpu_percent: (100 * cpuSince(before)) / ((now() - begin) / 1e6),
      bytes_per_lease: Math.round((process.memoryUsage.rss() - memory) / order.leases),
      held: signals.filter((signal) => !signal.aborted).length,
    });
  },

  async list() {
    const lock = JSON.parse(fs.readFileSync(`${__dirname}/package-lock.json`, "utf8"));
    for (const store of ["redis", "redlock"]) {
      say({
        peer: "node-redlock",
        store,
        library: "redlock",
        version: lock.packages["node_modules/redlock"].version,
        settings:
          "duration as asked, retryCount -1 (default 10) at the default 100 to 300 ms apart; " +
          "using() where it is renewed: 500 ms before the end, the default; one ioredis connection a server",
        renews: true,
      });
    }
  },
};

async function main() {
  const order = JSON.parse(process.argv[2]);
  if (!Object.hasOwn(orders, order.do)) throw new Error(`no such order: ${order.do}`);
  if (order.do !== "list" && order.peer !== "node-redlock") throw new Error(`no such contestant: ${order.peer}`);
  await orders[order.do](order);
  // Whatever is held or waited for; what was said before is written out first.
  process.stdout.write("", () => process.exit(0));
}

main().catch(fail);
