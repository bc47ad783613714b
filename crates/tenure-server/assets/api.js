// The service's HTTP API. The bearer token is sent by fetch and kept for this tab; there are no cookies.

const KEPT = 'tenure.bearer';
const PATIENCE_MS = 15_000;

/** A refusal by the service, with its error object; or no answer at all (status 0). */
export class ApiError extends Error {
  constructor(status, body) {
    super(body?.message ?? (status ? `the service answered ${status}` : 'the service does not answer'));
    this.status = status;
    this.kind = body?.kind ?? null;
    this.hint = body?.hint ?? null;
  }
}

export function bearer(value) {
  try {
    if (value !== undefined) sessionStorage.setItem(KEPT, value);
    return sessionStorage.getItem(KEPT);
  } catch {
    return null; // storage may be refused: the token is then asked for again
  }
}

const headers = () => {
  const token = bearer();
  return token ? { authorization: `Bearer ${token}` } : {};
};

function url(path, query) {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined));
  return search.size ? `${path}?${search}` : path;
}

async function ask(path, { query, method = 'GET', signal } = {}) {
  const given = AbortSignal.timeout(PATIENCE_MS);
  let response;
  try {
    response = await fetch(url(path, query), {
      method, headers: headers(), cache: 'no-store', credentials: 'omit',
      signal: signal ? AbortSignal.any([signal, given]) : given,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0);
  }
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  return response;
}

async function json(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (options?.signal?.aborted) throw error;
    throw new ApiError(0); // broke off midway
  }
}

export const store = () => json('/v1/store');
export const page = (after, limit) => json('/v1/locks', { query: { after, limit } });
export const lock = (name, signal) => json('/v1/lock', { query: { name }, signal });
export const explain = (name, signal) => json('/v1/explain', { query: { name }, signal });
/** What is kept with a name, or null: its bytes, and what the headers say of it. */
export async function memo(name, signal) {
  let response;
  try {
    response = await ask('/v1/memo', { query: { name }, signal });
  } catch (error) {
    if (error.kind === 'no_memo') return null;
    throw error;
  }
  const number = (field) => Number(response.headers.get(`tenure-memo-${field}`));
  const bytes = new Uint8Array(await response.arrayBuffer());
  return { bytes, version: number('version'), token: number('token'), age_ms: number('age-ms'), kind: response.headers.get('tenure-memo-kind') };
}
export const recent = (signal) => json('/v1/recent', { signal });
export const metrics = async () => (await ask('/metrics')).text();
/** How many claims were ended. */
export const breakLock = async (name, token, owner, reason) => (
  await json('/v1/lock', { method: 'DELETE', query: { name, token, owner, reason: reason || null } })).broken;

/** Silence after which a stream counts as dead: the service sends a comment every 15 s. */
const SILENCE_MS = 40_000;
const EVENT_MAX = 1 << 20;

/**
 * Reads server-sent events until the stream ends, fails or falls silent. EventSource cannot send a header, so this
 * reads the stream itself.
 */
export async function events({ opened, told, signal }) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal.addEventListener('abort', stop);
  let silence = setTimeout(stop, SILENCE_MS);
  try {
    const response = await fetch('/v1/events', {
      headers: { accept: 'text/event-stream', ...headers() }, cache: 'no-store', credentials: 'omit', signal: own.signal,
    });
    if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
    opened();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(stop, SILENCE_MS);
      rest = (rest + value).replaceAll('\r\n', '\n');
      let end;
      while ((end = rest.indexOf('\n\n')) >= 0) {
        const event = parse(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (event) told(event);
      }
      if (rest.length > EVENT_MAX) throw new ApiError(0);
    }
  } finally {
    clearTimeout(silence);
    signal.removeEventListener('abort', stop);
    own.abort();
  }
}

function parse(block) {
  let kind = 'message';
  const data = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) kind = line.slice(6).trim();
    else if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
  }
  if (!data.length && kind === 'message') return null;
  let told = {};
  try {
    told = JSON.parse(data.join('\n') || '{}');
  } catch {
    // an event whose data is not JSON still says that something happened
  }
  return { ...told, event: told.event ?? kind };
}
