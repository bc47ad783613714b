"""redis-py's Lock, driven by lines of JSON (see ../README.md)."""

import json
import sys

import redis


class NotHeld(Exception):
    """There is nothing to extend or release."""

    def __init__(self):
        super().__init__("not held")


def acquire(client, request):
    # Without a timeout the lock stays until it is released: redis-py's default.
    timeout = request["ttl_ms"] / 1000 if "ttl_ms" in request else None
    lock = client.lock(request["key"], timeout=timeout)
    wait = request["wait_ms"] / 1000
    granted = lock.acquire(blocking=wait > 0, blocking_timeout=wait if wait > 0 else None)
    return lock if granted else None


def answer(client, lock, request):
    """What to answer, and the lock that is held then."""
    if lock is None and request["op"] in ("extend", "held", "release"):
        raise NotHeld
    match request["op"]:
        case "acquire":
            lock = acquire(client, request)
            return ({"ok": True} if lock else {"ok": False, "why": "busy"}), lock
        case "extend":
            lock.extend(request["ttl_ms"] / 1000, replace_ttl=True)
        case "held":
            if not lock.owned():
                raise NotHeld
        case "release":
            lock.release()
            lock = None
        case "quit":
            pass
        case op:
            return {"ok": False, "why": f"no such op: {op}"}, lock
    return {"ok": True}, lock


def main():
    client = redis.Redis.from_url(sys.argv[1])
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


main()
