from __future__ import annotations

import asyncio
import time
from typing import Any, Awaitable, Callable

import pytest
from conftest import SERVICE, Proxy, break_lock, token, view, waiters

import tenure
from tenure import _clock


async def until(what: str, condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(condition) if hasattr(asyncio, "to_thread") else not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.01)


def run(work: Callable[[tenure.AsyncClient], Awaitable[None]], url: str = SERVICE) -> None:
    async def with_client() -> None:
        async with tenure.AsyncClient(url) as client:
            await work(client)

    asyncio.run(with_client())


def test_one_holds_at_a_time(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        async with client.lock(name) as first:
            assert first.is_held()
            assert await client.lock(name).try_acquire() is None
            with pytest.raises(tenure.LockTimeout):
                await client.lock(name).acquire(timeout=0.2)
        async with client.lock(name) as second:
            assert token(second) > token(first)
        assert view(name)["holders"] == []

    run(work)


def test_those_who_wait_are_served_in_order(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        served = []

        async def one(label: str) -> None:
            async with client.lock(name, label=label):
                served.append(label)

        tasks = []
        async with client.lock(name):
            for index in range(5):
                tasks.append(asyncio.ensure_future(one(f"w{index}")))
                await until("it waits", lambda: len(waiters(name)) == index + 1)
        await asyncio.gather(*tasks)
        assert served == ["w0", "w1", "w2", "w3", "w4"]

    run(work)


def test_tasks_that_share_a_lock_leave_their_own_blocks(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        shared = client.semaphore(name, 2)
        both_in, first_left = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with shared as lease:
                await both_in.wait()
                assert lease.is_held()
            assert not lease.is_held()
            first_left.set()

        async def second() -> None:
            async with shared as lease:
                both_in.set()
                await first_left.wait()
                assert lease.is_held(), "the block of another task was left"

        one = asyncio.ensure_future(first())
        await until("one holds", lambda: len(view(name)["holders"]) == 1)
        await asyncio.gather(one, second())
        assert view(name)["holders"] == []

    run(work)


def test_a_task_whose_lease_was_broken_leaves_its_own_block(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        shared = client.lock(name, ttl=1.0)
        broken, next_in, first_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def first() -> None:
            with pytest.raises(tenure.Broken):
                async with shared as lease:
                    await asyncio.get_running_loop().run_in_executor(None, break_lock, name, token(lease), "it hangs")
                    broken.set()
                    await next_in.wait()
                    await asyncio.wait_for(lease.lost.wait(), 5)
            first_left.set()

        async def second() -> None:
            async with shared as lease:
                next_in.set()
                await first_left.wait()
                assert lease.is_held()

        one = asyncio.ensure_future(first())
        await broken.wait()
        await asyncio.gather(one, second())

    run(work)


def test_a_block_may_be_left_by_another_task_than_entered_it(name: str) -> None:
    """As fixtures of asynchronous tests are."""

    async def work(client: tenure.AsyncClient) -> None:
        lock = client.lock(name)
        lease = await asyncio.ensure_future(lock.__aenter__())
        await asyncio.ensure_future(lock.__aexit__(None, None, None))
        assert not lease.is_held()
        async with lock:

            async def foreign() -> None:
                with pytest.raises(RuntimeError):
                    await lock.__aexit__(None, None, None)

            await asyncio.ensure_future(foreign())
            assert len(view(name)["holders"]) == 1

    run(work)


def test_a_lease_is_kept_beyond_its_ttl(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        async with client.lock(name, ttl=0.6) as lease:
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                assert lease.is_held()
                await asyncio.sleep(0.02)

    run(work)


def test_cancelling_a_wait_ends_its_claim(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        # Long ttls: a claim that nobody ends would wait on for a minute.
        async with client.lock(name, ttl=60):
            waiting = asyncio.ensure_future(client.lock(name, ttl=60).acquire())
            await until("it waits", lambda: len(waiters(name)) == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await until("no waiter is left", lambda: waiters(name) == [])

    run(work)


def test_protected_work_stops_before_the_deadline(proxy: Proxy, name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        lease = await client.lock(name, ttl=5.0).acquire()
        stopped_with = []

        async def forever() -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                stopped_with.append(_clock.left(lease._deadline))

        proxy.freeze()
        with pytest.raises(tenure.Lost) as failed:
            await lease.protect(forever())
        assert failed.value.kind == "expired"
        assert stopped_with[0] > 0
        proxy.thaw()

    run(work, proxy.url)


def test_a_break_reaches_the_holder(name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        lease = await client.lock(name, ttl=1.0).acquire()
        await asyncio.get_running_loop().run_in_executor(None, break_lock, name, token(lease), "it hangs")
        await asyncio.wait_for(lease.lost.wait(), 5)
        assert isinstance(lease.loss, tenure.Broken)

    run(work)


def test_an_answer_that_never_came_is_asked_for_again(proxy: Proxy, name: str) -> None:
    async def work(client: tenure.AsyncClient) -> None:
        proxy.cut_answers = 2
        async with await client.lock(name).acquire(timeout=20) as lease:
            seen = view(name)
            assert [holder["token"] for holder in seen["holders"]] == [lease.token]
            assert seen["waiters"] == []

    run(work, proxy.url)
