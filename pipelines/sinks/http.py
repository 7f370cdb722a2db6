"""An HTTP endpoint, as a program declares it; sending requests belongs to ``weir.pipelines.publishing.http``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

BodyFormat = Literal["json", "ndjson"]


@dataclass(frozen=True, kw_only=True)
class HttpEndpoint:
    """Where requests go, and their form."""

    url: str
    method: str
    headers: Mapping[str, str]
    """A value ``env:NAME`` is that of an environment variable of the run."""
    format: BodyFormat
    timeout_s: float

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


def is_header_value(text: str) -> bool:
    """Whether a header can have this text: visible characters of Latin-1, spaces and tabs (RFC 9110)."""
    return text == text.strip() and all(c == "\t" or " " <= c <= "~" or "\xa0" <= c <= "\xff" for c in text)
