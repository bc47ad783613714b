"""What comes late, in pieces, garbled or for somebody else."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest
from conftest import until
from fake import Fake, Told, held, usual

import tenure
from tenure import _clock
from tenure._http import Services
from tenure._protocol import Post
from tenure._thread_http import Transport


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    yield made
    made.close()


def with_threads(url: str, work: Callable[[Callable[[str, float], tenure.Lease]], None]) -> None:
    with tenure.Client(url) as client:
        work(lambda name, ttl: client.lock(name, ttl=ttl).acquire(timeout=5))


def with_loop(url: str, work: Callable[[Callable[[str, float], tenure.AsyncLease]], None]) -> None:
    """The loop runs in a thread of its own; `work` is outside of it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make() -> tenure.AsyncClient:
        return tenure.AsyncClient(url)

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    client = wait(make())
    try:
        work(lambda name, ttl: wait(client.lock(name, ttl=ttl).acquire(timeout=5)))
    finally:
        wait(client.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


both = pytest.mark.parametrize("drive", [with_threads, with_loop])


@both
def test_a_renewal_that_is_slow_costs_no_other_lease(drive: Any, fake: Fake) -> None:
    open_again = threading.Event()

    def slow(path: str, body: Dict[str, Any]) -> Optional[Told]:
        if any(lock["name"] == "slow" for lock in body.get("locks", [])):
            open_again.wait(10)
        return None

    fake.instead = slow

    def work(acquire: Callable[[str, float], tenure.Lease]) -> None:
        one, other = acquire("slow", 90.0), acquire("healthy", 3.0)
        one._renew_at = _clock.now()  # a third of 90 s has passed
        until("the slow one is asked for", lambda: fake.renewals("slow") > 0)
        before = fake.renewals("healthy")
        until("the other is renewed", lambda: fake.renewals("healthy") >= before + 4 or other.loss)
        assert other.is_held() and one.is_held()
        assert fake.renewals("slow") == 1, "it is under way still"
        open_again.set()

    try:
        drive(fake.url, work)
    finally:
        open_again.set()


GARBLED: List[Any] = [
    lambda lock: {key: value for key, value in held(lock).items() if key != "expires_in_ms"},
    lambda lock: {**held(lock), "expires_in_ms": None},
    lambda lock: {**held(lock), "owner": "another", "expires_in_ms": 3_600_000},
    lambda lock: {"state": "lost", "name": lock["name"], "owner": "another", "claim": lock["claim"]},
    lambda lock: {**held(lock), "state": "lost", "kind": [], "claim": "another"},
    lambda lock: None,
]


@both
@pytest.mark.parametrize("garbled", GARBLED)
def test_a_garbled_renewal_is_repeated_and_renewals_go_on(drive: Any, fake: Fake, garbled: Any) -> None:
    left = [2]

    def answer(path: str, body: Dict[str, Any]) -> Optional[Told]:
        if "locks" not in body or left[0] == 0:
            return None
        left[0] -= 1
        return 200, {"locks": [garbled(lock) for lock in body["locks"]]}

    fake.instead = answer

    def work(acquire: Callable[[str, float], tenure.Lease]) -> None:
        lease = acquire("n", 3.0)
        until("it is renewed after that", lambda: fake.renewals("n") >= 4 or lease.loss)
        assert lease.is_held() and lease.remaining() < 4

    drive(fake.url, work)


@both
def test_an_acquire_does_not_take_what_was_granted_to_somebody_else(drive: Any, fake: Fake) -> None:
    left = [1]

    def answer(path: str, body: Dict[str, Any]) -> Optional[Told]:
        if path != "/v1/acquire" or left[0] == 0:
            return None
        left[0] -= 1
        return 200, {**held(body), "owner": "another", "token": 1}

    fake.instead = answer

    def work(acquire: Callable[[str, float], tenure.Lease]) -> None:
        assert acquire("n", 10.0).token == 7

    drive(fake.url, work)


class Late:
    """Answers an acquire only after the client was closed: it is granted, or waits on."""

    def __init__(self, fake: Fake, status: int) -> None:
        self._fake, self._status = fake, status
        self.asked, self.closed = threading.Event(), threading.Event()
        fake.instead = self._answer

    def _answer(self, path: str, body: Dict[str, Any]) -> Optional[Told]:
        if path != "/v1/acquire":
            return None
        self.asked.set()
        self.closed.wait(10)
        if len(self._fake.paths(path)) > 3:
            return 409, {"kind": "conflict", "message": "it goes on and on"}
        return self._status, {**held(body), "state": "waiting"}

    def check(self) -> None:
        (ask,) = self._fake.paths("/v1/acquire")
        assert [body["claim"] for body in self._fake.paths("/v1/release")] == [ask["claim"]], "it is given back"


closing = pytest.mark.parametrize("status", [200, 202])


@closing
def test_what_is_acquired_while_the_client_closes_is_given_up(fake: Fake, status: int) -> None:
    late = Late(fake, status)
    client = tenure.Client(fake.url)
    told: List[Any] = []

    def acquire() -> None:
        try:
            told.append(client.lock("n").acquire())
        except tenure.TenureError as error:
            told.append(error)

    thread = threading.Thread(target=acquire)
    thread.start()
    assert late.asked.wait(10)
    client.close()
    late.closed.set()
    thread.join(10)
    assert isinstance(told[0], tenure.Unavailable), told
    late.check()


@closing
def test_the_same_with_an_event_loop(fake: Fake, status: int) -> None:
    late = Late(fake, status)

    async def work() -> None:
        client = tenure.AsyncClient(fake.url)
        acquiring = asyncio.ensure_future(client.lock("n").acquire())
        assert await asyncio.get_running_loop().run_in_executor(None, late.asked.wait, 10)
        await client.close()
        late.closed.set()
        with pytest.raises(tenure.Unavailable):
            await asyncio.wait_for(acquiring, 20)

    asyncio.run(work())
    late.check()


def test_all_of_a_request_ends_in_time_though_bytes_keep_coming() -> None:
    """An answer of which one byte comes every 50 ms: no single one is late."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            body = b'{"released":true}'
            try:
                for byte in b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body):
                    connection.sendall(bytes([byte]))
                    time.sleep(0.05)
            except OSError:
                pass

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    transport = Transport(Services(f"http://127.0.0.1:{listener.getsockname()[1]}"))
    with pytest.raises(tenure.Unavailable):
        transport.post(Post("/v1/release", {}, 0.5))
    thread.join(10)
    listener.close()


def test_what_is_not_json_is_not_believed_however_deep_it_is(fake: Fake) -> None:
    left = [b"[" * 200_000, b"<html>", b'{"expires_in_ms": NaN}']

    def answer(path: str, body: Dict[str, Any]) -> Optional[Told]:
        return (200, left.pop()) if left else (200, usual(path, body))

    fake.instead = answer
    with tenure.Client(fake.url) as client:
        assert client.lock("n").acquire(timeout=20).token == 7
