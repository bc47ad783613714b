"""A clock that counts while the machine sleeps.

A lease ends at the store whether or not this machine was suspended meanwhile. Linux has CLOCK_BOOTTIME for that. Elsewhere
both the monotonic and the wall clock are kept, and whichever says sooner that time is up is believed.
"""

from __future__ import annotations

import time
from typing import Optional, Tuple

#: One reading: of one clock, or of two.
Moment = Tuple[float, ...]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> Moment:
    """Reads the clock."""
    if _BOOTTIME is not None:
        return (time.clock_gettime(_BOOTTIME),)
    return (time.monotonic(), time.time())


def after(moment: Moment, seconds: float) -> Moment:
    """The moment so many seconds later."""
    return tuple(part + seconds for part in moment)


def left(moment: Moment) -> float:
    """Seconds until a moment; below zero if it has passed."""
    return min(then - here for then, here in zip(moment, now()))


def later(one: Optional[Moment], other: Moment) -> Moment:
    """The later of two moments."""
    return other if one is None or left(other) > left(one) else one
