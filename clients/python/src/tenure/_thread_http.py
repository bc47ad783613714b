"""Requests to services from threads."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from typing import Any, Dict, List, Optional, Set

from . import _clock, _fork
from ._errors import Unavailable
from ._http import BODY_MAX, IDLE_MAX, Service, Services, answer, fails_over, no_answer
from ._protocol import Answer, Post


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise socket.timeout("timed out")
    return left


class _Socket(socket.socket):
    """All that is done with it ends by one moment: whoever sends byte by byte does not prolong a request."""

    until = 0.0

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.settimeout(_left(self.until))
        return super().recv_into(buffer, nbytes, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.settimeout(_left(self.until))
        super().sendall(data, flags)


class _TlsSocket(ssl.SSLSocket):
    """The same with TLS, which sends in parts."""

    until = 0.0

    def recv_into(self, buffer: Any, nbytes: Optional[int] = None, flags: int = 0) -> int:
        self.settimeout(_left(self.until))
        return super().recv_into(buffer, nbytes, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        self.settimeout(_left(self.until))
        return super().send(data, flags)


class _Connection(http.client.HTTPConnection):
    """A connection on which each request is over by a moment. Only the system's resolver may take longer."""

    sock: Any  # a _Socket or a _TlsSocket

    def __init__(self, service: Service, tls: Optional[ssl.SSLContext]) -> None:
        super().__init__(service.host, service.port)
        self._tls = tls if service.secure else None
        self._until = 0.0

    def limit(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        if self.sock is not None:
            self.sock.until = self._until

    def connect(self) -> None:
        found = socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM)
        for index, (family, kind, protocol, _, address) in enumerate(found):
            last = index == len(found) - 1
            try:
                # An address that does not answer leaves the others their share of the time.
                share = _left(self._until) / (len(found) - index)
                self.sock = self._connected(_Socket(family, kind, protocol), address, share)
                self.sock.until = self._until
                return
            except OSError:
                if last:
                    raise

    def _connected(self, sock: _Socket, address: Any, seconds: float) -> socket.socket:
        try:
            sock.settimeout(seconds)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_left(self._until))
            return sock if self._tls is None else self._tls.wrap_socket(sock, server_hostname=self.host)
        except BaseException:
            sock.close()
            raise


class Transport:
    """Connections that are kept and used again, each by one request at a time."""

    def __init__(self, services: Services) -> None:
        self._services = services
        if services.tls is not None:
            services.tls.sslsocket_class = _TlsSocket
        self._idle: Dict[Service, List[_Connection]] = {}
        self._in_use: Set[_Connection] = set()
        self._lock = threading.Lock()
        self._closed = False

    def post(self, ask: Post) -> Answer:
        """Sends one request to one instance. No answer is :class:`Unavailable`, and whether it took effect unknown."""
        body = ask.encoded()
        service = self._services.current()
        connection = self._take(service, ask.fresh)
        sent = _clock.now()
        kept = False
        try:
            connection.limit(ask.timeout)
            connection.request(ask.method, service.path + ask.path, body, self._services.headers())
            response = connection.getresponse()
            text = response.read(BODY_MAX)
            kept = not response.will_close and not response.length
        except (OSError, http.client.HTTPException, ValueError) as error:
            told = no_answer(service, error)
            if isinstance(told, Unavailable):
                self._services.failed(service)
            raise told from error
        finally:
            self._give(service, connection, kept)
        if fails_over(response.status):
            self._services.failed(service)
        headers = {key.lower(): value for key, value in response.getheaders()}
        return answer(response.status, text, headers, sent)

    def _take(self, service: Service, fresh: bool) -> _Connection:
        with self._lock:
            idle = self._idle.setdefault(service, [])
            if fresh:
                for one in idle:
                    one.close()
                idle.clear()
            connection = idle.pop() if idle else _Connection(service, self._services.tls)
            self._in_use.add(connection)
            return connection

    def _give(self, service: Service, connection: _Connection, kept: bool) -> None:
        with self._lock:
            idle = self._idle.setdefault(service, [])
            self._in_use.discard(connection)
            if kept and not self._closed and len(idle) < IDLE_MAX:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                for one in idle:
                    one.close()
                idle.clear()

    def forked(self) -> None:
        """In a child process: all connections are the parent's, which could not close one that is open here too."""
        opened = [*self._in_use, *(one for idle in self._idle.values() for one in idle)]
        _fork.drop(one.sock.fileno() for one in opened if one.sock is not None)
        self._idle, self._in_use, self._lock = {}, set(), threading.Lock()
