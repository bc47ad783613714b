// Two instances of one service, with TLS and tokens, one of which is killed: $TENURE_COMMAND starts them.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { Client, Denied } from '../dist/index.js';
import { fresh, soon } from './harness.mjs';

const command = process.env.TENURE_COMMAND;

/** Instances over one file, with one certificate and one token. */
async function secured(t, clients = false) {
  assert.ok(command, 'set TENURE_COMMAND to the tenure command');
  const folder = mkdtempSync(join(tmpdir(), 'tenure-'));
  const [key, cert, tokens] = ['key.pem', 'cert.pem', 'tokens.toml'].map((file) => join(folder, file));
  execFileSync('openssl', ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '1',
    '-subj', '/CN=127.0.0.1', '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', key, '-out', cert], { stdio: 'ignore' });
  const { secret, entry } = JSON.parse(execFileSync(command, ['serve', 'token', 'app', '--may', 'acquire,read', '--json']));
  writeFileSync(tokens, entry);
  const shown = clients ? { ours: authority(folder, 'ours'), foreign: authority(folder, 'foreign') } : {};
  const more = clients ? ['--client-ca', shown.ours.file] : [];
  const processes = [];
  const urls = [];
  t.after(() => { for (const one of processes) one.kill('SIGKILL'); rmSync(folder, { recursive: true }); });
  for (let index = 0; index < 2; index += 1) {
    const one = spawn(command, ['serve', '--on', `sqlite:${folder}/locks.db`, '--listen', '127.0.0.1:0', '--json',
      '--tls-cert', cert, '--tls-key', key, '--tokens', tokens, ...more], { stdio: ['ignore', 'pipe', 'inherit'] });
    processes.push(one);
    const [line] = await new Promise((resolve) => { createInterface(one.stdout).once('line', (text) => resolve([text])); });
    urls.push(JSON.parse(line).listening);
  }
  return { processes, urls, bearer: secret, ca: readFileSync(cert, 'utf8'), ...shown };
}

/** An authority, and a certificate of it for a client: the file of the one, and the other with its key as PEM. */
function authority(folder, name) {
  const [ca, caKey, cert, key, request] = ['ca', 'ca-key', 'cert', 'key', 'request'].map((part) => join(folder, `${name}-${part}.pem`));
  const openssl = (...words) => execFileSync('openssl', words, { stdio: 'ignore' });
  const made = ['req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];
  openssl(...made, '-x509', '-days', '1', '-subj', '/CN=authority', '-keyout', caKey, '-out', ca);
  openssl(...made, '-addext', 'basicConstraints=CA:FALSE', '-addext', 'extendedKeyUsage=clientAuth', '-subj', '/CN=app', '-keyout', key, '-out', request);
  openssl('x509', '-req', '-days', '1', '-in', request, '-CA', ca, '-CAkey', caKey, '-set_serial', '2', '-copy_extensions', 'copy', '-out', cert);
  return { file: ca, cert: readFileSync(cert, 'utf8'), key: readFileSync(key, 'utf8') };
}

const connect = (t, options) => {
  const client = new Client(options);
  t.after(() => client.close());
  return client;
};

test('a lease outlives the instance that granted it', async (t) => {
  const { processes, urls, bearer, ca } = await secured(t);
  const client = connect(t, { urls, bearer, ca });
  const name = fresh();
  const lease = await client.lock(name, { ttlMs: 3_000 }).acquire();
  const value = new Uint8Array([0, 255, 128]);
  await lease.writeMemo(value);
  processes[0].kill('SIGKILL');
  assert.deepEqual((await client.memo(name)).value, value);
  await lease.writeMemo('by the other');
  for (const end = Date.now() + 4_000; Date.now() < end; await soon(50)) lease.check();
  assert.equal(await lease.release(), true);
  const next = await client.lock(name).acquire({ timeoutMs: 10_000 });
  assert.ok(next.token > lease.token);
  await next.release();
});

test('who has no right or no trust is told at once', async (t) => {
  const { urls, bearer, ca } = await secured(t);
  await assert.rejects(connect(t, { urls, bearer: 'tenure_wrong', ca }).lock(fresh()).tryAcquire(), (error) => error instanceof Denied);
  await assert.rejects(connect(t, { urls, bearer }).lock(fresh()).tryAcquire(), { kind: 'tls' });
});

test('a certificate is shown that stands for a token', async (t) => {
  const { urls, ca, ours, foreign } = await secured(t, true);
  for (const shown of [{ cert: ours.cert, key: ours.key }, { cert: ours.cert + ours.key }]) {
    const lease = await connect(t, { urls, ca, ...shown }).lock(fresh()).acquire({ timeoutMs: 10_000 });
    assert.equal(await lease.release(), true);
  }
  for (const shown of [{}, { cert: foreign.cert, key: foreign.key }]) {
    await assert.rejects(connect(t, { urls, ca, ...shown }).lock(fresh()).tryAcquire(), (error) => error instanceof Denied && error.kind === 'tls');
  }
  await assert.rejects(connect(t, { urls, ca, cert: 'no such thing' }).lock(fresh()).tryAcquire(), { kind: 'invalid', field: 'cert' });
});

test('a certificate that cannot be shown is refused', () => {
  assert.throws(() => new Client({ urls: 'http://127.0.0.1:1', cert: 'x' }), { field: 'cert' });
  assert.throws(() => new Client({ urls: 'https://127.0.0.1:1', key: 'x' }), { field: 'key' });
});
