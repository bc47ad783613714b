// Where services are, and requests to them.

import * as clock from './clock.js';
import { Denied, TenureError, Unavailable } from './errors.js';

export interface Answer {
  status: number;
  body: Record<string, unknown>;
  /** Read before the request was sent: what a deadline counts from. */
  sent: clock.Moment;
  retryAfterMs: number | undefined;
  /** The body as it came. */
  bytes: Uint8Array;
  header(name: string): string | null;
}

export interface Connecting {
  /** URLs of instances of one service, any of which serves any claim. Default: $TENURE_SERVICE, then 127.0.0.1:7420. */
  urls?: string | readonly string[];
  /** The bearer token. Default: $TENURE_BEARER. */
  bearer?: string;
  /** Certificates to trust, as PEM (Node only; a browser trusts its own). */
  ca?: string;
  /** A certificate to show, as PEM, and its key, which may be in the same text (Node only; a browser has its own). */
  cert?: string;
  key?: string;
  /** Another `fetch`. */
  fetch?: typeof fetch;
}

/** What fetch cannot be told. */
type Tls = Pick<Connecting, 'ca' | 'cert' | 'key'>;
type Method = 'GET' | 'POST' | 'PUT';
type Reply = Pick<Answer, 'status' | 'bytes' | 'header'>;

const environment = (name: string): string | undefined =>
  typeof process === 'undefined' ? undefined : process.env[name] || undefined;

export class Services {
  readonly #urls: string[];
  readonly #headers: Record<string, string>;
  readonly #tls: Tls | undefined;
  readonly #fetch: typeof fetch;
  #at = 0;

  constructor({ urls, bearer, ca, cert, key = cert, fetch: own }: Connecting) {
    const listed = urls ?? environment('TENURE_SERVICE') ?? 'http://127.0.0.1:7420';
    this.#urls = (typeof listed === 'string' ? listed.split(',') : [...listed]).map(checked);
    if (this.#urls.length === 0) throw new TenureError('invalid', 'no service is named', { field: 'urls' });
    const token = bearer ?? environment('TENURE_BEARER');
    this.#headers = { 'content-type': 'application/json', ...(token ? { authorization: `Bearer ${token}` } : {}) };
    if (key !== undefined && cert === undefined) throw new TenureError('invalid', 'key is of no use without cert', { field: 'key' });
    if (cert !== undefined && !this.#urls.some((url) => url.startsWith('https:'))) {
      throw new TenureError('invalid', 'a certificate is shown only over https', { field: 'cert' });
    }
    this.#tls = ca === undefined && cert === undefined ? undefined
      : { ...(ca === undefined ? {} : { ca }), ...(cert === undefined || key === undefined ? {} : { cert, key }) };
    this.#fetch = own ?? globalThis.fetch.bind(globalThis);
  }

  /** How many instances there are. */
  get count(): number { return this.#urls.length; }

  /** Posts one request to one instance. */
  post(path: string, body: unknown, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    return this.ask('POST', path, body, timeoutMs, signal);
  }

  /** Sends one request to one instance. No answer is `Unavailable`, and whether it took effect unknown. */
  async ask(method: Method, path: string, body: unknown, timeoutMs: number, signal?: AbortSignal): Promise<Answer> {
    const url = this.#urls[this.#at % this.#urls.length] as string;
    const given = AbortSignal.timeout(Math.ceil(timeoutMs));
    const either = signal ? AbortSignal.any([signal, given]) : given;
    const sent = clock.now();
    let reply: Reply;
    try {
      reply = await this.#send(method, url + path, body === undefined ? undefined : JSON.stringify(body), either);
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      // Waiting does not mend these, so they are told at once.
      if (/ALERT/.test(code(error))) {
        throw new Denied('tls', `${url} refuses this client's certificate: ${reason(error)}`, { certainty: 'not_applied', hint: 'cert and key hold another' });
      }
      if (/^ERR_OSSL/.test(code(error))) {
        throw new TenureError('invalid', `ca, cert or key is no such PEM: ${reason(error)}`, { certainty: 'not_applied', field: 'cert' });
      }
      if (/CERT|SIGNATURE|ISSUER/.test(code(error))) {
        throw new TenureError('tls', `the certificate of ${url} is not trusted: ${reason(error)}`, { certainty: 'not_applied', hint: 'ca holds certificates to trust' });
      }
      this.#failed(url);
      throw new Unavailable('unavailable', `no answer from ${url}: ${reason(error)}`, { certainty: 'unknown' });
    }
    if ([502, 503, 504].includes(reply.status)) this.#failed(url);
    const retryAfter = Number(reply.header('retry-after') ?? Number.NaN);
    return { ...reply, body: parsed(reply), sent, retryAfterMs: Number.isFinite(retryAfter) ? retryAfter * 1000 : undefined };
  }

  async #send(method: Method, url: string, body: string | undefined, signal: AbortSignal): Promise<Reply> {
    if (this.#tls && url.startsWith('https:')) return sendByNode(this.#tls, method, url, body, this.#headers, signal);
    const response = await this.#fetch(url, { method, headers: this.#headers, body: body ?? null, signal, cache: 'no-store', credentials: 'omit', redirect: 'error' });
    return { status: response.status, bytes: new Uint8Array(await response.arrayBuffer()), header: (name) => response.headers.get(name) };
  }

  /** Goes on to the next, unless another request did already. */
  #failed(url: string): void {
    if (this.#urls[this.#at % this.#urls.length] === url) this.#at = (this.#at + 1) % this.#urls.length;
  }
}

function checked(url: string): string {
  let parts: URL | undefined;
  try {
    parts = new URL(url.trim());
  } catch {
    // told below, without the URL: it may have a password
  }
  if (!parts || !/^https?:$/.test(parts.protocol) || parts.username || parts.password || parts.search) {
    throw new TenureError('invalid', "a service's URL is http://HOST:PORT or https://HOST:PORT", { field: 'urls' });
  }
  return parts.origin + parts.pathname.replace(/\/+$/, '');
}

/** fetch says only "fetch failed"; why is in the cause. */
function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error && error.cause.message ? error.cause.message : error.message;
}

function code(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return String((cause as { code?: unknown } | undefined)?.code ?? '');
}

function parsed({ status, bytes, header }: Reply): Record<string, unknown> {
  if (status === 200 && header('tenure-memo-version') !== null) return {};
  try {
    const body: unknown = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof body === 'object' && body !== null && !Array.isArray(body)) return body as Record<string, unknown>;
  } catch {
    // a proxy may speak HTML
  }
  if (status < 400) throw new Unavailable('unavailable', 'what answered is not the tenure service', { certainty: 'unknown' }, status);
  return {};
}

/** fetch has no way to name certificates, so Node's own client is used where they are given. */
async function sendByNode(tls: Tls, method: Method, url: string, body: string | undefined, headers: Record<string, string>, signal: AbortSignal): Promise<Reply> {
  const { request } = await import('node:https');
  return new Promise((resolve, reject) => {
    const asked = request(url, { method, ...tls, headers, signal }, (response) => {
      const parts: Uint8Array[] = [];
      const header = (name: string): string | null => {
        const value = response.headers[name];
        return Array.isArray(value) ? value.join(', ') : value ?? null;
      };
      response.on('data', (part: Uint8Array) => { parts.push(part); });
      response.on('error', reject);
      response.on('end', () => resolve({ status: response.statusCode ?? 0, bytes: new Uint8Array(Buffer.concat(parts)), header }));
    });
    asked.on('error', reject);
    asked.end(body);
  });
}
