"""A holder that is paused past its ttl, and then writes: only the token at the resource stops it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from conftest import SERVICE, token, until, view

import tenure

SCHEMA = """
CREATE TABLE IF NOT EXISTS fence (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, owner TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), value INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""
# Above the highest token accepted, or equal and of the same owner.
RULE = """
INSERT INTO fence VALUES ('counter', :token, :owner)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token, owner = excluded.owner
WHERE excluded.token > fence.token OR (excluded.token = fence.token AND excluded.owner = fence.owner)
"""

HOLDER = """
import sys, tenure
from test_paused_holder import add_one
client = tenure.Client()
with client.lock(sys.argv[1], ttl=1.0).acquire() as lease:
    print("held", lease.token, flush=True)
    sys.stdin.readline()
    accepted = add_one(sys.argv[2], lease)
    print("accepted" if accepted else "refused", lease.is_held(), flush=True)
    lease.lost.wait(5)
    print("lost" if lease.lost.is_set() else "not told", flush=True)
"""


def add_one(path: str, lease: tenure.Lease) -> bool:
    """Check and effect are one transaction."""
    with sqlite3.connect(path, timeout=10) as database:
        changed = database.execute(RULE, {"token": lease.token, "owner": lease.owner}).rowcount
        if changed:
            database.execute("UPDATE counter SET value = value + 1")
        return bool(changed)


def test_a_paused_holder_is_refused_at_the_resource(client: tenure.Client, name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "resource.db")
    sqlite3.connect(path).executescript(SCHEMA)
    here = os.path.dirname(__file__)
    source = os.path.join(here, "..", "src")
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, name, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TENURE_SERVICE": SERVICE, "PYTHONPATH": os.pathsep.join([here, source])},
    )
    try:
        assert child.stdin is not None and child.stdout is not None
        _, stale = child.stdout.readline().split()
        child.send_signal(signal.SIGSTOP)
        with client.lock(name).acquire(timeout=10) as lease:
            assert token(lease) > int(stale)
            assert add_one(path, lease)
            child.stdin.write("go\n")
            child.stdin.flush()
            child.send_signal(signal.SIGCONT)
            assert child.stdout.readline().split() == ["refused", "False"]
            assert child.stdout.readline().strip() == "lost"
            (holder,) = view(name)["holders"]
            assert holder["token"] == lease.token, "what the paused one cleans up is its own"
        until("it has ended", lambda: child.poll() is not None)
    finally:
        child.kill()
    ((value,),) = sqlite3.connect(path).execute("SELECT value FROM counter")
    assert value == 1
