from __future__ import annotations

import signal
import threading
import time
from typing import Iterator

import pytest
from conftest import SERVICE, Proxy, break_lock, token, until, view, waiters

import tenure
from tenure import _clock


def test_one_holds_at_a_time_and_tokens_rise(client: tenure.Client, name: str) -> None:
    with client.lock(name) as first:
        assert first.is_held() and 5 < first.remaining() <= 10
        assert client.lock(name).try_acquire() is None
        (holder,) = view(name)["holders"]
        assert holder["token"] == first.token
    assert view(name)["holders"] == []
    assert not first.is_held()
    second = client.lock(name).try_acquire()
    assert second is not None and token(second) > token(first)
    assert second.release() is True
    assert second.release() is False


def test_a_timeout_names_the_holder_and_leaves_no_waiter(client: tenure.Client, name: str) -> None:
    with client.lock(name, label="the holder"):
        started = time.monotonic()
        with pytest.raises(tenure.LockTimeout) as failed:
            client.lock(name).acquire(timeout=0.3)
        assert 0.29 <= time.monotonic() - started < 5
        assert failed.value.kind == "timeout"
        assert "the holder" in (failed.value.holder or "")
        assert isinstance(failed.value, TimeoutError)
        assert waiters(name) == []


def test_those_who_wait_are_served_in_order(client: tenure.Client, name: str) -> None:
    served = []
    threads = []

    def work(label: str) -> None:
        with client.lock(name, label=label):
            served.append(label)

    with client.lock(name):
        for index in range(5):
            threads.append(threading.Thread(target=work, args=(f"w{index}",)))
            threads[-1].start()
            until("it waits", lambda: len(waiters(name)) == index + 1)
    for thread in threads:
        thread.join(10)
    assert served == ["w0", "w1", "w2", "w3", "w4"]


def test_a_lease_is_kept_beyond_its_ttl(client: tenure.Client, name: str) -> None:
    with client.lock(name, ttl=0.6) as lease:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            assert lease.is_held()
            time.sleep(0.02)
        (holder,) = view(name)["holders"]
        assert holder["token"] == lease.token


def test_all_leases_are_renewed_in_one_request(proxy: Proxy, name: str) -> None:
    with tenure.Client(proxy.url) as client:
        leases = [client.lock(f"{name}/{index}", ttl=1.5).acquire() for index in range(20)]
        proxy.requests.clear()
        time.sleep(2.0)  # four rounds of renewals
        renewals = [data for data in proxy.requests if b"/v1/renew" in data]
        assert 2 <= len(renewals) <= 12, len(renewals)
        assert all(lease.is_held() for lease in leases)
        heads = [data.split(b"\r\n")[0] for data in proxy.requests if data.startswith(b"POST ")]
        assert heads and not any(b"python" in head for head in heads), "no name in a URL"


def test_shared_and_permits(client: tenure.Client, name: str) -> None:
    readers = client.lock(name, shared=True)
    with readers.acquire(timeout=5), readers.acquire(timeout=5):
        assert client.lock(name).try_acquire() is None
    permits = client.semaphore(f"{name}/permits", 2)
    with permits.acquire(timeout=5), permits.acquire(timeout=5):
        assert permits.try_acquire() is None
    with permits:
        with pytest.raises(tenure.Conflict):
            client.semaphore(f"{name}/permits", 3).try_acquire()


def test_a_bad_value_is_named(client: tenure.Client, name: str) -> None:
    with pytest.raises(tenure.Invalid) as failed:
        client.lock(name, ttl=0.001).try_acquire()
    assert failed.value.field == "ttl_ms"


def test_a_loss_is_told_before_the_deadline_when_the_service_is_gone(proxy: Proxy, client: tenure.Client, name: str) -> None:
    told = []
    with tenure.Client(proxy.url) as cut_off:
        lease = cut_off.lock(name, ttl=5.0, on_lost=lambda lost: told.append((time.monotonic(), _clock.left(lost._deadline)))).acquire()
        proxy.freeze()
        next_one = client.lock(name).acquire(timeout=20)
        granted_at = time.monotonic()
        assert lease.lost.is_set() and not lease.is_held()
        ((told_at, left),) = told
        assert left > 0, "told before its deadline"
        assert told_at < granted_at, "told before the next one holds"
        assert lease.loss is not None and lease.loss.kind == "expired"
        with pytest.raises(tenure.Lost):
            lease.check()
        assert token(next_one) > token(lease)
        next_one.release()
        proxy.thaw()


def test_leaving_a_block_says_that_the_lease_was_lost(proxy: Proxy, name: str) -> None:
    with tenure.Client(proxy.url) as client:
        with pytest.raises(tenure.Lost):
            with client.lock(name, ttl=0.5) as lease:
                proxy.freeze()
                assert lease.lost.wait(5)
                proxy.thaw()


def test_a_break_reaches_the_holder(client: tenure.Client, name: str) -> None:
    lease = client.lock(name, ttl=1.0).acquire()
    break_lock(name, token(lease), "it hangs")
    assert lease.lost.wait(5)
    assert isinstance(lease.loss, tenure.Broken)
    assert "it hangs" in str(lease.loss)


def test_an_answer_that_never_came_is_asked_for_again(proxy: Proxy, name: str) -> None:
    with tenure.Client(proxy.url) as client:
        proxy.cut_answers = 2
        with client.lock(name).acquire(timeout=20) as lease:
            seen = view(name)
            assert [holder["token"] for holder in seen["holders"]] == [lease.token]
            assert seen["waiters"] == []
        assert view(name)["holders"] == []


def test_the_next_service_is_asked_if_one_is_away(proxy: Proxy, name: str) -> None:
    proxy.close()  # nobody listens there any more
    with tenure.Client([proxy.url, SERVICE]) as client, client.lock(name) as lease:
        assert lease.is_held()


def test_no_service_at_all_is_said(proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure._protocol.SILENCE_MAX", 0.5)
    proxy.close()
    with tenure.Client(proxy.url) as client:
        for acquire in (client.lock(name).try_acquire, client.lock(name).acquire):
            with pytest.raises(tenure.Unavailable) as failed:
                acquire()
            assert failed.value.certainty == "unknown"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Shells let what they start in the background ignore interrupts, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_waiting_ends_the_claim(client: tenure.Client, name: str, interruptible: None) -> None:
    # Long ttls: a claim that nobody ends would wait on for a minute.
    with client.lock(name, ttl=60):

        def interrupt() -> None:
            until("it waits", lambda: len(waiters(name)) == 1)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            client.lock(name, ttl=60).acquire()
        thread.join(10)
        until("no waiter is left", lambda: waiters(name) == [])
