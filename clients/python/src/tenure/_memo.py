"""What is kept with a name: written by its exclusive holder, read by anyone. No I/O, as in `_protocol`."""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Union
from urllib.parse import quote

from ._errors import Invalid, TenureError, Unavailable, refusal
from ._protocol import SILENCE_MAX, Answer, Claim, Pause, Post, Steps, believed, check_name, check_seconds, pause_before

#: The service keeps no more bytes.
BYTES_MAX = 64 * 1024
#: How long one request may take: one that hangs leaves another instance its time.
_REQUEST_MAX = 5.0
#: Nobody but the holder writes a memo: one try tells the version, and the next writes.
_CHANGES_MAX = 8


@dataclass(frozen=True)
class Memo:
    """What is kept with a name."""

    #: What was written.
    value: bytes
    #: The fencing number of the holder that wrote it.
    token: int
    #: Which write it is.
    version: int
    #: How many seconds ago it was written, by the store's clock.
    age: float
    #: Who keeps it: ``user``, ``once``, ``election`` or ``cached``.
    kind: str


def fields(value: Union[bytes, str], keep: Optional[float]) -> Dict[str, Any]:
    """What is to be written, as requests have it. It has a number, by which a repetition is known as one."""
    try:
        # Not of any value: bytes(5) are five zeros.
        kept = value.encode() if isinstance(value, str) else bytes(memoryview(value))
    except (TypeError, UnicodeEncodeError):
        raise Invalid("a memo is bytes or valid text", certainty="not_applied", field="value") from None
    if len(kept) > BYTES_MAX:
        message = f"a memo has at most {BYTES_MAX} bytes, this one {len(kept)}"
        raise Invalid(message, kind="too_large", certainty="not_applied", field="value")
    write = {"write": secrets.randbits(53), "value": b64encode(kept).decode()}
    if keep is None:
        return write
    check_seconds("keep", keep)
    return {**write, "keep_ms": max(1, round(keep * 1000))}


def write(claim: Claim, token: Optional[int], after: int, what: Dict[str, Any], left: Callable[[], float]) -> Steps:
    """Writes `what` over the version `after`, or over the one that is there; returns its version.

    What is not answered is repeated as it was, which is one write: for 10 s, while the lease has time `left`.
    """
    until = time.monotonic() + SILENCE_MAX
    failures = changes = 0
    unknown = False
    while True:
        body = {**claim.named(), "token": token or 0, "after": after, **what}
        timeout = max(0.25, min(_REQUEST_MAX, left(), until - time.monotonic()))
        answer: Optional[Answer] = None
        problem: TenureError
        try:
            told = believed(claim.named(), (yield Post("/v1/memo", body, timeout, failures > 0, "PUT")), naming=())
            if told.status == 200:
                return _version(believed({"name": claim.wish.name}, told))
            if told.status == 412 and changes < _CHANGES_MAX:
                after = _version(told)
                changes += 1
                continue
            answer, problem = told, refusal(told.status, told.body)
        except Unavailable as error:
            problem = error
        unknown = unknown or problem.certainty == "unknown"
        rest = min(left(), until - time.monotonic())
        if (answer is not None and _is_final(answer)) or rest <= 0:
            problem.certainty = "unknown" if unknown else "not_applied"
            raise problem
        yield Pause(min(_pause(answer, failures), rest))
        failures += 1


def read(name: str) -> Steps:
    """Reads the memo of a name: a :class:`Memo`, or None. Fails when nobody has answered for 10 s."""
    check_name(name)
    try:
        path = f"/v1/memo?name={quote(name, safe='')}"
    except UnicodeEncodeError:
        raise Invalid(f"{name!r} is not valid Unicode", certainty="not_applied", field="name") from None
    until = time.monotonic() + SILENCE_MAX
    failures = 0
    while True:
        timeout = max(0.25, min(_REQUEST_MAX, until - time.monotonic()))
        answer: Optional[Answer] = None
        problem: TenureError
        try:
            told = believed({"name": name}, (yield Post(path, {}, timeout, failures > 0, "GET")), naming=())
            if told.status == 200:
                return _memo(told)
            if told.status == 404 and told.body.get("kind") == "no_memo":
                return None
            answer, problem = told, refusal(told.status, told.body)
        except Unavailable as error:
            problem = error
        rest = until - time.monotonic()
        if (answer is not None and _is_final(answer)) or rest <= 0:
            raise problem
        yield Pause(min(_pause(answer, failures), rest))
        failures += 1


def _is_final(answer: Answer) -> bool:
    """Whether the same request would be answered the same."""
    return answer.status < 500 and answer.status != 429


def _pause(answer: Optional[Answer], failures: int) -> float:
    told = None if answer is None else answer.retry_after
    return min(told, 1.0) if told else pause_before(failures)


def _version(answer: Answer) -> int:
    version = answer.body.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise _not_the_service(answer)
    return version


def _memo(answer: Answer) -> Memo:
    def number(name: str) -> int:
        told = answer.headers.get(f"tenure-memo-{name}", "")
        if not (told.isascii() and told.isdigit()):
            raise _not_the_service(answer)
        return int(told)

    kind = answer.headers.get("tenure-memo-kind", "")
    return Memo(answer.value, number("token"), number("version"), number("age-ms") / 1000, kind)


def _not_the_service(answer: Answer) -> Unavailable:
    return Unavailable("what answered is not the tenure service", certainty="unknown", status=answer.status)
