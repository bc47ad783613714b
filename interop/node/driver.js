// node-redlock 5 over ioredis, driven by lines of JSON (see ../README.md).
"use strict";

const readline = require("node:readline");
const { default: Client } = require("ioredis");
const { default: Redlock, ExecutionError, ResourceLockedError } = require("redlock");

const RETRY_DELAY_MS = 50;

const client = new Client(process.argv[2]);
const redlock = new Redlock([client], { retryDelay: RETRY_DELAY_MS, retryJitter: 20 });
// Each refusal of a server is also an event; that a lock is taken is no news here.
redlock.on("error", (error) => {
  if (!(error instanceof ResourceLockedError)) console.error(error);
});

let lock = null;

function taken() {
  if (lock === null) throw new Error("not held");
  return lock;
}

/** Whether an attempt failed because others hold the lock, and for no other reason. */
async function isBusy(error) {
  if (!(error instanceof ExecutionError)) return false;
  const last = await error.attempts[error.attempts.length - 1];
  return [...last.votesAgainst.values()].every((vote) => vote instanceof ResourceLockedError);
}

const ops = {
  async acquire({ key, ttl_ms, wait_ms }) {
    const retryCount = Math.ceil(wait_ms / RETRY_DELAY_MS);
    try {
      lock = await redlock.acquire([key], ttl_ms, { retryCount });
    } catch (error) {
      if (await isBusy(error)) return { ok: false, why: "busy" };
      throw error;
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
  client.disconnect();
}

main();
