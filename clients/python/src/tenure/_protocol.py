"""How a claim is made and ended, without any I/O.

Each function here is a generator: it yields what is to be done (:class:`Post`, :class:`Pause`), is sent an
:class:`Answer` or is thrown :class:`Unavailable`, and returns its result. The threaded and the asyncio client drive the
same generators.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import Any, Collection, Dict, Generator, Mapping, Optional, Union

from . import _clock
from ._clock import Moment
from ._errors import Invalid, Lost, LockTimeout, Superseded, TenureError, Unavailable, refusal

#: The service waits no longer in one request: proxies give up after 60 s.
WAIT_MAX = 50.0
#: How long an answer may take beyond what was asked to be waited for.
ANSWER_MAX = 10.0
#: An acquire fails when nobody has answered for so long.
SILENCE_MAX = 10.0
_PAUSES = (0.05, 0.1, 0.25, 0.5, 1.0)
#: A grant with less than half its ttl left is renewed before it is given out; so often at most.
_REFRESH_MAX = 3
#: No time that the service tells is nearly as long: a ttl is 24 h at most.
_MS_MAX = 1_000_000_000


@dataclass(frozen=True)
class Post:
    """A request to be sent, to whichever service is used now."""

    path: str
    body: Mapping[str, Any]
    #: For all of it, from the connection to the last byte of the answer.
    timeout: float
    #: Over a new connection: the last one was not to be trusted.
    fresh: bool = False
    #: A GET has no body.
    method: str = "POST"

    def encoded(self) -> bytes:
        return b"" if self.method == "GET" else encoded(self.body)


@dataclass(frozen=True)
class Pause:
    """A time to be waited."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """What came back, and when the request had been sent."""

    status: int
    body: Mapping[str, Any]
    sent: Moment
    retry_after: Optional[float] = None
    #: A memo as it came, and what is said of it.
    value: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Steps = Generator[Union[Post, Pause], Any, Any]


def check_seconds(field: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise Invalid(f"{field} is a number of seconds, and not {value!r}", field=field)


def check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise Invalid(f"a name is text of 1 to 512 bytes, and not {name!r}", field="name")


@dataclass(frozen=True)
class Wish:
    """What is wanted."""

    name: str
    ttl: float
    label: Optional[str] = None
    shared: bool = False
    units: Optional[int] = None
    capacity: Optional[int] = None

    def __post_init__(self) -> None:
        check_seconds("ttl", self.ttl)
        check_name(self.name)

    @property
    def ttl_ms(self) -> int:
        return max(1, round(self.ttl * 1000))


@dataclass
class Claim:
    """One wish to hold a name. Its owner and id are its own, so that threads do not re-enter each other."""

    wish: Wish
    owner: str = field(default_factory=lambda: secrets.token_hex(16))
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    #: Whether the store may have it: then it must be released when it is given up.
    maybe: bool = False

    def named(self) -> Dict[str, Any]:
        return {"name": self.wish.name, "owner": self.owner, "claim": self.id}

    def renewal(self) -> Dict[str, Any]:
        return {**self.named(), "ttl_ms": self.wish.ttl_ms}

    def acquire(self, wait: float, queue: bool, presumed_ms: int) -> Dict[str, Any]:
        wish = self.wish
        body: Dict[str, Any] = {**self.renewal(), "wait_ms": int(wait * 1000)}
        if queue:
            body["queue"] = True
        if wish.shared:
            body["shared"] = True
        if wish.capacity is not None:
            body["capacity"] = wish.capacity
            body["units"] = wish.units or 1
        if wish.label is not None:
            body["label"] = wish.label
        if presumed_ms and (queue or body["wait_ms"]):
            body["presumed_ms"] = presumed_ms
        return body

    def anew(self) -> None:
        """Becomes another claim for the same wish."""
        fresh = Claim(self.wish)
        self.owner, self.id, self.maybe = fresh.owner, fresh.id, False


@dataclass(frozen=True)
class Grant:
    """A claim that holds, until a deadline of our own clock."""

    claim: Claim
    token: Optional[int]
    deadline: Moment
    renewed: Moment


def encoded(body: Mapping[str, Any]) -> bytes:
    """A body as it is sent: UTF-8, without escapes that would make it up to three times as long."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{error.object!r} is not valid Unicode", certainty="not_applied") from error


def seconds(ms: Any) -> Optional[float]:
    """A time as the service tells it, in seconds; None if it is none."""
    if isinstance(ms, bool) or not isinstance(ms, (int, float)) or not 0 <= ms <= _MS_MAX:
        return None
    return ms / 1000


def is_about(named: Mapping[str, Any], body: Any) -> bool:
    """Whether an answer names this very claim. Any other is somebody else's, however it came here."""
    return isinstance(body, Mapping) and all(body.get(key) == value for key, value in named.items())


def believed(named: Mapping[str, Any], answer: Answer, naming: Collection[int] = (200, 202)) -> Answer:
    """The answer, unless it names another claim: then nobody has answered, and whether it took effect is unknown.

    Answers with a status of `naming` have to name the claim; the others may.
    """
    told = {key: value for key, value in answer.body.items() if value is not None}
    if is_about(named, told if answer.status in naming else {**named, **told}):
        return answer
    raise Unavailable("what was answered is not about this claim", certainty="unknown", status=answer.status)


def granted(claim: Claim, answer: Answer) -> Grant:
    """The deadline counts from before the request was sent, by what this very answer says is left."""
    left, token = seconds(answer.body.get("expires_in_ms")), answer.body.get("token")
    if left is None or isinstance(token, bool) or not isinstance(token, (int, type(None))):
        raise Unavailable("what answered is not the tenure service", certainty="unknown", status=answer.status)
    return Grant(replace(claim), token, _clock.after(answer.sent, left), answer.sent)


