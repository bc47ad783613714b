// Why something was not done.

/** What an error of the service says. */
export interface Problem {
  kind?: string;
  message?: string;
  hint?: string;
  certainty?: string;
  holder?: unknown;
  field?: string;
  reason?: string;
  request_id?: string;
}

/**
 * Any error of this package. `kind` says what it is: `timeout`, `lost`, `broken`, `expired`, `unavailable`,
 * `unauthorized`, `forbidden`, `conflict`, `invalid`, `superseded`, `tls`.
 */
export class TenureError extends Error {
  readonly kind: string;
  /** Whether it may have taken effect all the same: `not_applied` or `unknown`; undefined where it is plain. */
  readonly certainty: string | undefined;
  /** What to do about it. */
  readonly hint: string | undefined;
  /** The label of who holds the lock. */
  readonly holder: string | undefined;
  /** The field that was wrong. */
  readonly field: string | undefined;
  /** Names the answer in the service's log. */
  readonly requestId: string | undefined;
  readonly status: number | undefined;

  constructor(kind: string, message: string, problem: Problem = {}, status?: number) {
    super(problem.hint ? `${message} (${problem.hint})` : message);
    this.name = new.target.name;
    this.kind = kind;
    this.certainty = problem.certainty;
    this.hint = problem.hint;
    this.holder = typeof problem.holder === 'string' ? problem.holder : undefined;
    this.field = problem.field;
    this.requestId = problem.request_id;
    this.status = status;
  }
}

/** Not granted in the time there was. */
export class LockTimeout extends TenureError {}
/** The lease can no longer be trusted: the work must stop. `kind` is `expired`, `lost` or `broken`. */
export class Lost extends TenureError {}
/** The bearer token is missing, or lacks the right. */
export class Denied extends TenureError {}
/** No service answers, or the service does not reach its store. */
export class Unavailable extends TenureError {}

/** The error that an answer stands for. */
export function refusal(status: number, problem: Problem): TenureError {
  const text = problem.message ?? `the service answered ${status}`;
  const message = problem.reason ? `${text}: ${problem.reason}` : text;
  const { kind } = problem;
  if (kind === 'timeout' || kind === 'busy') return new LockTimeout(kind, message, problem, status);
  if (status === 410) return new Lost(kind ?? 'lost', message, problem, status);
  if (status === 429 || status >= 500) return new Unavailable(kind ?? 'unavailable', message, problem, status);
  if (status === 401 || status === 403 || status === 421) return new Denied(kind ?? 'denied', message, problem, status);
  return new TenureError(kind ?? (status === 409 ? 'conflict' : 'invalid'), message, problem, status);
}

/** A typo must not weaken a lock. */
export function refuseUnknown(options: object, known: string[]): void {
  const field = Object.keys(options).find((key) => !known.includes(key));
  if (field !== undefined) throw new TenureError('invalid', `there is no option ${field}: there are ${known.join(', ')}`, { field });
}
