"""An HTTP server that records requests, and answers them as it is told."""

from __future__ import annotations

import json
import socket
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any

DROP = 0
"""Instead of a status: the connection is closed without an answer."""
GIVE_UP_S = 120.0
"""An answer that waits for an event comes then at the latest."""


@dataclass(frozen=True)
class Received:
    """One request, and the status that it got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    port: int
    """The client's: the same for requests over one connection."""

    @property
    def key(self) -> str:
        return self.headers["Idempotency-Key"]

    @property
    def rows(self) -> list[dict[str, Any]]:
        if self.headers["Content-Type"] == "application/x-ndjson":
            return [json.loads(line) for line in self.body.splitlines()]
        found = json.loads(self.body)
        assert isinstance(found, list)
        return found


@dataclass
class Answer:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    after: Event | None = None
    """It comes only when this is set."""


class RequestsServer:
    """Serves until ``close``; answers 200 unless there are other answers in ``next``."""

    def __init__(self) -> None:
        self.next: deque[Answer] = deque()
        self.requests: list[Received] = []
        self._answered: list[Received] = []
        self._lock = Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def __getattr__(self, name: str) -> Any:
                if name.startswith("do_"):
                    return self._answer
                raise AttributeError(name)

            def _answer(self) -> None:
                length = int(self.headers["Content-Length"])
                if len(body := self.rfile.read(length)) < length:  # the client was killed before it had sent all
                    self.close_connection = True
                    return
                with outer._lock:
                    answer = outer.next.popleft() if outer.next else Answer()
                    received = Received(
                        self.command, self.path, dict(self.headers), body, answer.status, self.client_address[1]
                    )
                    outer.requests.append(received)
                if answer.after is not None:
                    answer.after.wait(GIVE_UP_S)
                with outer._lock:
                    outer._answered.append(received)
                if answer.status == DROP:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/orders"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def delivered(self) -> list[Received]:
        """The requests that got 2xx, each key once, in the order in which they got it first."""
        found: dict[str, Received] = {}
        for request in list(self._answered):
            if 200 <= request.status < 300:
                found.setdefault(request.key, request)
        return list(found.values())

    def check_repeats(self, column: str) -> None:
        """The same key has the same body, and a row, which ``column`` tells from others, always the same key."""
        bodies: dict[str, bytes] = {}
        keys: dict[Any, str] = {}
        for request in self.requests:
            assert bodies.setdefault(request.key, request.body) == request.body
            for row in request.rows:
                assert keys.setdefault(row[column], request.key) == request.key

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
