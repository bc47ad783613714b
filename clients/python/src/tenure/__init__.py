"""Distributed locks with fencing tokens, through the tenure service."""

from ._errors import (
    Broken,
    Conflict,
    Denied,
    Invalid,
    LockTimeout,
    Lost,
    Superseded,
    TenureError,
    Unavailable,
)
from ._memo import Memo
from .aio import AsyncClient, AsyncLease, AsyncLock
from .client import Client, Lease, Lock

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "Broken",
    "Client",
    "Conflict",
    "Denied",
    "Invalid",
    "Lease",
    "Lock",
    "LockTimeout",
    "Lost",
    "Memo",
    "Superseded",
    "TenureError",
    "Unavailable",
]
