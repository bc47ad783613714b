"""Locks for programs with threads."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from types import TracebackType
from typing import Any, Callable, List, Optional, Sequence, Set, Tuple, Type, Union, cast

from . import _clock, _fork, _memo, _protocol
from ._errors import Lost, TenureError, Unavailable
from ._held import Batch, Held, due, due_in
from ._http import Services
from ._memo import Memo
from ._protocol import Claim, Pause, Steps, Wish
from ._thread_http import Transport

#: A suspended machine is noticed this long after it wakes, at most.
_LOOK_MAX = 0.5
#: How long a claim that was given up is tried to be ended.
_CLEAN_UP = 10.0

OnLost = Callable[["Lease"], None]


def default_label() -> str:
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return f"{socket.gethostname()}:{os.getpid()} {program}"


def closed(certainty: str = "not_applied") -> Unavailable:
    return Unavailable("the client is closed", certainty=certainty)


def same_process(pid: int) -> None:
    """Refuses to go on in a child process with what its parent began, and goes on with itself."""
    if os.getpid() != pid:
        raise TenureError("this was begun by the process that this one was forked from", certainty="unknown")


class Lease(Held):
    """A lock that is held. A thread in the background renews it until it is released or lost."""

    def __init__(self, grant: _protocol.Grant, client: Client, on_lost: Optional[OnLost]) -> None:
        super().__init__(grant)
        self._client = client
        self._callbacks: List[OnLost] = [on_lost] if on_lost else []
        self._memo_lock = threading.Lock()
        #: Set when the lease is lost, a few milliseconds before its deadline.
        self.lost = threading.Event()

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback(lease)` when the lease is lost; at once if it is already. It must return quickly."""
        with self._client._changed:
            if self._loss is None:
                self._callbacks.append(callback)
                return
        callback(self)

    def release(self) -> bool:
        """Ends the lease. True if this did it; False if it was over already, or nobody answered until it was."""
        if not self._client._forget(self):
            return False
        patience = min(max(0.0, _clock.left(self._deadline)), _CLEAN_UP)
        return bool(self._client._drive(_protocol.release(self._claim, patience)))

    def write_memo(self, value: Union[bytes, str], *, keep: Optional[float] = None) -> int:
        """Keeps `value` (at most 64 KiB; text as UTF-8) with the name, and answers its version. `keep` ends it after so
        many seconds; nothing else does.

        Raises :class:`Lost` if the lease is lost, and :class:`Unavailable` if nobody answers for 10 s or until it ends.
        `certainty` of the error says whether it may be written all the same.
        """
        what = _memo.fields(value, keep)
        # A child process is refused here, before it waits for a thread that it does not have.
        self.check()
        with self._memo_lock:
            self.check()
            steps = _memo.write(self._claim, self.token, self._memo_version, what, self.remaining)
            try:
                self._memo_version = int(self._client._drive(steps))
            except Lost as why:
                self._client._lose([(self, why)])
                raise
            return self._memo_version

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        lost = self._loss
        try:
            self.release()
        except TenureError:
            # The claim ends by its ttl; what the block itself raised matters more.
            if error is None:
                raise
        if lost is not None and error is None:
            raise lost

    def _forked(self) -> None:
        super()._forked()
        self.lost = threading.Event()  # whoever had a hand on the old one is not in this process
        self.lost.set()

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} token={self.token} held={self.is_held()}>"


class Lock:
    """A name and how it is to be held. Costs nothing until it is acquired."""

    def __init__(self, client: Client, wish: Wish, on_lost: Optional[OnLost]) -> None:
        self._client = client
        self._wish = wish
        self._on_lost = on_lost
        self._entered = threading.local()

    def acquire(self, timeout: Optional[float] = None) -> Lease:
        """Waits its turn. Raises :class:`LockTimeout` after `timeout` seconds; None waits for ever."""
        lease = self._client._acquire(self._wish, timeout, self._on_lost)
        assert lease is not None
        return lease

    def try_acquire(self) -> Optional[Lease]:
        """Takes it if it is free now, else answers None."""
        return self._client._acquire(self._wish, 0, self._on_lost)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        stack = self._entered.__dict__.setdefault("leases", [])
        stack.append(lease)
        return lease

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        lease: Lease = self._entered.leases.pop()
        lease.__exit__(kind, error, trace)


