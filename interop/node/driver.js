// node-redlock 5 over ioredis, driven by lines of JSON (see ../README.md).
"use strict";

const readline = require("node:readline");
const { setTimeout: pause } = require("node:timers/promises");
const { default: Client } = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

const RETRY_DELAY_MS = 50;

// By default ioredis keeps a command for a server that is away for many seconds, and its vote is missing.
const CONNECTION = { maxRetriesPerRequest: 0, retryStrategy: () => RETRY_DELAY_MS };

const clients = process.argv.slice(2).map((url) => new Client(url, CONNECTION));
const redlock = new Redlock(clients, { retryDelay: RETRY_DELAY_MS, retryJitter: 20 });
// Each refusal of a server is also an event; that a lock is taken is no news here.
redlock.on("error", (error) => {
  if (!(error instanceof ResourceLockedError)) console.error(error);
});
for (const client of clients) client.on("error", (error) => console.error(error));

let lock = null;

function taken() {
  if (lock === null) throw new Error("not held");
  return lock;
}

/** Whether an attempt failed because others hold the lock, with enough servers there to say so. */
async function isBusy(error) {
  if (!(error instanceof ExecutionError)) return false;
  const last = await error.attempts[error.attempts.length - 1];
  const taken = [...last.votesAgainst.values()].filter((vote) => vote instanceof ResourceLockedError).length;
  return taken > 0 && taken + last.votesFor.size >= last.quorumSize;
}

const ops = {
  async acquire({ key, ttl_ms, wait_ms }) {
    // Between its own attempts it keeps what it got on a few servers, where its next attempt then finds the lock taken:
    // it, and everybody else, would wait for the end of the ttl. Only an acquire that fails as a whole gives it back.
    const retryCount = clients.length === 1 ? Math.ceil(wait_ms / RETRY_DELAY_MS) : 0;
    const until = clients.length === 1 ? 0 : Date.now() + wait_ms;
    for (;;) {
      try {
        lock = await redlock.acquire([key], ttl_ms, { retryCount });
        return;
      } catch (error) {
        if (!(await isBusy(error))) throw error;
        if (Date.now() >= until) return { ok: false, why: "busy" };
      }
      await pause(RETRY_DELAY_MS * (0.5 + Math.random()));
    }
  },
  async extend({ ttl_ms }) {
    lock = await taken().extend(ttl_ms);
  },
  async held() {
    if (taken().expiration <= Date.now()) throw new Error("not held");
  },
  async release() {
    await taken().release();
    lock = null;
  },
  async quit() {},
};

async function answer(request) {
  const op = ops[request.op];
  if (op === undefined) return { ok: false, why: `no such op: ${request.op}` };
  try {
    return (await op(request)) ?? { ok: true };
  } catch (error) {
    return { ok: false, why: error.message };
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    process.stdout.write(JSON.stringify(await answer(request)) + "\n");
    if (request.op === "quit") break;
  }
  for (const client of clients) client.disconnect();
}

main();
