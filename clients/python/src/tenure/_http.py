"""Where services are, how they are trusted, and what an answer of theirs is."""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union
from urllib.parse import urlsplit

from . import _clock
from ._errors import Denied, Invalid, TenureError, Unavailable
from ._protocol import Answer

DEFAULT_URL = "http://127.0.0.1:7420"
BODY_MAX = 4 << 20
IDLE_MAX = 8


@dataclass(frozen=True)
class Service:
    """One instance of the service."""

    secure: bool
    host: str
    port: int
    path: str


class Services:
    """All instances: any of them serves any claim. One is used until it fails."""

    def __init__(
        self,
        urls: Union[str, Sequence[str], None] = None,
        bearer: Optional[str] = None,
        ca: Optional[str] = None,
        cert: Optional[str] = None,
        key: Optional[str] = None,
    ) -> None:
        if urls is None:
            urls = os.environ.get("TENURE_SERVICE") or DEFAULT_URL
        listed = [urls] if isinstance(urls, str) else list(urls)
        self.all: List[Service] = [_service(url) for one in listed for url in one.split(",")]
        if not self.all:
            raise Invalid("no service is named")
        self._bearer = bearer if bearer is not None else os.environ.get("TENURE_BEARER")
        self._at = 0
        self.tls: Optional[ssl.SSLContext] = None
        if any(service.secure for service in self.all):
            self.tls = _tls(ca, cert, key)
        elif cert is not None or key is not None:
            raise Invalid("a certificate is shown only over https", field="cert")

    def current(self) -> Service:
        return self.all[self._at % len(self.all)]

    def failed(self, service: Service) -> None:
        """Goes on to the next, unless somebody else did already."""
        if self.current() == service:
            self._at = (self._at + 1) % len(self.all)

    def headers(self) -> Dict[str, str]:
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._bearer:
            headers["authorization"] = f"Bearer {self._bearer}"
        return headers


def _tls(ca: Optional[str], cert: Optional[str], key: Optional[str]) -> ssl.SSLContext:
    if key is not None and cert is None:
        raise Invalid("key= is of no use without cert=", field="key")
    try:
        tls = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise Invalid(f"ca={ca} cannot be read: {error}", field="ca") from error
    try:
        if cert is not None:
            tls.load_cert_chain(cert, key)
    except OSError as error:
        raise Invalid(f"cert={cert} with key={key} cannot be read: {error}", field="cert") from error
    return tls


def _service(url: str) -> Service:
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise Invalid("a service's URL is http://HOST:PORT or https://HOST:PORT", field="urls")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Service(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"))


def answer(status: int, text: bytes, headers: Mapping[str, str], sent: _clock.Moment) -> Answer:
    """An answer, whatever was answered: a proxy may speak HTML. `headers` are in lower case."""
    if status == 200 and "tenure-memo-version" in headers:
        return Answer(status, {}, sent, value=text, headers=headers)
    retry_after = headers.get("retry-after")
    try:
        body: Any = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, Mapping) or (status == 200 and not body):
        if status < 400:
            raise Unavailable("what answered is not the tenure service", certainty="unknown", status=status)
        body = {}
    try:
        pause = float(retry_after) if retry_after else None
    except ValueError:
        pause = None
    return Answer(status, body, sent, pause if pause is not None and 0 <= pause < 3600 else None)


def no_answer(service: Service, error: BaseException) -> TenureError:
    """What it means that a request failed. What waiting does not mend is told at once, not as :class:`Unavailable`."""
    where = f"{service.host}:{service.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"the certificate of {where} is not trusted: {error.verify_message}"
        hint = "ca= names a file of certificates to trust"
        return Invalid(message, kind="tls", certainty="not_applied", hint=hint)
    if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
        message = f"{where} refuses this client's certificate: {error.reason}"
        hint = "cert= and key= name the files of another"
        return Denied(message, kind="tls", certainty="not_applied", hint=hint)
    return Unavailable(f"no answer from {where}: {error or 'in time'}", certainty="unknown")


def fails_over(status: int) -> bool:
    """Whether another instance may fare better."""
    return status in (502, 503, 504)
