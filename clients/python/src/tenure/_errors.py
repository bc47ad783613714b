"""Why something was not done. `kind` says what it is, `certainty` whether it may have been done all the same."""

from __future__ import annotations

from typing import Any, Mapping, Optional


class TenureError(Exception):
    """What all errors of this package are."""

    kind = "error"

    def __init__(
        self,
        message: str,
        *,
        kind: Optional[str] = None,
        certainty: Optional[str] = None,
        hint: Optional[str] = None,
        holder: Optional[str] = None,
        field: Optional[str] = None,
        request_id: Optional[str] = None,
        status: Optional[int] = None,
    ) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.kind = kind or type(self).kind
        #: ``not_applied`` or ``unknown``; None where it is plain.
        self.certainty = certainty
        #: What to do about it.
        self.hint = hint
        #: The label of who holds the lock.
        self.holder = holder
        #: The field that was wrong.
        self.field = field
        #: Names this answer in the service's log.
        self.request_id = request_id
        self.status = status


class LockTimeout(TenureError, TimeoutError):
    """Not granted in the time there was."""

    kind = "timeout"


class Invalid(TenureError, ValueError):
    """A value that the service refuses."""

    kind = "invalid"


class Denied(TenureError, PermissionError):
    """The bearer token is missing, or lacks the right."""

    kind = "denied"


class Conflict(TenureError):
    """Another shape or another number of permits is in use, or an upgrade was asked for."""

    kind = "conflict"


class Superseded(TenureError):
    """Somebody else uses this claim's owner and id."""

    kind = "superseded"


class Unavailable(TenureError, ConnectionError):
    """No service answers, or the service does not reach its store."""

    kind = "unavailable"


class Lost(TenureError):
    """The lease can no longer be trusted: the work must stop."""

    kind = "lost"


class Broken(Lost):
    """Somebody ended this claim by hand."""

    kind = "broken"


_BY_KIND = {
    "timeout": LockTimeout,
    "busy": LockTimeout,
    "invalid": Invalid,
    "conflict": Conflict,
    "superseded": Superseded,
    "lost": Lost,
    "gone": Lost,
    "broken": Broken,
}


def refusal(status: int, body: Mapping[str, Any]) -> TenureError:
    """The error that an answer stands for."""
    kind = body.get("kind")
    kind = kind if isinstance(kind, str) else None
    made = _BY_KIND.get(kind or "")
    if made is None:
        if status in (401, 403, 421):
            made = Denied
        elif status == 409:
            made = Conflict
        elif status == 410:
            made = Lost
        elif status >= 500 or status == 429:
            made = Unavailable
        else:
            made = Invalid
    message = str(body.get("message") or f"the service answered {status}")
    if body.get("reason"):
        message = f"{message}: {body['reason']}"
    holder = body.get("holder")
    return made(
        message,
        kind=kind,
        certainty=body.get("certainty"),
        hint=body.get("hint"),
        holder=holder if isinstance(holder, str) else None,
        field=body.get("field"),
        request_id=body.get("request_id"),
        status=status,
    )
