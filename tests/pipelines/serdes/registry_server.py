"""A schema registry over HTTP in this process: what the client asks of one, for a test."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def parse_request(self) -> bool:
        is_whole = super().parse_request()
        login = self.server.login and base64.b64encode(self.server.login.encode()).decode()
        if is_whole and login and self.headers["Authorization"] != f"Basic {login}":
            self._answer(401, {"error_code": 40101, "message": "User cannot be authenticated"})
            return False
        return is_whole

    def do_GET(self) -> None:
        schemas, (_, kind, *rest) = self.server.schemas, self.path.partition("?")[0].split("/")
        number = int(rest[-1]) if kind == "schemas" else 0
        if not 0 < number <= len(schemas):
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})
        else:
            self.server.asked.append(number)
            self._answer(200, schemas[number - 1])

    def do_POST(self) -> None:
        schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kept = {"schema": schema["schema"], "schemaType": schema.get("schemaType", "AVRO")}
        if kept not in self.server.schemas:
            self.server.schemas.append(kept)
        self._answer(200, {"id": self.server.schemas.index(kept) + 1})

    def log_message(self, *arguments: object) -> None:
        pass

    def _answer(self, status: int, body: dict) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, login: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.login = login
        self.schemas: list[dict[str, str]] = []
        """Schemas by id, which counts from 1."""
        self.asked: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def schema_registry(login: str = "") -> Iterator[_Server]:
    """A registry that has no schemas yet, until the block ends; ``login``, as user:password, is what it asks for."""
    server = _Server(login)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
