"""A proxy before a server that speaks S3: it counts requests, delays answers, loses them, or refuses to ask."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread, local
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


@dataclass
class Proxy:
    """What it did, and what it is to do."""

    url: str
    delay_s: float = 0.0
    """Before each answer."""
    losing: int = 0
    """So many answers to puts get lost: the connection ends without one."""
    refusing: int = 0
    """So many requests are answered with 503, and not passed on."""
    hanging_up: int = 0
    """So many connections end as a request comes."""
    requests: Counter[str] = field(default_factory=Counter)
    """How many have come, by method."""
    rounds: int = 0
    """How often one has come while none was waiting for its answer: with a delay, how many follow one another."""
    waiting: int = 0
    sent_bytes: int = 0
    got_bytes: int = 0
    lock: Lock = field(default_factory=Lock)

    def take(self, what: str) -> bool:
        """Whether one of them is left to be done; then there is one less."""
        with self.lock:
            left = getattr(self, what)
            setattr(self, what, max(0, left - 1))
            return bool(left)


@contextmanager
def s3_proxy(server: str) -> Iterator[Proxy]:
    """A proxy before the server at a URL."""
    to, connections = urlsplit(server).netloc, local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _pass_on(self) -> None:
            body = self._body()
            with proxy.lock:
                proxy.requests[self.command] += 1
                proxy.rounds += not proxy.waiting
                proxy.waiting += 1
                proxy.sent_bytes += len(body)
            try:
                self._answer_to(body)
            finally:
                with proxy.lock:
                    proxy.waiting -= 1

        def _answer_to(self, body: bytes) -> None:
            if proxy.take("hanging_up"):
                self.close_connection = True
                return
            if proxy.take("refusing"):
                self._answer(503, [], b"")
                return
            if not hasattr(connections, "to_server"):
                connections.to_server = HTTPConnection(to)
            connections.to_server.request(self.command, self.path, body, dict(self.headers))
            answer = connections.to_server.getresponse()
            content = answer.read()
            time.sleep(proxy.delay_s)
            if self.command == "PUT" and proxy.take("losing"):
                self.close_connection = True
                return
            with proxy.lock:
                proxy.got_bytes += len(content)
            self._answer(answer.status, answer.getheaders(), content)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on  # noqa: N815

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length":
                    length = value if self.command == "HEAD" else length
                elif name.lower() not in _HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                with suppress(ConnectionError):  # whoever asked has seen enough
                    self.wfile.write(content)

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    proxy = Proxy(f"http://127.0.0.1:{listening.server_address[1]}")
    thread = Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