class Client:
    """A connection to the tenure service, shared by all threads.

    `urls` is one URL or several of instances of one service; without it $TENURE_SERVICE, then http://127.0.0.1:7420.
    `bearer` is the token, else $TENURE_BEARER. `ca` is a file of certificates to trust; `cert` and `key` are the files of
    a certificate to show and its key (which may be in `cert`), all as PEM.

    It may be used in child processes (`os.fork`) too. They hold nothing of what their parent holds.
    """

    def __init__(
        self,
        urls: Union[str, Sequence[str], None] = None,
        *,
        bearer: Optional[str] = None,
        ca: Optional[str] = None,
        cert: Optional[str] = None,
        key: Optional[str] = None,
        label: Optional[str] = None,
    ) -> None:
        self._services = Services(urls, bearer, ca, cert, key)
        self._transport = Transport(self._services)
        self._label = label
        self._changed = threading.Condition(threading.RLock())
        self._leases: Set[Lease] = set()
        self._threads: List[threading.Thread] = []
        self._closed = False
        _fork.watch(self)

    def lock(
        self,
        name: str,
        *,
        ttl: float = 10.0,
        shared: bool = False,
        label: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
    ) -> Lock:
        """An exclusive lock, or one that all who take it `shared` hold together."""
        return Lock(self, Wish(name, ttl, label or self._label or default_label(), shared), on_lost)

    def semaphore(
        self,
        name: str,
        capacity: int,
        *,
        units: int = 1,
        ttl: float = 10.0,
        label: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
    ) -> Lock:
        """Takes `units` of `capacity` permits. Their tokens are for tracing: they do not order writes."""
        return Lock(self, Wish(name, ttl, label or self._label or default_label(), False, units, capacity), on_lost)

    def memo(self, name: str) -> Optional[Memo]:
        """What the last exclusive holder of a name has kept with it, or None."""
        if self._closed:
            raise closed()
        return cast(Optional[Memo], self._drive(_memo.read(name), even_closed=False))

    def close(self) -> None:
        """Releases what is held and stops. What is being acquired meanwhile is given up, and raises."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            held = list(self._leases)
        for lease in held:
            try:
                lease.release()
            except TenureError:
                pass  # it ends by its ttl
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what goes on in the background -------------------------------------------------------------------------------

    def _drive(self, steps: Steps, even_closed: bool = True) -> Any:
        """Does what steps ask for, in this thread."""
        pid = os.getpid()
        try:
            step = next(steps)
            while True:
                same_process(pid)
                if self._closed and not even_closed:
                    raise closed("unknown")
                try:
                    if isinstance(step, Pause):
                        time.sleep(step.seconds)
                        told: Any = None
                    else:
                        told = self._transport.post(step)
                except Unavailable as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(told)
        except StopIteration as done:
            return done.value

    def _acquire(self, wish: Wish, patience: Optional[float], on_lost: Optional[OnLost]) -> Optional[Lease]:
        if self._closed:
            raise closed()
        claim, pid = Claim(wish), os.getpid()
        try:
            grant = self._drive(_protocol.acquire(claim, patience, len(self._services.all)), even_closed=False)
        except BaseException as error:
            if claim.maybe and os.getpid() == pid:
                ending = self._clean_up([claim])
                if self._closed and isinstance(error, TenureError):
                    ending.join()  # the program may be about to end
            raise
        if grant is None:
            return None
        lease = Lease(grant, self, on_lost)
        with self._changed:
            if not self._closed:
                self._leases.add(lease)
                self._start()
                self._changed.notify_all()
                return lease
        # Nobody would renew it, or tell that it is lost.
        released = self._drive(_protocol.release(claim, min(wish.ttl, _CLEAN_UP)))
        raise closed("not_applied" if released else "unknown")

    def _clean_up(self, claims: Sequence[Claim]) -> threading.Thread:
        """Ends claims that were given up, however their caller ended. What fails ends by its ttl."""

        def end() -> None:
            until = time.monotonic() + _CLEAN_UP
            for claim in claims:
                try:
                    self._drive(_protocol.release(claim, min(claim.wish.ttl, until - time.monotonic())))
                except TenureError:
                    pass

        thread = threading.Thread(target=end, name="tenure-clean-up", daemon=True)
        thread.start()
        return thread

    def _forget(self, lease: Lease) -> bool:
        with self._changed:
            known = lease in self._leases
            self._leases.discard(lease)
            lease._over = True
            self._changed.notify_all()
            return known

    def _start(self) -> None:
        if self._threads:
            return
        # Two threads: a renewal that hangs must not keep a loss from being told.
        for work, name in ((self._tell_losses, "tenure-deadlines"), (self._renew, "tenure-renewals")):
            thread = threading.Thread(target=work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forked(self) -> None:
        """In a child process: connections, threads and leases are the parent's, and so is whoever has this lock."""
        self._transport.forked()
        self._changed = threading.Condition(threading.RLock())
        self._threads = []
        inherited, self._leases = self._leases, set()
        for lease in inherited:
            lease._forked()

    def _tell_losses(self) -> None:
        while True:
            with self._changed:
                if self._closed and not self._leases:
                    return
                over = [lease for lease in self._leases if lease._left() <= 0]
                if not over:
                    self._changed.wait(min([_LOOK_MAX, *(lease._left() for lease in self._leases)]))
                    continue
            self._lose([(lease, Lost(f"{lease.name} was not renewed in time", kind="expired")) for lease in over])

    def _lose(self, lost: Sequence[Tuple[Lease, Lost]]) -> None:
        told = []
        with self._changed:
            for lease, why in lost:
                if lease in self._leases:
                    self._leases.discard(lease)
                    lease._loss = why
                    told.append((lease, list(lease._callbacks)))
        for lease, _ in told:
            lease.lost.set()
        for lease, callbacks in told:
            for callback in callbacks:
                try:
                    callback(lease)
                except Exception:  # somebody else's code must not keep others from being told
                    sys.excepthook(*sys.exc_info())
        expired = [lease._claim for lease, _ in told if lease._loss is not None and lease._loss.kind == "expired"]
        if expired:
            self._clean_up(expired)

    def _renew(self) -> None:
        while True:
            with self._changed:
                if self._closed and not self._leases:
                    return
                batches = due(self._leases)
                if not batches:
                    self._changed.wait(due_in(self._leases, _LOOK_MAX))
            for batch in batches:
                # Each in a thread of its own: one that is slow does not delay the others. There are few, since what is
                # under way is not sent again, and what is due soon goes along.
                try:
                    threading.Thread(target=self._send, args=(batch,), name="tenure-renewal", daemon=True).start()
                except RuntimeError:  # too many threads
                    self._answered(batch, None)

    def _send(self, batch: Batch[Lease]) -> None:
        answer = None
        try:
            answer = self._transport.post(batch.post())
        except TenureError:
            pass  # it is repeated
        finally:
            self._answered(batch, answer)

    def _answered(self, batch: Batch[Lease], answer: Optional[_protocol.Answer]) -> None:
        with self._changed:
            lost = batch.answered(answer)
            self._changed.notify_all()
        self._lose(lost)
