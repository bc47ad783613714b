export { Client, Lock } from './client.js';
export type { AcquireOptions, ClientOptions, LockOptions, PermitOptions } from './client.js';
export { Lease } from './lease.js';
export type { Memo, MemoOptions } from './memo.js';
export { Denied, LockTimeout, Lost, TenureError, Unavailable } from './errors.js';
