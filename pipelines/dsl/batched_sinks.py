"""Declares sinks that get batches of rows: HTTP endpoints, and sinks of one's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, get_args
from urllib.parse import urlsplit

from weir.pipelines.arguments import positive_ms, what_it_is, whole_number
from weir.pipelines.dsl.graph import check_name
from weir.pipelines.errors import TopologyError
from weir.pipelines.sinks.batched import BatchedSink
from weir.pipelines.sinks.http import BodyFormat, HttpEndpoint, is_header_value
from weir.pipelines.sinks.own import Sink
from weir.pipelines.topology.nodes import RecordType

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_METHOD = re.compile(r"[A-Z]+")


def batched(
    record: RecordType, target: HttpEndpoint | Sink, *, name: str, max_records: int, max_bytes: int
) -> BatchedSink:
    """A sink that takes records of this type.

    Raises:
        TopologyError: The name or a limit is invalid.
    """
    return BatchedSink(
        name=check_name("sink", name),
        target=target,
        key=record.key_type,
        value=record.value,
        max_records=whole_number(max_records, f"the sink {name!r}: max_records", 1),
        max_bytes=whole_number(max_bytes, f"the sink {name!r}: max_bytes", 1),
    )


def own_sink(sink: Any) -> Sink:
    """The sink that a program passes; raises ``TopologyError`` if it is something else."""
    if isinstance(sink, Sink):
        return sink
    raise TopologyError(f"to_sink got {what_it_is(sink)}; pass an object of a class that is derived from weir.Sink")


def http_endpoint(url: Any, *, method: Any, headers: Any, format: Any, timeout: timedelta) -> HttpEndpoint:
    """The endpoint; raises ``TopologyError`` if an argument is invalid."""
    if not isinstance(method, str) or not _METHOD.fullmatch(method):
        raise TopologyError(f'to_http got method={method!r}; pass one in capitals, for example "PUT"')
    if format not in get_args(BodyFormat):
        known = " or ".join(f'"{each}"' for each in get_args(BodyFormat))
        raise TopologyError(f"to_http got format={format!r}; pass {known}")
    if not isinstance(headers, Mapping):
        raise TopologyError(
            f"to_http got {what_it_is(headers)} as its headers; pass a dictionary, for example "
            '{"Authorization": "env:NAME"}'
        )
    for name, value in headers.items():
        if not (isinstance(name, str) and _TOKEN.fullmatch(name) and isinstance(value, str) and is_header_value(value)):
            raise TopologyError(f"to_http got the header {name!r}, whose name or value HTTP does not allow")
    return HttpEndpoint(
        url=_url(url),
        method=method,
        headers=dict(headers),
        format=format,
        timeout_s=positive_ms(timeout, "to_http: timeout") / 1000,
    )


def _url(url: Any) -> str:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        is_complete = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname)
        has_login = parts is not None and "@" in parts.netloc
        _ = parts is not None and parts.port
    except ValueError:
        is_complete = has_login = False
    if has_login:
        raise TopologyError(
            "to_http got a URL with a login; leave it out, and pass the header of a variable instead: "
            'headers={"Authorization": "env:NAME"}'
        )
    if not is_complete:
        raise TopologyError(f"to_http got the URL {url!r}; pass a whole one, for example https://example.org/orders")
    return str(url)
