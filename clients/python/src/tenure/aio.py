"""Locks for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Any, Awaitable, Callable, List, Optional, Sequence, Set, Tuple, Type, TypeVar, Union, cast

from . import _clock, _fork, _memo, _protocol
from ._aio_http import AsyncTransport
from ._errors import Lost, TenureError, Unavailable
from ._held import Batch, Held, due, due_in
from ._http import Services
from ._memo import Memo
from ._protocol import Claim, Pause, Steps, Wish
from .client import _CLEAN_UP, _LOOK_MAX, closed, default_label, same_process

T = TypeVar("T")
OnLost = Callable[["AsyncLease"], None]


class AsyncLease(Held):
    """A lock that is held. A task in the background renews it until it is released or lost.

    Losses are told by the event loop: code that blocks it is not told in time. ``is_held()`` always tells the truth.
    """

    def __init__(self, grant: _protocol.Grant, client: AsyncClient, on_lost: Optional[OnLost]) -> None:
        super().__init__(grant)
        self._client = client
        self._callbacks: List[OnLost] = [on_lost] if on_lost else []
        self._timer: Optional[asyncio.TimerHandle] = None
        self._memo_lock: Optional[asyncio.Lock] = None
        #: Set when the lease is lost, a few milliseconds before its deadline.
        self.lost = asyncio.Event()

    def on_lost(self, callback: OnLost) -> None:
        """Calls `callback(lease)` when the lease is lost; at once if it is already."""
        if self._loss is None:
            self._callbacks.append(callback)
        else:
            callback(self)

    async def protect(self, work: Awaitable[T]) -> T:
        """Awaits `work`, and cancels it the moment the lease is lost: then :class:`Lost` is raised."""
        task = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task})
            self.check()
            raise Lost(f"{self.name} is not held any more")
        finally:
            lost.cancel()
            task.cancel()

    async def release(self) -> bool:
        """Ends the lease. True if this did it; False if it was over already, or nobody answered until it was."""
        if not self._client._forget(self):
            return False
        patience = min(max(0.0, _clock.left(self._deadline)), _CLEAN_UP)
        # A caller that is cancelled here does not keep the release from being made.
        return bool(await asyncio.shield(self._client._background(self._client._drive(_protocol.release(self._claim, patience)))))

    async def write_memo(self, value: Union[bytes, str], *, keep: Optional[float] = None) -> int:
        """Keeps `value` (at most 64 KiB; text as UTF-8) with the name, and answers its version. `keep` ends it after so
        many seconds; nothing else does.

        Raises :class:`Lost` if the lease is lost, and :class:`Unavailable` if nobody answers for 10 s or until it ends.
        `certainty` of the error says whether it may be written all the same. If it is cancelled, that is unknown.
        """
        what = _memo.fields(value, keep)
        # A child process is refused here, before it waits for a task of another loop.
        self.check()
        if self._memo_lock is None:
            self._memo_lock = asyncio.Lock()
        async with self._memo_lock:
            self.check()
            steps = _memo.write(self._claim, self.token, self._memo_version, what, self.remaining)
            try:
                self._memo_version = int(await self._client._drive(steps))
            except Lost as why:
                self._client._lose(self, why)
                raise
            return self._memo_version

    async def __aenter__(self) -> AsyncLease:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        lost = self._loss
        try:
            await self.release()
        except TenureError:
            if error is None:
                raise
        if lost is not None and error is None:
            raise lost

    def _forked(self) -> None:
        super()._forked()
        self.lost.set()

    def __repr__(self) -> str:
        return f"<AsyncLease {self.name!r} token={self.token} held={self.is_held()}>"


class AsyncLock:
    """A name and how it is to be held. Costs nothing until it is acquired."""

    def __init__(self, client: AsyncClient, wish: Wish, on_lost: Optional[OnLost]) -> None:
        self._client = client
        self._wish = wish
        self._on_lost = on_lost
        #: The blocks that are entered, each with its task: many tasks may share a lock.
        self._entered: List[Tuple[Optional[asyncio.Task[Any]], AsyncLease]] = []

    async def acquire(self, timeout: Optional[float] = None) -> AsyncLease:
        """Waits its turn. Raises :class:`LockTimeout` after `timeout` seconds; None waits for ever.

        If it is cancelled, the claim is ended in the background.
        """
        lease = await self._client._acquire(self._wish, timeout, self._on_lost)
        assert lease is not None
        return lease

    async def try_acquire(self) -> Optional[AsyncLease]:
        """Takes it if it is free now, else answers None."""
        return await self._client._acquire(self._wish, 0, self._on_lost)

    async def __aenter__(self) -> AsyncLease:
        lease = await self.acquire()
        self._entered.append((asyncio.current_task(), lease))
        return lease

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self._left().__aexit__(kind, error, trace)

    def _left(self) -> AsyncLease:
        """The lease of the block that is left: the last that this task entered.

        Test fixtures are entered by a task that ends, and are left by another.
        """
        task = asyncio.current_task()
        own = [one for one in self._entered if one[0] is task]
        if not own:
            own = [one for one in self._entered if one[0] is None or one[0].done()]
            if len(own) != 1:
                raise RuntimeError("this task did not enter the block; write `async with await lock.acquire()`")
        self._entered.remove(own[-1])
        return own[-1][1]


class AsyncClient:
    """A connection to the tenure service, for one event loop. Options as for :class:`tenure.Client`."""

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
        self._transport = AsyncTransport(self._services)
        self._label = label
        self._leases: Set[AsyncLease] = set()
        self._tasks: Set[asyncio.Task[Any]] = set()
        self._renewing: Optional[asyncio.Task[None]] = None
        self._batches: Set[asyncio.Task[None]] = set()
        self._changed: Optional[asyncio.Event] = None
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
    ) -> AsyncLock:
        """An exclusive lock, or one that all who take it `shared` hold together."""
        return AsyncLock(self, Wish(name, ttl, label or self._label or default_label(), shared), on_lost)

    def semaphore(
        self,
        name: str,
        capacity: int,
        *,
        units: int = 1,
        ttl: float = 10.0,
        label: Optional[str] = None,
        on_lost: Optional[OnLost] = None,
    ) -> AsyncLock:
        """Takes `units` of `capacity` permits. Their tokens are for tracing: they do not order writes."""
        return AsyncLock(self, Wish(name, ttl, label or self._label or default_label(), False, units, capacity), on_lost)

    async def memo(self, name: str) -> Optional[Memo]:
        """What the last exclusive holder of a name has kept with it, or None."""
        if self._closed:
            raise closed()
        return cast(Optional[Memo], await self._drive(_memo.read(name), even_closed=False))

    async def close(self) -> None:
        """Releases what is held, ends what was given up, and stops. What is being acquired meanwhile raises."""
        self._closed = True
        for lease in list(self._leases):
            try:
                await lease.release()
            except TenureError:
                pass  # it ends by its ttl
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_CLEAN_UP)
        stopped = [*self._batches, *([self._renewing] if self._renewing is not None else [])]
        for task in stopped:
            task.cancel()
        await asyncio.gather(*stopped, return_exceptions=True)
        self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- what goes on in the background -------------------------------------------------------------------------------

    def _background(self, work: Awaitable[T]) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _drive(self, steps: Steps, even_closed: bool = True) -> Any:
        pid = os.getpid()
        try:
            step = next(steps)
            while True:
                same_process(pid)
                if self._closed and not even_closed:
                    raise closed("unknown")
                try:
                    if isinstance(step, Pause):
                        await asyncio.sleep(step.seconds)
                        told: Any = None
                    else:
                        told = await self._transport.post(step)
                except Unavailable as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(told)
        except StopIteration as done:
            return done.value

    async def _acquire(self, wish: Wish, patience: Optional[float], on_lost: Optional[OnLost]) -> Optional[AsyncLease]:
        if self._closed:
            raise closed()
        claim, pid = Claim(wish), os.getpid()
        try:
            grant = await self._drive(_protocol.acquire(claim, patience, len(self._services.all)), even_closed=False)
        except BaseException as error:
            if claim.maybe and os.getpid() == pid:
                ending = self._clean_up(claim)
                if self._closed and isinstance(error, TenureError):
                    await asyncio.shield(ending)  # the loop may be about to end
            raise
        if grant is None:
            return None
        if self._closed:
            # Nobody would renew it, or tell that it is lost.
            await asyncio.shield(self._clean_up(claim))
            raise closed("unknown")
        lease = AsyncLease(grant, self, on_lost)
        self._leases.add(lease)
        self._watch(lease)
        if self._renewing is None:
            self._changed = asyncio.Event()
            self._renewing = asyncio.ensure_future(self._renew())
        assert self._changed is not None
        self._changed.set()
        return lease

    def _clean_up(self, claim: Claim) -> asyncio.Task[None]:
        """Ends a claim that its caller has given up, however the caller ended."""

        async def end() -> None:
            try:
                await self._drive(_protocol.release(claim, min(claim.wish.ttl, _CLEAN_UP)))
            except TenureError:
                pass  # it ends by its ttl

        return self._background(end())

    def _forked(self) -> None:
        """In a child process: connections, tasks and leases are the parent's, and so is the loop."""
        self._transport.forked()
        self._renewing, self._tasks, self._batches = None, set(), set()
        inherited, self._leases = self._leases, set()
        for lease in inherited:
            lease._forked()

    def _forget(self, lease: AsyncLease) -> bool:
        known = lease in self._leases
        self._leases.discard(lease)
        lease._over = True
        if lease._timer is not None:
            lease._timer.cancel()
        return known

    def _watch(self, lease: AsyncLease) -> None:
        """Tells the loss when its moment comes; looks now and then, since the loop's timers stop with the machine."""
        if lease not in self._leases:
            return
        left = lease._left()
        if left <= 0:
            self._lose(lease, Lost(f"{lease.name} was not renewed in time", kind="expired"))
        else:
            lease._timer = asyncio.get_running_loop().call_later(min(left, _LOOK_MAX), self._watch, lease)

    def _lose(self, lease: AsyncLease, why: Lost) -> None:
        if lease not in self._leases:
            return
        self._forget(lease)
        lease._loss = why
        lease.lost.set()
        for callback in list(lease._callbacks):
            try:
                callback(lease)
            except Exception as error:  # somebody else's code must not keep others from being told
                context = {"message": "a callback for a lost lease failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        if why.kind == "expired":
            self._clean_up(lease._claim)

    async def _renew(self) -> None:
        assert self._changed is not None
        while not self._closed or self._leases:
            # Each in a task of its own: one that is slow does not delay the others.
            for batch in due(self._leases):
                task = asyncio.ensure_future(self._send(batch))
                self._batches.add(task)
                task.add_done_callback(self._batches.discard)
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), due_in(self._leases, _LOOK_MAX))
            except asyncio.TimeoutError:
                pass

    async def _send(self, batch: Batch[AsyncLease]) -> None:
        answer = None
        try:
            answer = await self._transport.post(batch.post())
        except TenureError:
            pass  # it is repeated
        finally:
            for lease, why in batch.answered(answer):
                self._lose(lease, why)
            if self._changed is not None:
                self._changed.set()
