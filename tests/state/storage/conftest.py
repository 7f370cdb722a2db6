"""A server that speaks S3, on a port that the system picks."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest
import requests
from obstore.store import S3Store

from weir.state.storage.object_store import ObjectFolder

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
"""It ends with the tests, which hold its standard input."""


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """In a process of its own: delta-rs holds the interpreter's lock while it waits for an answer."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()


@pytest.fixture
def s3_folder(s3_url) -> Callable[[str], ObjectFolder]:
    """Makes folders of a bucket of the test's own."""
    bucket = f"test-{uuid.uuid4().hex}"
    options = {
        "aws_access_key_id": "tests",
        "aws_secret_access_key": "tests",
        "aws_region": "us-east-1",
        "aws_endpoint_url": s3_url,
        "aws_allow_http": "true",
        "aws_conditional_put": "etag",
    }
    requests.put(f"{s3_url}/{bucket}", timeout=10).raise_for_status()
    store = S3Store(bucket, config={name.removeprefix("aws_"): value for name, value in options.items()})
    return lambda path: ObjectFolder(f"s3://{bucket}", path, store, options)
