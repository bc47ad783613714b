"""A service that runs ($TENURE_SERVICE), and a proxy before it that goes wrong when told to."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
import urllib.parse
import urllib.request
import uuid
from typing import Any, Callable, Iterator, List, Optional, Union

import pytest

import tenure

SERVICE = os.environ.get("TENURE_SERVICE", "")


def until(what: str, condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Waits until a condition holds, and fails if it does not in time."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {seconds} s; last {value!r}"
        time.sleep(0.01)


def view(name: str) -> Any:
    query = urllib.parse.urlencode({"name": name})
    with urllib.request.urlopen(f"{SERVICE}/v1/lock?{query}") as response:
        return json.load(response)


def break_lock(name: str, token: int, reason: str) -> None:
    query = urllib.parse.urlencode({"name": name, "token": token, "reason": reason})
    urllib.request.urlopen(urllib.request.Request(f"{SERVICE}/v1/lock?{query}", method="DELETE")).close()


def token(lease: Union[tenure.Lease, tenure.AsyncLease]) -> int:
    """The token, which every store of these tests has."""
    assert lease.token is not None
    return lease.token


class Proxy:
    """Passes bytes on to the service. Frozen, it passes none; `cut_answers` closes before so many answers arrive."""

    def __init__(self, target: str) -> None:
        parts = urllib.parse.urlsplit(target)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.thawed = threading.Event()
        self.thawed.set()
        self.cut_answers = 0
        self.requests: List[bytes] = []
        #: Connections that were made, and how many are open.
        self.accepted = self.open = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        self.thawed.clear()

    def thaw(self) -> None:
        self.thawed.set()

    def close(self) -> None:
        try:
            # Wakes the thread that accepts: while it does, the port stays open.
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed before
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self.open += 1
            threading.Thread(target=self._pass_counted, args=(client,), daemon=True).start()

    def _pass_counted(self, client: socket.socket) -> None:
        self._pass(client)
        self.open -= 1

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                for one in ready:
                    try:
                        data = one.recv(65536)
                    except OSError:
                        return
                    self.thawed.wait()
                    if not data:
                        return
                    if one is client:
                        self.requests.append(data)
                    elif self.cut_answers > 0:
                        self.cut_answers -= 1
                        return
                    try:
                        (server if one is client else client).sendall(data)
                    except OSError:
                        return


@pytest.fixture(autouse=True, scope="session")
def service() -> str:
    if not SERVICE:
        pytest.exit("set TENURE_SERVICE to the URL of a service that runs, say http://127.0.0.1:7420", 4)
    return SERVICE


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(SERVICE)
    yield made
    made.thaw()
    made.close()


@pytest.fixture
def client() -> Iterator[tenure.Client]:
    with tenure.Client(SERVICE) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"python/{uuid.uuid4()}"


def waiters(name: str) -> List[Optional[str]]:
    return [waiter["label"] for waiter in view(name)["waiters"]]
