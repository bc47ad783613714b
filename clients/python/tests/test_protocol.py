"""The protocol step by step, with answers made up here: no service, no waiting."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional, Tuple, Union

import pytest

import tenure
from tenure import _clock, _protocol
from tenure._held import BATCH_BYTES_MAX, BATCH_MAX, Held, due
from tenure._protocol import Answer, Claim, Grant, Pause, Post, Wish

Script = List[Union[Tuple[int, Dict[str, Any]], tenure.Unavailable]]
HELD: Dict[str, Any] = {"token": 7, "number": 1, "expires_in_ms": 9_890, "state": "held"}
AWAY = tenure.Unavailable("no answer", certainty="unknown")


def play(steps: _protocol.Steps, script: Script) -> Tuple[Any, List[Post]]:
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
            if isinstance(told, tenure.Unavailable):
                step = steps.throw(told)
            else:
                named = {key: step.body[key] for key in ("name", "owner", "claim")} if told[0] in (200, 202) else {}
                step = steps.send(Answer(told[0], {**named, **told[1]}, _clock.now(), told[1].get("retry_after")))
    except StopIteration as done:
        assert left == []
        return done.value, posts


def acquire(script: Script, patience: Optional[float] = None, claim: Optional[Claim] = None) -> Tuple[Any, List[Post]]:
    return play(_protocol.acquire(claim or Claim(Wish("n", 10.0)), patience), script)


def ids(posts: List[Post]) -> List[Tuple[str, str]]:
    return [(post.body["owner"], post.body["claim"]) for post in posts]


def test_the_deadline_counts_from_before_the_request_was_sent() -> None:
    grant = _protocol.granted(Claim(Wish("n", 10.0)), Answer(200, HELD, (100.0,)))
    assert grant.deadline == pytest.approx((109.89,))


def test_waiting_goes_on_with_the_same_claim_and_keeps_its_place() -> None:
    grant, posts = acquire([(202, {}), (202, {}), (200, HELD)])
    assert grant.token == 7
    assert len(set(ids(posts))) == 1
    assert [(post.body["queue"], post.body["wait_ms"]) for post in posts] == [(True, 50_000)] * 3
    assert all(post.timeout > 50 for post in posts)


def test_the_last_wait_lets_the_service_end_the_claim() -> None:
    _, posts = acquire([(200, HELD)], patience=5.0)
    assert "queue" not in posts[0].body and 4_900 <= posts[0].body["wait_ms"] <= 5_000


def test_where_there_is_another_service_none_is_waited_for_longer_than_the_place_lasts() -> None:
    _, posts = play(_protocol.acquire(Claim(Wish("n", 9.0)), None, services=2), [(202, {}), AWAY, (200, HELD)])
    assert [(post.body["queue"], post.body["wait_ms"]) for post in posts] == [(True, 3_000)] * 3
    assert all(post.timeout < 9 for post in posts)
    assert len(set(ids(posts))) == 1


def test_a_long_wait_that_ends_without_an_answer_is_repeated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = _protocol.acquire(Claim(Wish("n", 10.0)), None)
    next(steps)
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert isinstance(steps.throw(AWAY), Pause)
    assert isinstance(steps.send(None), Post)


def test_a_request_without_an_answer_is_repeated_as_it_was() -> None:
    grant, posts = acquire([AWAY, (503, {"kind": "unavailable"}), (200, HELD)])
    assert grant is not None and len(set(ids(posts))) == 1
    tried, posts = acquire([AWAY, (409, {"kind": "busy"})], patience=0)
    assert tried is None and len(set(ids(posts))) == 1


def test_superseded_once_is_repeated_and_twice_is_an_error() -> None:
    grant, _ = acquire([(409, {"kind": "superseded"}), (200, HELD)])
    assert grant is not None
    with pytest.raises(tenure.Superseded):
        acquire([(409, {"kind": "superseded"}), (409, {"kind": "superseded"})])


def test_what_is_left_of_a_lost_holder_is_sent_back() -> None:
    _, posts = acquire([(503, {"certainty": "not_applied", "holder_expires_in_ms": 1_234}), (200, HELD)])
    assert 1_000 < posts[1].body["presumed_ms"] <= 1_234 and "presumed_ms" not in posts[0].body


def test_what_is_left_of_a_lost_holder_is_not_forgotten_by_the_next_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(_clock, "now", lambda: (clock[0],))
    steps = _protocol.acquire(Claim(Wish("n", 10.0)), None)
    assert isinstance(next(steps), Post)
    sent = []
    for told in ({"holder_expires_in_ms": 9_000}, {}, {"holder_expires_in_ms": 500}, {"holder_expires_in_ms": 12_000}, {}):
        assert isinstance(steps.send(Answer(503, told, _clock.now())), Pause)
        clock[0] += 1.0
        post = steps.send(None)
        assert isinstance(post, Post)
        sent.append(post.body["presumed_ms"])
    assert sent == [8_000, 7_000, 6_000, 11_000, 10_000]


def test_who_does_not_wait_presumes_nothing() -> None:
    tried, posts = acquire([(503, {"holder_expires_in_ms": 1_234}), (409, {"kind": "busy"})], patience=0)
    assert tried is None and "presumed_ms" not in posts[1].body  # the service refuses it there


@pytest.mark.parametrize("status", [200, 202, 409, 410])
@pytest.mark.parametrize("wrong", [{"owner": "another"}, {"claim": "another"}, {"name": "another"}])
def test_an_answer_about_another_claim_is_not_believed(status: int, wrong: Dict[str, str]) -> None:
    told = {**HELD, "kind": {409: "busy", 410: "broken"}.get(status), **wrong}
    grant, posts = acquire([(status, told), (200, HELD)])
    assert grant is not None and len(set(ids(posts))) == 1
    assert [post.fresh for post in posts] == [False, True], "the connection may carry another's answers"


def test_a_grant_that_names_nobody_is_not_believed() -> None:
    grant, posts = acquire([(200, {**HELD, "owner": None}), (200, HELD)])
    assert grant is not None and len(posts) == 2


def test_a_release_believes_only_its_own_answer() -> None:
    others = (200, {**HELD, "owner": "another"})
    done, posts = play(_protocol.release(Claim(Wish("n", 10.0)), 5.0), [others, (200, {}), (200, {"released": True})])
    assert done is True and len(posts) == 3


@pytest.mark.parametrize("left", [None, "soon", True, -1, float("nan"), float("inf"), 10**400, [9_890]])
def test_a_grant_that_does_not_say_how_long_is_not_believed(left: Any) -> None:
    grant, posts = acquire([(200, {**HELD, "expires_in_ms": left}), (200, {**HELD, "token": "7"}), (200, HELD)])
    assert grant.token == 7 and len(posts) == 3


def test_bodies_are_sent_without_escapes() -> None:
    assert _protocol.encoded({"name": "bestellung/ü/订单"}) == '{"name":"bestellung/ü/订单"}'.encode()
    with pytest.raises(tenure.Invalid):
        _protocol.encoded({"name": "\ud800"})


def test_a_grant_with_little_left_is_renewed_before_work_starts() -> None:
    grant, posts = acquire([(200, {**HELD, "expires_in_ms": 4_000}), (200, HELD)])
    assert [post.path for post in posts] == ["/v1/acquire", "/v1/renew"]
    assert _clock.left(grant.deadline) > 9


def test_a_grant_that_is_gone_when_it_is_renewed_is_made_anew() -> None:
    grant, posts = acquire([(200, {**HELD, "expires_in_ms": 0}), (410, {"kind": "lost"}), (200, HELD)])
    assert [post.path for post in posts] == ["/v1/acquire", "/v1/renew", "/v1/acquire"]
    assert ids(posts)[0] == ids(posts)[1] != ids(posts)[2]
    assert grant.claim.owner == posts[2].body["owner"]


def test_a_store_without_a_queue_is_asked_without_one() -> None:
    _, posts = acquire([(400, {"kind": "invalid", "field": "queue"}), (409, {"kind": "timeout"}), (200, HELD)])
    assert ["queue" in post.body for post in posts] == [True, False, False]


@pytest.mark.parametrize(
    ("status", "kind", "error", "left_behind"),
    [
        (400, "invalid", tenure.Invalid, False),
        (401, "unauthorized", tenure.Denied, False),
        (403, "forbidden", tenure.Denied, False),
        (409, "conflict", tenure.Conflict, False),
        (410, "broken", tenure.Broken, False),
    ],
)
def test_refusals_are_told_at_once(status: int, kind: str, error: type, left_behind: bool) -> None:
    claim = Claim(Wish("n", 10.0))
    with pytest.raises(error) as failed:
        acquire([(status, {"kind": kind, "message": "no", "hint": "do this", "request_id": "r1"})], claim=claim)
    told = failed.value
    assert isinstance(told, tenure.TenureError)
    assert (told.kind, told.hint, told.request_id, told.status) == (kind, "do this", "r1", status)
    assert claim.maybe is left_behind


def test_what_was_never_answered_must_be_cleaned_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_protocol, "SILENCE_MAX", -1.0)  # the first failure is one too many
    claim = Claim(Wish("n", 10.0))
    with pytest.raises(tenure.Unavailable):
        acquire([AWAY], claim=claim)
    assert claim.maybe


def test_release_names_the_claim_and_is_repeated() -> None:
    claim = Claim(Wish("n", 10.0))
    done, posts = play(_protocol.release(claim, 5.0), [AWAY, (200, {"released": True})])
    assert done is True and dict(posts[0].body) == {"name": "n", "owner": claim.owner, "claim": claim.id}
    gone, _ = play(_protocol.release(claim, 5.0), [(410, {"kind": "gone"})])
    assert gone is False


def held(ttl: float = 9.0, name: str = "n") -> Held:
    now = _clock.now()
    return Held(Grant(Claim(Wish(name, ttl)), 7, _clock.after(now, ttl), now))


def renewed(lease: Held, told: Any) -> Optional[tenure.Lost]:
    """What a lease makes of an answer that names it."""
    return lease._renewed(_clock.now(), {**lease._claim.named(), **told})


def sent(leases: List[Held]) -> List[List[str]]:
    """The names of what is due, by requests."""
    return [[lock["name"] for lock in batch.post().body["locks"]] for batch in due(leases)]


def test_a_lease_past_its_deadline_is_not_held_whoever_is_told_of_it() -> None:
    lease = held()
    assert lease.is_held()
    lease._deadline = _clock.after(_clock.now(), -0.001)
    assert not lease.is_held() and lease.remaining() == 0.0
    with pytest.raises(tenure.Lost):
        lease.check()


def test_a_renewal_never_brings_the_deadline_nearer() -> None:
    lease = held()
    before = lease._deadline
    assert renewed(lease, {"state": "held", "expires_in_ms": 1_000}) is None
    assert lease._deadline == before
    assert renewed(lease, {"state": "held", "expires_in_ms": 60_000}) is None
    assert lease.remaining() > 59


def test_a_renewal_that_is_not_known_is_asked_for_again_and_a_loss_is_one() -> None:
    lease = held()
    assert renewed(lease, {"state": "unknown"}) is None and lease.is_held()
    for state in ("lost", "broken", "waiting"):
        why = renewed(lease, {"state": state, "message": "by ana"})
        assert isinstance(why, tenure.Lost) and "by ana" in str(why)
        assert isinstance(why, tenure.Broken) == (state == "broken")


@pytest.mark.parametrize(
    "told",
    [None, "held", [], {}, {"state": "lost"}, {"state": 7}, {"state": "held"}, {"state": "held", "expires_in_ms": "60000"},
     {"state": "lost", "owner": "another"}, {"state": "held", "expires_in_ms": 60_000, "claim": "another"}],
)  # fmt: skip
def test_an_answer_that_is_none_changes_nothing_and_is_asked_for_again(told: Any) -> None:
    lease = held()
    before = lease._deadline
    named = lease._claim.named() if isinstance(told, dict) and told.get("state") != "lost" else {}
    assert lease._renewed(_clock.now(), {**named, **told} if isinstance(told, dict) else told) is None
    assert lease.is_held() and lease._deadline == before
    assert _clock.left(lease._renew_at) < 0.3


def test_what_is_due_soon_goes_along() -> None:
    leases = [held(name="a"), held(name="b")]
    assert sent(leases) == []
    leases[0]._renew_at = _clock.after(_clock.now(), -0.1)
    leases[1]._renew_at = _clock.after(_clock.now(), 0.9)
    assert sent(leases) == [["a", "b"]]
    leases[0]._batch = leases[1]._batch = None
    leases[1]._renew_at = _clock.after(_clock.now(), 1.1)
    assert sent(leases) == [["a"]]


def past_due(leases: List[Held]) -> List[Held]:
    for lease in leases:
        lease._renew_at = _clock.after(_clock.now(), -0.1)
    return leases


def test_what_is_under_way_is_not_sent_again_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = past_due([held(name="a")])
    (first,) = due(leases)
    leases += past_due([held(name="b")])
    assert sent(leases) == [["b"]]
    now = _clock.now()
    monkeypatch.setattr(_clock, "now", lambda: _clock.after(now, 5.0))
    assert sent(leases) == [["a", "b"]], "neither came back in time"
    assert first.answered(None) == [] and sent(leases) == [], "a late one does not end the next"


def test_leases_of_other_ttls_have_requests_of_their_own() -> None:
    leases = past_due([held(3.0, "a"), held(90.0, "b"), held(3.5, "c")])
    assert sorted(map(sorted, sent(leases))) == [["a", "c"], ["b"]]
    assert leases[1]._batch is not None and leases[1]._batch.post().timeout == 15.0


def test_a_batch_that_is_too_large_is_split() -> None:
    leases = past_due([held(name=f"{index:05}") for index in range(BATCH_MAX + 1)])
    assert [len(names) for names in sent(leases)] == [BATCH_MAX, 1]
    leases = past_due([held(name="\x01" * 1_000 + str(index)) for index in range(BATCH_MAX)])
    bodies = [batch.post().encoded() for batch in due(leases)]
    assert len(bodies) == 7 and all(len(body) <= BATCH_BYTES_MAX + 100 for body in bodies)


@pytest.mark.parametrize("ttl", ["10s", None, True, 0, -1, float("nan"), float("inf")])
def test_a_ttl_that_is_no_number_of_seconds_is_refused_when_the_lock_is_made(ttl: Any) -> None:
    with pytest.raises(tenure.Invalid, match="ttl is a number of seconds"):
        tenure.Client().lock("x", ttl=ttl)


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_name_that_is_no_text_is_refused_when_the_lock_is_made(name: Any) -> None:
    with pytest.raises(tenure.Invalid, match="a name is text"):
        tenure.Client().lock(name)
