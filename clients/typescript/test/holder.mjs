// Holds a lock, and is paused while it does.

import { once } from 'node:events';
import { Client } from '../dist/index.js';

const say = (told) => console.log(JSON.stringify(told));
const client = new Client();
const lease = await client.lock(process.argv[2], { ttlMs: 1_000 }).acquire();
say({ token: lease.token });
await once(process.stdin, 'data');
say({ held: lease.isHeld(), token: lease.token, owner: lease.owner });
if (!lease.signal.aborted) await once(lease.signal, 'abort');
say({ lost: lease.loss.kind });
await client.close();
process.exit(0);
