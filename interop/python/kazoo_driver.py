"""kazoo's Lock, driven by lines of JSON (see ../README.md)."""

import json
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

# A session lives for so long after its client was last heard of: kazoo's locks have no ttl of their own.
SESSION_SECONDS = 10


class NotHeld(Exception):
    """There is nothing to release."""

    def __init__(self):
        super().__init__("not held")


def acquire(client, request):
    # The pattern makes kazoo heed the locks of Curator, and so tenure's.
    lock = client.Lock("/" + request["key"], "kazoo", extra_lock_patterns=["-lock-"])
    wait = request.get("wait_ms", 0) / 1000
    try:
        granted = lock.acquire(blocking=wait > 0, timeout=wait if wait > 0 else None)
    except LockTimeout:
        granted = False
    return lock if granted else None


def answer(client, lock, request):
    """What to answer, and the lock that is held then."""
    match request["op"]:
        case "acquire":
            lock = acquire(client, request)
            return ({"ok": True} if lock else {"ok": False, "why": "busy"}), lock
        case "held":
            if lock is None or not lock.is_acquired:
                raise NotHeld
        case "release":
            if lock is None:
                raise NotHeld
            lock.release()
            lock = None
        case "quit":
            pass
        case op:
            return {"ok": False, "why": f"no such op: {op}"}, lock
    return {"ok": True}, lock


def main():
    client = KazooClient(hosts=sys.argv[1], timeout=SESSION_SECONDS)
    client.start(timeout=30)
    lock = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            said, lock = answer(client, lock, request)
        except Exception as error:  # what the client says of it is the answer
            said = {"ok": False, "why": str(error)}
        print(json.dumps(said), flush=True)
        if request["op"] == "quit":
            break
    client.stop()


main()
