"""What a child process must not share with its parent.

After a fork both have the same connections, where each would read the other's answers; the threads are the parent's
alone; and a lease has one holder, which is the parent.
"""

from __future__ import annotations

import os
import weakref
from typing import Iterable, Protocol


class Forkable(Protocol):
    """Something that forgets in a child process what is the parent's. No lock can be trusted there."""

    def _forked(self) -> None: ...


def drop(descriptors: Iterable[int]) -> None:
    """Closes connections of the parent in a child process, in a way that neither the parent nor an object notices that
    still has them: their numbers lead nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for one in descriptors:
        if one >= 0:
            os.dup2(nowhere, one, inheritable=False)
    os.close(nowhere)


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()


def watch(one: Forkable) -> None:
    """Has it told in every child process, before anything else runs there."""
    _all.add(one)


def _in_child() -> None:
    for one in list(_all):
        one._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
