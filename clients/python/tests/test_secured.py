"""Two instances of one service, with TLS and tokens, one of which is killed: $TENURE_COMMAND starts them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

import pytest
from conftest import token

import tenure

COMMAND = os.environ.get("TENURE_COMMAND", "")


class Secured:
    """Instances over one file, with one certificate and one token."""

    def __init__(self, folder: Path, instances: int = 2, more: Sequence[str] = ()) -> None:
        assert COMMAND, "set TENURE_COMMAND to the tenure command"
        self.ca = str(folder / "cert.pem")
        key, tokens = str(folder / "key.pem"), str(folder / "tokens.toml")
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run([*certificate, "-days", "1", *subject, "-keyout", key, "-out", self.ca], check=True, capture_output=True)
        made = subprocess.run([COMMAND, "serve", "token", "app", "--may", "acquire,read", "--json"], check=True, capture_output=True)
        told = json.loads(made.stdout)
        self.bearer: str = told["secret"]
        Path(tokens).write_text(told["entry"])
        serve = [COMMAND, "serve", "--on", f"sqlite:{folder}/locks.db", "--listen", "127.0.0.1:0", "--json"]
        secure = ["--tls-cert", self.ca, "--tls-key", key, "--tokens", tokens]
        self.processes: List[subprocess.Popen[bytes]] = []
        self.urls: List[str] = []
        for _ in range(instances):
            process = subprocess.Popen([*serve, *secure, *more], stdout=subprocess.PIPE)
            self.processes.append(process)
            assert process.stdout is not None
            self.urls.append(json.loads(process.stdout.readline())["listening"])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def authority(folder: Path, name: str) -> Tuple[str, str, str]:
    """An authority, and a certificate of it for a client: the files of the one, and of the other with its key."""
    made = [str(folder / f"{name}-{part}.pem") for part in ("ca", "ca-key", "cert", "key", "request")]
    ca, ca_key, cert, key, request = made
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    extensions = ["-addext", "basicConstraints=CA:FALSE", "-addext", "extendedKeyUsage=clientAuth"]
    sign = ["openssl", "x509", "-req", "-days", "1", "-in", request, "-CA", ca, "-CAkey", ca_key, "-set_serial", "2"]
    for command in (
        [*new, "-x509", "-days", "1", "-subj", "/CN=authority", "-keyout", ca_key, "-out", ca],
        [*new, *extensions, "-subj", "/CN=app", "-keyout", key, "-out", request],
        [*sign, "-copy_extensions", "copy", "-out", cert],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return ca, cert, key


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    yield made
    made.close()


def test_a_lease_outlives_the_instance_that_granted_it(secured: Secured, name: str) -> None:
    with tenure.Client(secured.urls, bearer=secured.bearer, ca=secured.ca) as client:
        with client.lock(name, ttl=3) as lease:
            first = token(lease)
            lease.write_memo(b"\x00\xff")
            secured.processes[0].kill()
            memo = client.memo(name)
            assert memo is not None and memo.value == b"\x00\xff"
            lease.write_memo("by the other")
            end = time.monotonic() + 4
            while time.monotonic() < end:
                lease.check()
                time.sleep(0.05)
        with client.lock(name).acquire(timeout=10) as lease:
            assert token(lease) > first


def test_the_same_with_an_event_loop(secured: Secured, name: str) -> None:
    async def work() -> None:
        async with tenure.AsyncClient(secured.urls, bearer=secured.bearer, ca=secured.ca) as client:
            async with client.lock(name, ttl=3) as lease:
                await lease.write_memo(b"\x00\xff")
                secured.processes[0].kill()
                memo = await client.memo(name)
                assert memo is not None and memo.value == b"\x00\xff"
                await lease.write_memo("by the other")
                await lease.protect(asyncio.sleep(4))

    asyncio.run(work())


def test_who_has_no_right_or_no_trust_is_told_at_once(secured: Secured, name: str) -> None:
    with tenure.Client(secured.urls, bearer="tenure_wrong", ca=secured.ca) as client:
        with pytest.raises(tenure.Denied):
            client.lock(name).try_acquire()
    with tenure.Client(secured.urls, bearer=secured.bearer) as client:
        with pytest.raises(tenure.Invalid) as failed:
            client.lock(name).try_acquire()
        assert failed.value.kind == "tls"


def test_a_certificate_is_shown_that_stands_for_a_token(tmp_path: Path, name: str) -> None:
    ca, cert, key = authority(tmp_path, "ours")
    _, foreign, foreign_key = authority(tmp_path, "foreign")
    secured = Secured(tmp_path, 1, ["--client-ca", ca])
    try:
        with tenure.Client(secured.urls, ca=secured.ca, cert=cert, key=key) as client:
            with client.lock(name).acquire(timeout=10) as lease:
                assert lease.is_held()
        both = tmp_path / "both.pem"
        both.write_text(Path(cert).read_text() + Path(key).read_text())

        async def work() -> None:
            async with tenure.AsyncClient(secured.urls, ca=secured.ca, cert=str(both)) as client:
                async with client.lock(name) as lease:
                    assert lease.is_held()
            for shown in ({}, {"cert": foreign, "key": foreign_key}):
                async with tenure.AsyncClient(secured.urls, ca=secured.ca, **shown) as client:
                    with pytest.raises(tenure.Denied):
                        await client.lock(name).try_acquire()

        asyncio.run(work())
        for shown in ({}, {"cert": foreign, "key": foreign_key}):
            with tenure.Client(secured.urls, ca=secured.ca, **shown) as client:
                with pytest.raises(tenure.Denied) as failed:
                    client.lock(name).try_acquire()
                assert failed.value.kind == "tls" and "cert=" in str(failed.value)
    finally:
        secured.close()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    for field, wrong in (("ca", {"ca": missing}), ("cert", {"cert": missing}), ("key", {"key": missing})):
        with pytest.raises(tenure.Invalid) as failed:
            tenure.Client("https://127.0.0.1:1", **wrong)
        assert failed.value.field == field
    with pytest.raises(tenure.Invalid):
        tenure.Client("http://127.0.0.1:1", cert=missing)
