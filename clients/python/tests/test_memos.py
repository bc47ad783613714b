"""Memos: what the exclusive holder keeps with a name."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Dict, List, Tuple

import pytest
from conftest import SERVICE, Proxy, break_lock, token, until

import tenure
from tenure import _clock, _memo
from tenure._protocol import Answer, Claim, Pause, Post, Steps, Wish


def test_what_the_holder_writes_anyone_reads(client: tenure.Client, name: str) -> None:
    assert client.memo(name) is None
    value = bytes(range(256)) + b"<script>\r\n\r\n"
    with client.lock(name) as lease:
        first = lease.write_memo(value)
        memo = client.memo(name)
        assert memo is not None
        assert (memo.value, memo.token, memo.version, memo.kind) == (value, lease.token, first, "user")
        assert 0 <= memo.age < 60
        assert lease.write_memo("grüße") > first
    with tenure.Client(SERVICE) as other:
        memo = other.memo(name)
        assert memo is not None and memo.value == "grüße".encode()
        # Over what another holder wrote, whose version it does not know.
        with other.lock(name) as lease:
            assert lease.write_memo(b"") > memo.version
        last = other.memo(name)
        assert last is not None and last.value == b"" and last.token > memo.token


def test_a_memo_ends_when_its_time_is_over(client: tenure.Client, name: str) -> None:
    with client.lock(name) as lease:
        lease.write_memo("for a moment", keep=0.3)
        until("it has ended", lambda: client.memo(name) is None)
        lease.write_memo("again")


def test_whoever_was_broken_writes_nothing_and_is_told(client: tenure.Client, name: str) -> None:
    lease = client.lock(name, ttl=60).acquire()
    version = lease.write_memo("kept")
    break_lock(name, token(lease), "by hand")
    with pytest.raises(tenure.Lost):
        lease.write_memo("late")
    assert lease.lost.is_set() and not lease.is_held()
    memo = client.memo(name)
    assert memo is not None and (memo.value, memo.version) == (b"kept", version)


def test_what_cannot_be_written_is_refused(client: tenure.Client, name: str) -> None:
    with client.lock(name) as lease:
        lease.write_memo(b"\xff" * 65536)
        with pytest.raises(tenure.Invalid) as larger:
            lease.write_memo(b"x" * 65537)
        assert larger.value.certainty == "not_applied"
        assert lease.is_held()
    with client.lock(f"{name}/shared", shared=True) as lease:
        with pytest.raises(tenure.Conflict):
            lease.write_memo("reader")
        assert lease.is_held()
    lease.release()
    with pytest.raises(tenure.Lost):
        lease.write_memo("released")


def test_a_write_whose_answer_was_lost_is_one_write(proxy: Proxy, name: str) -> None:
    with tenure.Client(proxy.url) as client, client.lock(name, ttl=60) as lease:
        before = lease.write_memo("before")
        proxy.requests.clear()
        proxy.cut_answers = 1
        version = lease.write_memo("once")
        puts = [data for data in proxy.requests if data.startswith(b"PUT ")]
        assert len(puts) == 2, "it was repeated"
        memo = client.memo(name)
        assert memo is not None and (memo.value, memo.version) == (b"once", version) and version > before


def test_tasks_write_and_read_too(name: str) -> None:
    async def work() -> None:
        async with tenure.AsyncClient(SERVICE) as client:
            assert await client.memo(name) is None
            async with client.lock(name, ttl=60) as lease:
                versions = await asyncio.gather(*(lease.write_memo(f"{n}") for n in range(5)))
                assert versions == sorted(set(versions)), "one after the other"
                memo = await client.memo(name)
                assert memo is not None and (memo.value, memo.version) == (b"4", versions[-1])
            lease = await client.lock(name, ttl=60).acquire()
            break_lock(name, token(lease), "by hand")
            with pytest.raises(tenure.Lost):
                await lease.write_memo("late")
            assert lease.lost.is_set()

    asyncio.run(work())


WRONG: List[Dict[str, Any]] = [{"name": "another"}, {"owner": "another"}, {"claim": "another"}]
CLAIM = Claim(Wish("n", 10.0))
AWAY = tenure.Unavailable("no answer", certainty="unknown")


def play(steps: Steps, script: List[Any]) -> Tuple[Any, List[Post]]:
    """Answers each request by the script; pauses pass at once. Fails if anything of the script is left."""
    posts: List[Post] = []
    left = list(script)
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                step = steps.send(None)
                continue
            posts.append(step)
            told = left.pop(0)
            step = steps.throw(told) if isinstance(told, tenure.Unavailable) else steps.send(told)
    except StopIteration as done:
        assert left == []
        return done.value, posts


def told(status: int, body: Dict[str, Any]) -> Answer:
    return Answer(status, body, _clock.now())


def write(script: List[Any], remaining: float = 10.0) -> Tuple[Any, List[Post]]:
    return play(_memo.write(CLAIM, 7, 0, _memo.fields("x", None), lambda: remaining), script)


def kept(**headers: str) -> Answer:
    usual = {"token": "7", "version": "9", "age-ms": "1500", "kind": "user"}
    spelled = {key.replace("_", "-"): value for key, value in headers.items()}
    told = {f"tenure-memo-{key}": value for key, value in {**usual, **spelled}.items()}
    return Answer(200, {}, _clock.now(), None, b"x", told)


@pytest.mark.parametrize(
    "answer",
    [
        *(told(status, {"name": "n", "version": 5, **wrong}) for status in (200, 409, 410, 412) for wrong in WRONG),
        told(200, {"version": 5}),
        *(told(200, {"name": "n", "version": version}) for version in (None, True, "5", -1, 5.5)),
        told(412, {"kind": "changed"}),
        told(503, {}),
        AWAY,
    ],
)
def test_a_write_believes_only_its_own_answer_and_is_repeated_as_it_was(answer: Any) -> None:
    version, posts = write([answer, told(200, {"name": "n", "version": 6})])
    assert version == 6
    assert [post.body for post in posts] == [posts[0].body] * 2
    assert [post.fresh for post in posts] == [False, True], "over a new connection"


def test_a_write_learns_which_version_is_there() -> None:
    version, posts = write([told(412, {"version": 4}), told(200, {"name": "n", "version": 5})])
    assert version == 5
    assert [post.body["after"] for post in posts] == [0, 4]
    assert len({post.body["write"] for post in posts}) == 1
    with pytest.raises(tenure.Invalid) as changing:
        write([told(412, {"version": at}) for at in range(20)])
    assert (changing.value.kind, changing.value.certainty) == ("invalid", "not_applied")


def test_a_refusal_after_a_write_without_an_answer_does_not_say_that_nothing_was_written() -> None:
    for script, certainty in (([], "not_applied"), ([AWAY], "unknown"), ([told(410, {"owner": "another"})], "unknown")):
        with pytest.raises(tenure.Lost) as lost:
            write([*script, told(410, {"kind": "lost"})])
        assert lost.value.certainty == certainty


def test_a_write_ends_with_its_lease() -> None:
    with pytest.raises(tenure.Unavailable) as error:
        write([AWAY], remaining=0.0)
    assert error.value.certainty == "unknown"


@pytest.mark.parametrize(
    "answer",
    [
        *(kept(**{key: value}) for key in ("token", "version", "age_ms") for value in ("", "-1", "x", "1.5", "１")),
        told(200, {"name": "n"}),
        told(404, {"kind": "no_memo", "name": "another"}),
        told(429, {}),
        AWAY,
    ],
)
def test_a_read_believes_only_its_own_answer(answer: Any) -> None:
    memo, posts = play(_memo.read("a/ü&?"), [answer, kept()])
    assert memo == tenure.Memo(b"x", 7, 9, 1.5, "user")
    assert [(post.method, post.path, post.fresh) for post in posts] == [
        ("GET", "/v1/memo?name=a%2F%C3%BC%26%3F", False),
        ("GET", "/v1/memo?name=a%2F%C3%BC%26%3F", True),
    ]


def test_another_404_is_no_empty_memo() -> None:
    with pytest.raises(tenure.Invalid):
        play(_memo.read("n"), [told(404, {"kind": "not_found"})])


def test_nothing_is_asked_for_longer_than_it_may_take(proxy: Proxy, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memo, "SILENCE_MAX", 1.0)
    with tenure.Client(proxy.url) as client, client.lock(name, ttl=60) as lease:
        proxy.freeze()
        try:
            for ask in (lambda: lease.write_memo("x"), lambda: client.memo(name)):
                began = time.monotonic()
                with pytest.raises(tenure.Unavailable):
                    ask()
                assert 0.9 < time.monotonic() - began < 5
        finally:
            proxy.thaw()
        assert lease.is_held()
        lease.write_memo("after that")


@pytest.mark.parametrize("value", [5, None, ["x"], "\ud800"])
def test_what_is_no_value_is_refused_before_it_is_sent(client: tenure.Client, name: str, value: Any) -> None:
    with client.lock(name) as lease:
        with pytest.raises(tenure.Invalid):
            lease.write_memo(value)
        buffer: Any = bytearray(b"bytes")
        lease.write_memo(buffer)
    for wrong in (0, -1.0, True, float("nan"), float("inf"), "1"):
        with pytest.raises(tenure.Invalid):
            lease.write_memo("x", keep=wrong)  # type: ignore[arg-type]
    for no_name in ("", None, 5, "\ud800"):
        with pytest.raises(tenure.Invalid):
            client.memo(no_name)  # type: ignore[arg-type]


def test_a_closed_client_reads_nothing(name: str) -> None:
    client = tenure.Client(SERVICE)
    client.close()
    with pytest.raises(tenure.Unavailable, match="closed"):
        client.memo(name)

    async def work() -> None:
        other = tenure.AsyncClient(SERVICE)
        await other.close()
        with pytest.raises(tenure.Unavailable, match="closed"):
            await other.memo(name)

    asyncio.run(work())
