"""A child process has nothing of what its parent holds, and is served like any other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from typing import Any, Callable

import pytest
from conftest import Proxy, until, view
from fake import Fake

import tenure
from tenure._protocol import Claim, Pause, Post, Steps

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(work: Callable[[], Any]) -> Any:
    """Forks, and tells what `work` returns in the child. One that hangs is ended by an alarm."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            told = work()
        except BaseException as error:
            told = repr(error)
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"
    return json.loads(text)


def test_a_child_does_not_hold_what_its_parent_holds(client: tenure.Client, name: str) -> None:
    lease = client.lock(name, ttl=10).acquire()

    def child() -> Any:
        told = [lease.is_held(), lease.remaining(), lease.release(), lease.lost.is_set()]
        client.close()
        try:
            lease.check()
        except tenure.Lost as error:
            told.append("forked" in str(error))
        return told

    assert in_child(child) == [False, 0.0, False, True, True]
    lease.check()
    (holder,) = view(name)["holders"]
    assert holder["token"] == lease.token
    assert lease.release() is True


def test_leaving_a_block_in_a_child_says_so(client: tenure.Client, name: str) -> None:
    def child() -> Any:
        lock.__exit__(None, None, None)

    lock = client.lock(name)
    with lock:
        assert in_child(child).startswith("Lost(")
        assert len(view(name)["holders"]) == 1


def test_a_child_has_connections_of_its_own(proxy: Proxy, name: str) -> None:
    with tenure.Client(proxy.url) as client, client.lock(name):
        before = proxy.accepted

        def child() -> Any:
            lease = client.lock(f"{name}/child").acquire(timeout=5)
            return lease.owner, lease.is_held(), lease.release()

        _, is_held, released = in_child(child)
        assert is_held and released
        assert proxy.accepted > before
        with client.lock(f"{name}/parent").acquire(timeout=5) as lease:
            assert [holder["token"] for holder in view(f"{name}/parent")["holders"]] == [lease.token]


def test_a_parent_that_closes_a_connection_is_seen_to_by_the_service(proxy: Proxy, client: tenure.Client, name: str) -> None:
    """A child that kept the parent's connections open would keep the parent's end from being noticed."""
    go_on, told = os.pipe()
    with tenure.Client(proxy.url) as closing:
        closing.lock(name).acquire().release()
        until("a connection is kept", lambda: proxy.open == 1)
        child = os.fork()
        if child == 0:
            os.close(told)
            os.read(go_on, 1)
            os._exit(0)
    try:
        until("it is closed", lambda: proxy.open == 0)
    finally:
        os.close(told)
        os.close(go_on)
        os.waitpid(child, 0)


def test_a_child_renews_what_it_holds(client: tenure.Client, name: str) -> None:
    with client.lock(name):  # the threads of the background run

        def child() -> Any:
            lease = client.lock(f"{name}/child", ttl=0.6).acquire(timeout=5)
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                lease.check()
                time.sleep(0.02)
            return lease.release()

        assert in_child(child) is True


def test_a_child_does_not_wait_for_locks_of_threads_that_it_does_not_have(client: tenure.Client, name: str) -> None:
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with client._changed, client._transport._lock:
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(5)
    try:
        assert in_child(lambda: client.lock(name).acquire(timeout=5).release()) is True
    finally:
        leave.set()
        thread.join(5)


def test_a_child_writes_no_memo_of_its_parent_and_reads_over_connections_of_its_own(proxy: Proxy, name: str) -> None:
    with tenure.Client(proxy.url) as client, client.lock(name) as lease:
        lease.write_memo("of the parent")
        before = proxy.accepted

        def child() -> Any:
            try:
                lease.write_memo("of the child")
            except tenure.Lost as error:
                memo = client.memo(name)
                return ["forked" in str(error), memo is not None and memo.value.decode()]

        with lease._memo_lock:  # as by a thread that writes
            assert in_child(child) == [True, "of the parent"]
        assert proxy.accepted > before
        lease.write_memo("of the parent again")
        memo = client.memo(name)
        assert memo is not None and memo.value == b"of the parent again"


def test_a_child_does_not_go_on_with_its_parents_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where all that waits lives on in the child (gevent, a fork in a signal handler)."""
    pid = [1]
    monkeypatch.setattr(os, "getpid", lambda: pid[0])

    def acquire(claim: Claim, patience: object, services: int) -> Steps:
        claim.maybe = True
        yield Pause(0.0)
        pid[0] = 2
        yield Post("/v1/acquire", claim.renewal(), 5.0)

    monkeypatch.setattr("tenure._protocol.acquire", acquire)
    fake = Fake()

    async def with_loop() -> None:
        async with tenure.AsyncClient(fake.url) as client:
            await client.lock("n").acquire()

    with pytest.raises(tenure.TenureError, match="forked"), tenure.Client(fake.url) as client:
        client.lock("n").acquire()
    pid[0] = 1
    with pytest.raises(tenure.TenureError, match="forked"):
        asyncio.run(with_loop())
    assert fake.posts == [], "the parent's claim is neither asked for nor released"
    fake.close()


def test_the_same_with_an_event_loop(proxy: Proxy, name: str) -> None:
    async def work() -> None:
        async with tenure.AsyncClient(proxy.url) as client:
            lease = await client.lock(name, ttl=10).acquire()
            before = proxy.accepted

            async def own() -> Any:
                made = await client.lock(f"{name}/child", ttl=0.6).acquire(timeout=5)
                await made.protect(asyncio.sleep(1.5))
                return await made.release()

            def child() -> Any:
                inherited = [lease.is_held(), lease.lost.is_set()]
                with pytest.raises(tenure.Lost):
                    asyncio.run(lease.write_memo("of the child"))
                return [*inherited, asyncio.run(lease.release()), asyncio.run(own())]

            await lease.write_memo("of the parent")
            assert in_child(child) == [False, True, False, True]
            assert proxy.accepted > before
            lease.check()
            assert await client.lock(f"{name}/parent").try_acquire() is not None
            assert await lease.release() is True

    asyncio.run(work())


def test_both_sides_of_many_forks_hold_only_what_they_asked_for(client: tenure.Client, name: str) -> None:
    client.lock(name).acquire().release()  # a connection is kept

    for turn in range(10):

        def child(turn: int = turn) -> Any:
            return [client.lock(f"{name}/{turn}/c{index}", ttl=60).acquire(timeout=5).token for index in range(5)]

        told: Any = []
        thread = threading.Thread(target=lambda: told.append(in_child(child)))
        thread.start()
        mine = [client.lock(f"{name}/{turn}/p{index}", ttl=60).acquire(timeout=5) for index in range(5)]
        thread.join(30)
        for side, tokens in (("p", [lease.token for lease in mine]), ("c", told[0])):
            for index, token in enumerate(tokens):
                assert [holder["token"] for holder in view(f"{name}/{turn}/{side}{index}")["holders"]] == [token]
        for lease in mine:
            assert lease.release() is True
