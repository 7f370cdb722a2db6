"""Requests to an HTTP endpoint: one for each batch, and what its answer means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime

import requests
from requests.structures import CaseInsensitiveDict

from weir.infra.settings import environment_value
from weir.pipelines.publishing.connection import SinkError
from weir.pipelines.serdes.shapes import Field
from weir.pipelines.sinks.http import HttpEndpoint, is_header_value
from weir.pipelines.sinks.json_rows import json_rows
from weir.pipelines.sinks.own import Batch, RefusedError, Sink

KEY_HEADER, VARIABLE = "Idempotency-Key", "env:"
TRY_AGAIN = (408, 425, 429)
"""Answers below 500 after which the same request may be taken later."""
_TYPES = {"json": "application/json", "ndjson": "application/x-ndjson"}
_SHOWN_BYTES, _CHUNK_BYTES = 200, 64 << 10
"""Of an answer: what a reason has, and what is read at a time."""


class HttpSink(Sink):
    """Sends batches over one connection that is kept alive."""

    def __init__(self, endpoint: HttpEndpoint, fields: Mapping[str, Field]) -> None:
        self._endpoint, self._fields = endpoint, fields
        self._session: requests.Session | None = None

    def open(self) -> None:
        headers = CaseInsensitiveDict[str]({"Content-Type": _TYPES[self._endpoint.format]})
        headers.update({name: _value(name, value) for name, value in self._endpoint.headers.items()})
        self._session = requests.Session()
        self._session.auth = _as_declared
        self._session.headers.update(headers)
        self._surroundings = self._session.merge_environment_settings(self._endpoint.url, {}, True, None, None)

    def send(self, batch: Batch) -> None:
        assert self._session is not None, "open() comes first"
        endpoint = self._endpoint
        try:
            request = requests.Request(
                endpoint.method, endpoint.url, data=self._body(batch), headers={KEY_HEADER: batch.idempotency_key}
            )
            with self._session.send(
                self._session.prepare_request(request),
                timeout=endpoint.timeout_s,
                allow_redirects=False,
                **self._surroundings,
            ) as response:
                said = _said(response)
        except requests.RequestException as error:
            raise SinkError(f"{endpoint}: {error}") from error
        code = response.status_code
        if 200 <= code < 300:
            return
        reason = f"{endpoint} answered {code} {response.reason}{f': {said}' if said else ''}"
        if code in TRY_AGAIN or code >= 500:
            raise SinkError(reason, wait_s=retry_after_s(response.headers.get("Retry-After"), time.time()))
        raise RefusedError(reason)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _body(self, batch: Batch) -> bytes:
        rows = json_rows(batch.rows, self._fields)
        return b"\n".join([*rows, b""]) if self._endpoint.format == "ndjson" else b"[" + b",".join(rows) + b"]"


def _said(response: requests.Response) -> str:
    """The beginning of an answer's text. It is read to its end, so that the connection can be used again; the status
    counts even if that fails."""
    beginning = b""
    with suppress(requests.RequestException):
        for chunk in response.iter_content(_CHUNK_BYTES):
            beginning = (beginning + chunk)[:_SHOWN_BYTES]
    return beginning.decode(errors="replace").strip()


def retry_after_s(header: str | None, now_s: float) -> float:
    """How long ``Retry-After`` asks to wait: it has seconds, or a date (RFC 9110). 0 if it has neither."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - now_s)


def _value(name: str, value: str) -> str:
    """A header's value; raises ``SinkError`` if it is that of a variable that is not set."""
    variable = value.removeprefix(VARIABLE)
    if variable == value:
        return value
    found = environment_value(variable)
    if found is None:
        raise SinkError(
            f"the header {name!r} is that of the environment variable {variable}, which is not set; end the run, set "
            "it, and start again"
        )
    if not is_header_value(found := found.strip()):
        raise SinkError(f"the environment variable {variable} has characters that the header {name!r} cannot have")
    return found


def _as_declared(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps requests from taking a login from ``.netrc`` instead of the headers that are declared."""
    return request
