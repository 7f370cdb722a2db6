"""Requests to an HTTP endpoint: one for each batch, and what its answer means."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime

import requests
from requests.structures import CaseInsensitiveDict

from weir.infra.settings import environment_value
from weir.pipelines.publishing.connection import SinkError
from weir.pipelines.publishing.http_errors import reason_of
from weir.pipelines.serdes.shapes import Field
from weir.pipelines.sinks.batched import BatchedSink
from weir.pipelines.sinks.http import HttpEndpoint, is_header_value
from weir.pipelines.sinks.json_rows import json_rows
from weir.pipelines.sinks.own import Batch, RefusedError
from weir.pipelines.sinks.own import Sink as OwnSink
from weir.pipelines.sinks.sink import Sink

KEY_HEADER, VARIABLE = "Idempotency-Key", "env:"
TRY_AGAIN = (408, 425, 429)
"""Answers below 500 after which the same request may be taken later."""
_TYPES = {"json": "application/json", "ndjson": "application/x-ndjson"}
_SHOWN_BYTES, _CHUNK_BYTES = 200, 64 << 10
"""Of an answer: what a reason has, and what is read at a time."""


class SinkHeaderError(Exception):
    """Headers of requests are those of variables that are not set, or that no header can have."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return f"{'; '.join(self.faults)}; set {'it' if len(self.faults) == 1 else 'them'} and start again"


class HttpSink(OwnSink):
    """Sends batches over one connection that is kept alive."""

    def __init__(self, endpoint: HttpEndpoint, fields: Mapping[str, Field]) -> None:
        self._endpoint, self._fields = endpoint, fields
        self._session: requests.Session | None = None

    def open(self) -> None:
        headers = CaseInsensitiveDict[str]({"Content-Type": _TYPES[self._endpoint.format]})
        declared, faults = _headers(self._endpoint)
        if faults:
            raise SinkError(f"{'; '.join(faults)}; end the run, set it, and start again")
        headers.update(declared)
        self._secrets = _secrets(self._endpoint, declared)
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
                said = _said(response, self._secrets)
        except requests.RequestException as error:
            raise SinkError(f"{endpoint}: {reason_of(error, endpoint.url, endpoint.timeout_s)}") from error
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


def _said(response: requests.Response, secrets: Sequence[bytes]) -> str:
    """The beginning of an answer's text, without secrets that it repeats. It is read to its end, so that the connection
    can be used again; the status counts even if that fails."""
    beginning = b""
    with suppress(requests.RequestException):
        for chunk in response.iter_content(_CHUNK_BYTES):
            beginning = (beginning + chunk)[: _SHOWN_BYTES + sum(map(len, secrets))]
    for secret in secrets:
        beginning = beginning.replace(secret, b"***")
    return beginning[:_SHOWN_BYTES].decode(errors="replace").strip()


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


def check_headers(sinks: Iterable[Sink]) -> None:
    """Look at the start of a run whether the headers of all requests can be had.

    Raises:
        SinkHeaderError: One cannot; all of them are named.
    """
    faults = [
        f"sink {sink.name!r}: {fault}"
        for sink in sinks
        if isinstance(sink, BatchedSink) and isinstance(sink.target, HttpEndpoint)
        for fault in _headers(sink.target)[1]
    ]
    if faults:
        raise SinkHeaderError(faults)


def _headers(endpoint: HttpEndpoint) -> tuple[dict[str, str], list[str]]:
    """The headers of an endpoint's requests, and what is wrong with those that cannot be had, without their values."""
    found, faults = dict[str, str](), list[str]()
    for name, value in endpoint.headers.items():
        variable = value.removeprefix(VARIABLE)
        text = value if variable == value else environment_value(variable)
        if text is None:
            faults.append(f"the header {name!r} is that of the environment variable {variable}, which is not set")
        elif variable != value and not is_header_value(text := text.strip()):
            faults.append(f"the environment variable {variable} has characters that the header {name!r} cannot have")
        else:
            found[name] = text
    return found, faults


def _secrets(endpoint: HttpEndpoint, declared: Mapping[str, str]) -> list[bytes]:
    """The headers that come from variables, the longest first, and what follows the scheme of a login, as in
    ``Bearer TOKEN``."""
    texts = {declared[name] for name, value in endpoint.headers.items() if value.startswith(VARIABLE)}
    texts |= {text.partition(" ")[2].strip() for text in texts}
    return sorted((text.encode("latin-1") for text in texts if text), key=len, reverse=True)


def _as_declared(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Keeps requests from taking a login from ``.netrc`` instead of the headers that are declared."""
    return request
