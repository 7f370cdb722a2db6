"""A server that speaks the protocol of Azure's blobs, on a port that the system picks: azurite, which npm installs."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate

import requests

AZURITE = shutil.which("azurite-blob")
"""The server, if it is installed: ``npm install --global azurite``. Tests that take it are not there otherwise."""
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""azurite's own, as its documentation has them."""
_OPTIONS = ("--blobPort", "0", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent")


@contextmanager
def azure_server() -> Iterator[str]:
    """Its URL."""
    assert AZURITE is not None
    with subprocess.Popen([AZURITE, *_OPTIONS], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(found[0] for line in server.stdout if (found := re.search(r"http://\S+:\d+", line)))
        finally:
            server.terminate()


def make_container(url: str, name: str) -> None:
    """Make a container; the request is signed as Azure's "Authorize with Shared Key" has it."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    signed = "\n".join([*lines, f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    answer = requests.put(
        f"{url}/{ACCOUNT}/{name}?restype=container",
        headers={**headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}"},
        timeout=10,
    )
    answer.raise_for_status()
