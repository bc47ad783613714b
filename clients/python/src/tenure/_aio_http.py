"""Requests to services from an event loop: HTTP/1.1 over streams."""

from __future__ import annotations

import asyncio
from typing import Dict, List, Optional, Set, Tuple

from . import _clock, _fork
from ._errors import Unavailable
from ._http import BODY_MAX, IDLE_MAX, Service, Services, answer, fails_over, no_answer
from ._protocol import Answer, Post

Connection = Tuple[asyncio.StreamReader, asyncio.StreamWriter]
_HEADERS_MAX = 100


class AsyncTransport:
    """Connections that are kept and used again, each by one request at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._idle: Dict[Service, List[Connection]] = {}
        self._in_use: Set[Connection] = set()
        self._closed = False

    async def post(self, ask: Post) -> Answer:
        """Sends one request to one instance. No answer is :class:`Unavailable`, and whether it took effect unknown."""
        body = ask.encoded()
        service = self._services.current()
        connection: Optional[Connection] = None
        sent = _clock.now()
        kept = False

        async def talk() -> Tuple[int, bytes, Dict[str, str], bool]:
            nonlocal connection
            connection = await self._take(service, ask.fresh)
            self._in_use.add(connection)
            return await self._talk(connection, service, ask, body)

        try:
            status, text, headers, kept = await asyncio.wait_for(talk(), ask.timeout)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError, asyncio.LimitOverrunError) as error:
            told = no_answer(service, error)
            if isinstance(told, Unavailable):
                self._services.failed(service)
            raise told from error
        finally:
            if connection is not None:
                idle = self._idle.setdefault(service, [])
                self._in_use.discard(connection)
                if kept and not self._closed and len(idle) < IDLE_MAX:
                    idle.append(connection)
                else:
                    connection[1].close()
        if fails_over(status):
            self._services.failed(service)
        return answer(status, text, headers, sent)

    async def _take(self, service: Service, fresh: bool) -> Connection:
        idle = self._idle.setdefault(service, [])
        while idle:
            reader, writer = idle.pop()
            if fresh or reader.at_eof() or writer.is_closing():
                writer.close()
            else:
                return reader, writer
        tls = self._services.tls if service.secure else None
        return await asyncio.open_connection(service.host, service.port, ssl=tls)

    async def _talk(
        self, connection: Connection, service: Service, ask: Post, body: bytes
    ) -> Tuple[int, bytes, Dict[str, str], bool]:
        reader, writer = connection
        host = f"[{service.host}]" if ":" in service.host else service.host
        head = [f"{ask.method} {service.path}{ask.path} HTTP/1.1", f"host: {host}:{service.port}"]
        head.append(f"content-length: {len(body)}")
        head += [f"{key}: {value}" for key, value in self._services.headers().items()]
        writer.write("\r\n".join([*head, "", ""]).encode("latin-1") + body)
        await writer.drain()
        version, status_text, *_ = (await reader.readuntil(b"\r\n")).decode("latin-1").split(" ", 2)
        status = int(status_text)
        headers: Dict[str, str] = {}
        for _ in range(_HEADERS_MAX):
            line = (await reader.readuntil(b"\r\n")).decode("latin-1").strip()
            if not line:
                break
            key, _, value = line.partition(":")
            headers[key.strip().lower()] = value.strip()
        else:
            raise ValueError("too many headers")
        close = headers.get("connection", "").lower() == "close" or version == "HTTP/1.0"
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, await _chunks(reader), headers, not close
        if "content-length" in headers:
            length = int(headers["content-length"])
            if not 0 <= length <= BODY_MAX:
                raise ValueError("the answer is too long")
            return status, await reader.readexactly(length), headers, not close
        return status, await reader.read(BODY_MAX), headers, False

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            for _, writer in idle:
                writer.close()
            idle.clear()

    def forked(self) -> None:
        """In a child process: all connections are the parent's, and so is the loop that they belong to."""
        opened = [*self._in_use, *(one for idle in self._idle.values() for one in idle)]
        sockets = [writer.get_extra_info("socket") for _, writer in opened]
        _fork.drop(one.fileno() for one in sockets if one is not None)
        self._idle, self._in_use = {}, set()


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            while (await reader.readuntil(b"\r\n")) != b"\r\n":
                pass
            return body
        if len(body) + size > BODY_MAX:
            raise ValueError("the answer is too long")
        body += await reader.readexactly(size)
        await reader.readexactly(2)
