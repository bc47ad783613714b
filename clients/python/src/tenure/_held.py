"""Leases that are held: when to renew each, and when it is lost. No I/O."""

from __future__ import annotations

import math
import random
from typing import Any, Collection, Dict, Generic, List, Optional, Tuple, TypeVar

from . import _clock
from ._clock import Moment
from ._errors import Lost
from ._protocol import Answer, Grant, Post, encoded, is_about, loss, seconds

#: A batch has no more claims, and a body of no more bytes: proxies refuse a MiB.
BATCH_MAX = 1000
BATCH_BYTES_MAX = 1_000_000


class Held:
    """What a lease is, whichever way it is waited for."""

    def __init__(self, grant: Grant) -> None:
        self._claim = grant.claim
        self._deadline = grant.deadline
        self._renew_at = _clock.after(grant.renewed, grant.claim.wish.ttl / 3)
        self._loss: Optional[Lost] = None
        self._over = False
        #: The renewal that is under way, and whether the last one was not answered.
        self._batch: Optional[Batch[Any]] = None
        self._unanswered = False
        self._size = len(encoded(grant.claim.renewal())) + 1
        #: The version of the memo, as far as it is known.
        self._memo_version = 0
        #: The fencing number of this grant; None where the store has none.
        self.token = grant.token

    @property
    def name(self) -> str:
        """What is locked."""
        return self._claim.wish.name

    @property
    def owner(self) -> str:
        """Who holds it. Whoever knows it may release it: keep it to yourself."""
        return self._claim.owner

    @property
    def loss(self) -> Optional[Lost]:
        """Why the lease was lost, or None."""
        return self._loss

    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed. Reads a clock, and asks nobody."""
        if self._over or self._loss is not None:
            return 0.0
        return max(0.0, _clock.left(self._deadline))

    def is_held(self) -> bool:
        """Whether the lease can be trusted now. Reads a clock, and asks nobody."""
        return self.remaining() > 0.0

    def check(self) -> None:
        """Raises :class:`Lost` unless the lease is held."""
        if self._loss is not None:
            raise self._loss
        if not self.is_held():
            raise Lost(f"{self.name} is not held any more")

    def _early(self) -> float:
        """A loss is told so long before the deadline: the one who is told has to stop by then."""
        return min(max(0.005, self._claim.wish.ttl * 0.01), 0.05)

    def _left(self) -> float:
        """Seconds until the loss is told."""
        return _clock.left(self._deadline) - self._early()

    def _renewed(self, sent: Moment, answer: Any) -> Optional[Lost]:
        """Takes note of an answer, whatever it is. The deadline never comes sooner by it."""
        self._unanswered = not is_about(self._claim.named(), answer)
        why = None if self._unanswered else loss(answer)
        if why is not None:
            return why
        told = None if self._unanswered else seconds(answer.get("expires_in_ms"))
        if told is not None and answer.get("state") == "held":
            self._deadline = _clock.later(self._deadline, _clock.after(sent, told))
            self._renew_at = _clock.later(self._renew_at, _clock.after(sent, self._claim.wish.ttl / 3))
        else:
            wait = min(0.25, self._claim.wish.ttl / 18)
            self._renew_at = _clock.after(_clock.now(), wait * (0.5 + random.random() / 2))
        return None

    def _due_in(self) -> float:
        """Seconds until it is to be renewed. While a renewal is under way it is not, unless that takes too long."""
        return _clock.left(self._renew_at if self._batch is None else self._batch.until)

    def _forked(self) -> None:
        """This is a copy in a child process, which has no claim of its own."""
        self._loss = Lost(f"{self.name} is held by the process that this one was forked from")


H = TypeVar("H", bound=Held)


class Batch(Generic[H]):
    """Leases that are renewed in one request."""

    def __init__(self, leases: List[H]) -> None:
        self._leases = leases
        # The service answers a batch within a ninth of its shortest ttl; a little is added for the way.
        self._timeout = max(0.1, min(lease._claim.wish.ttl for lease in leases) / 6)
        #: Whoever sends it is not waited for any longer, whatever keeps it.
        self.until = _clock.after(_clock.now(), self._timeout * 1.5)
        for lease in leases:
            lease._batch = self

    def post(self) -> Post:
        # What was not answered is repeated over a new connection.
        fresh = any(lease._unanswered for lease in self._leases)
        return Post("/v1/renew", {"locks": [lease._claim.renewal() for lease in self._leases]}, self._timeout, fresh)

    def answered(self, answer: Optional[Answer]) -> List[Tuple[H, Lost]]:
        """Takes note of the answer, or that there was none; returns which leases are lost by it."""
        told = answer.body.get("locks") if answer is not None and answer.status == 200 else None
        if not isinstance(told, list) or len(told) != len(self._leases):
            told = [None] * len(self._leases)
        sent = _clock.now() if answer is None else answer.sent
        lost = []
        for lease, one in zip(self._leases, told):
            if lease._batch is self:
                lease._batch = None
            why = lease._renewed(sent, one)
            if why is not None:
                lost.append((lease, why))
        return lost


def due(held: Collection[H]) -> List[Batch[H]]:
    """What is to be renewed now. What would be due soon goes along.

    Leases of like ttls (up to twice as long) go in one request. The shortest ttl decides how long a request may take,
    so that a lease with a long one would never be renewed by a slow store if it always went with a short one.
    """
    alike: Dict[int, List[H]] = {}
    for one in held:
        alike.setdefault(math.frexp(one._claim.wish.ttl)[1], []).append(one)
    batches = []
    for leases in alike.values():
        if any(one._due_in() <= 0 for one in leases):
            soon = [one for one in leases if one._due_in() <= (one._claim.wish.ttl / 9 if one._batch is None else 0)]
            batches += [Batch(part) for part in _parts(sorted(soon, key=Held._left))]
    return batches


def _parts(leases: List[H]) -> List[List[H]]:
    """As many requests as the limits make of it."""
    parts: List[List[H]] = []
    room = 0
    for one in leases:
        if not parts or len(parts[-1]) == BATCH_MAX or room < one._size:
            parts.append([])
            room = BATCH_BYTES_MAX
        parts[-1].append(one)
        room -= one._size
    return parts


def due_in(held: Collection[Held], at_most: float) -> float:
    """Seconds until something is to be renewed."""
    return max(0.001, min([at_most, *(one._due_in() for one in held)]))