def pause_before(attempt: int) -> float:
    """How long to wait before a request is repeated: longer each time, and not all clients at once."""
    return _PAUSES[min(attempt, len(_PAUSES) - 1)] * (0.5 + random.random() / 2)


def longest_wait(ttl: float, services: int) -> float:
    """How long one request waits. An instance that hangs does not renew the claim that waits there: where there is
    another one, it is asked while the claim still has its place."""
    return WAIT_MAX if services == 1 else min(WAIT_MAX, max(1.0, ttl / 3))


def acquire(claim: Claim, patience: Optional[float], services: int = 1) -> Steps:
    """Acquires: returns a :class:`Grant`, or None if `patience` is 0 and it is held by somebody else.

    `patience` None waits for ever. A request that breaks off is repeated with the same owner and claim: that is a retry,
    and keeps the place in the queue.
    """
    until = None if patience is None else time.monotonic() + patience
    longest = longest_wait(claim.wish.ttl, services)
    grace = ANSWER_MAX if services == 1 else longest
    silent_since: Optional[float] = None
    failures = 0
    superseded = False
    can_queue = True
    #: Until when whoever held it before this claim was lost may hold it still, as any answer has said.
    presumed: Optional[Moment] = None
    problem: TenureError = LockTimeout("not granted in time")
    while True:
        left = longest * 2 if until is None else max(0.0, until - time.monotonic())
        # The last request ends the claim at the service if it is not granted; the others keep its place.
        queue = can_queue and left > longest
        wait = min(left, longest)
        claim.maybe = True
        presumed_ms = 0 if presumed is None else max(0, math.ceil(_clock.left(presumed) * 1000))
        ask = Post("/v1/acquire", claim.acquire(wait, queue, presumed_ms), wait + grace, fresh=failures > 0)
        try:
            answer = believed(claim.named(), (yield ask))
            first = granted(claim, answer) if answer.status == 200 else None
        except Unavailable as error:
            answer, first, problem = None, None, error
        if answer is not None and answer.status < 500:
            silent_since, failures = None, 0
            if first is not None:
                grant = yield from _fresh(claim, first)
                if grant is not None:
                    return grant
                claim.anew()
            elif answer.status == 202:
                continue
            elif answer.status == 429:
                problem = refusal(answer.status, answer.body)
                yield Pause(min(answer.retry_after or 1.0, left or 1.0))
            else:
                problem = refusal(answer.status, answer.body)
                if isinstance(problem, Superseded) and not superseded:
                    superseded = True  # most likely by a late copy of a request of our own
                    continue
                if answer.status == 400 and problem.field == "queue" and queue:
                    can_queue = False
                    continue
                claim.maybe = isinstance(problem, Superseded)
                if not isinstance(problem, LockTimeout):
                    raise problem
                if patience == 0:
                    return None
        else:
            if answer is not None:
                problem = refusal(answer.status, answer.body)
                told = seconds(answer.body.get("holder_expires_in_ms"))
                if told is not None:
                    presumed = _clock.later(presumed, _clock.after(_clock.now(), told))
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > SILENCE_MAX:
                raise problem
            pause = pause_before(failures)
            if answer is not None and answer.retry_after:
                pause = min(answer.retry_after, 1.0)
            yield Pause(pause if until is None or patience == 0 else min(pause, max(0.0, until - time.monotonic())))
            failures += 1
            if patience == 0:
                continue  # whether it was granted is not known yet
        if until is not None and time.monotonic() >= until:
            raise problem


def _fresh(claim: Claim, grant: Grant) -> Steps:
    """A grant that begins with at least half its ttl; None if it was lost before it began."""
    for turn in range(_REFRESH_MAX):
        if _clock.left(grant.deadline) >= claim.wish.ttl / 2:
            return grant
        ask = Post("/v1/renew", claim.renewal(), max(0.25, claim.wish.ttl / 3), fresh=turn > 0)
        try:
            answer = believed(claim.named(), (yield ask))
            if answer.status == 200 and answer.body.get("state") == "held":
                grant = granted(claim, answer)
        except Unavailable:
            continue
        if answer.status == 410:
            return None
    if _clock.left(grant.deadline) > 0:
        return grant
    yield from release(claim, 1.0)
    return None


def release(claim: Claim, patience: float) -> Steps:
    """Ends a claim, waiting or holding. True if this did it; False if it was gone, or nobody said so in time."""
    until = time.monotonic() + patience
    failures = 0
    while True:
        timeout = max(0.5, min(5.0, until - time.monotonic()))
        try:
            answer = believed(claim.named(), (yield Post("/v1/release", claim.named(), timeout, fresh=failures > 0)), naming=())
        except Unavailable:
            answer = None
        if answer is not None and answer.status == 200 and answer.body.get("released") is True:
            return True
        if answer is not None and 400 <= answer.status < 500 and answer.status != 429:
            if answer.status == 410:
                return False
            raise refusal(answer.status, answer.body)
        if time.monotonic() >= until:
            return False
        yield Pause(pause_before(failures))
        failures += 1


def loss(answer: Mapping[str, Any]) -> Optional[Lost]:
    """Why a claim is lost, by one answer of a batch of renewals; None if it does not say so."""
    state = answer.get("state")
    if state not in ("lost", "broken", "waiting"):
        return None
    told = {"kind": "broken" if state == "broken" else "lost", **answer}
    told["message"] = f"the lease was {state}" + (f" {answer['message']}" if answer.get("message") else "")
    error = refusal(410, told)
    return error if isinstance(error, Lost) else Lost(str(error))
