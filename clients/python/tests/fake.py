"""A service that grants everything, and answers wrongly or late where a test says so."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Optional, Tuple

Told = Tuple[int, Any]


class Fake:
    def __init__(self) -> None:
        #: What is answered instead; None answers as usual. It may wait.
        self.instead: Callable[[str, Dict[str, Any]], Optional[Told]] = lambda path, body: None
        self.posts: List[Tuple[str, Dict[str, Any]]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                fake.posts.append((self.path, body))
                told = fake.instead(self.path, body)
                if told is None:
                    told = (200, usual(self.path, body))
                status, answer = told
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except OSError:
                    self.close_connection = True  # nobody waited for it

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def renewals(self, name: str) -> int:
        """How often a name was asked to be renewed."""
        return sum(lock["name"] == name for path, body in list(self.posts) for lock in body.get("locks", []))

    def paths(self, path: str) -> List[Dict[str, Any]]:
        return [body for at, body in list(self.posts) if at == path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def held(lock: Dict[str, Any]) -> Dict[str, Any]:
    named = {key: lock[key] for key in ("name", "owner", "claim")}
    return {**named, "state": "held", "token": 7, "number": 1, "expires_in_ms": int(lock["ttl_ms"] * 0.98)}


def usual(path: str, body: Dict[str, Any]) -> Dict[str, Any]:
    if path == "/v1/release":
        return {"released": True}
    if "locks" in body:
        return {"locks": [held(lock) for lock in body["locks"]]}
    return held(body)
