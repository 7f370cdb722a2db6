"""A server that speaks S3, on a port that the system picks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SERVER = """
import sys, threading
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
one_at_a_time, put_object, post = threading.Lock(), S3Response.put_object, S3Response._key_response_post
def put_one(self):
    with one_at_a_time:
        return put_object(self)
def post_one(self, *arguments, **named):
    with one_at_a_time:
        return post(self, *arguments, **named)
S3Response.put_object, S3Response._key_response_post = put_one, post_one
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
"""It ends with the tests, which hold its standard input. moto looks whether a name is taken and then puts, so that two
writers may both win; S3 does not."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Its URL. In a process of its own: delta-rs holds the interpreter's lock while it waits for an answer."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.stdin.close()
