"""Serdes whose schemas are kept in a schema registry: the header before each value, and the registry itself.

A value begins with a zero byte and the schema's id in four big-endian bytes. The registry's address depends on where a
program runs, so serdes are connected when a run or a test begins. The client is confluent-kafka's; it is imported when
first needed, since the packages that it needs come with the extra ``weir-streams[registry]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from weir.pipelines.serdes.serde import SchemaRegistryError
from weir.pipelines.serdes.windowed import WindowedSerde

HEADER_BYTES = 5
_LOGIN = re.compile("[^/,@]+@")
"""In a URL; it may have a password, and is left out where the URL is shown."""
NUMBERS = frozenset(
    {"timeout", "cache.capacity", "cache.latest.ttl.sec", "max.retries", "retries.wait.ms", "retries.max.wait.ms"}
)
"""Properties of the client that are numbers; settings come as text."""


class UnknownSchemaError(ValueError):
    """The registry has no schema with this id."""


class SchemaRegistry:
    """One registry and the schemas fetched from it so far; a schema never changes under its id."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """``properties`` are those of confluent-kafka's client: ``url`` and credentials.

        Raises:
            SchemaRegistryError: There is no URL, or the client is not installed.
        """
        if not properties.get("url"):
            raise SchemaRegistryError(
                "the program reads Avro or Protobuf, but no schema registry is configured; add "
                "--set schema_registry.url=http://host:port to the command"
            )
        try:
            from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
        except ImportError as error:
            raise SchemaRegistryError(
                f"the schema registry's client needs {error.name!r}, which is not installed; install it with: "
                'pip install "weir-streams[registry]"'
            ) from None
        self._url, self._make_schema = _LOGIN.sub("", properties["url"]), Schema
        try:
            self._client = SchemaRegistryClient.new_client(
                {
                    name: int(value) if name in NUMBERS and value.isdigit() else value
                    for name, value in properties.items()
                }
            )
        except (TypeError, ValueError) as error:
            reason = str(error).replace(properties["url"], self._url)
            raise SchemaRegistryError(f"the settings schema_registry.* are invalid: {reason}") from None

    def schema(self, schema_id: int) -> str:
        """The text of a schema.

        Raises:
            UnknownSchemaError: No schema has this id.
            SchemaRegistryError: The registry cannot be asked.
        """
        try:
            return str(self._client.get_schema(schema_id).schema_str)
        except Exception as error:
            if getattr(error, "http_status_code", None) == 404:
                raise UnknownSchemaError(f"the schema registry has no schema {schema_id}") from None
            raise self._failed(error) from error

    def register(self, subject: str, schema: str, kind: str) -> int:
        """The id of ``schema`` under ``subject``; ``kind`` is AVRO or PROTOBUF."""
        try:
            return int(self._client.register_schema(subject, self._make_schema(schema, kind)))
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> SchemaRegistryError:
        return SchemaRegistryError(
            f"a request to the schema registry at {self._url} failed: {error}; check that it is running and that "
            "the settings schema_registry.* are correct"
        )


class RegistrySerde:
    """Base of the serdes that need a registry."""

    _registry: SchemaRegistry | None = None

    def connect(self, registry: SchemaRegistry) -> None:
        """Use ``registry`` from now on."""
        self._registry = registry

    @property
    def registry(self) -> SchemaRegistry:
        if self._registry is None:
            raise SchemaRegistryError(
                f"{self!r} is not connected to a schema registry; a run or the test driver connects it"
            )
        return self._registry


def connect_serdes(serdes: Iterable[Any], properties: Mapping[str, str]) -> None:
    """Connect the serdes that need it to one registry; raises ``SchemaRegistryError`` if there is none."""
    inner = [serde.key if isinstance(serde, WindowedSerde) else serde for serde in serdes]
    needing = [serde for serde in inner if isinstance(serde, RegistrySerde)]
    if needing:
        registry = SchemaRegistry(properties)
        for serde in needing:
            serde.connect(registry)


def header(schema_id: int) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big")


def schema_id_of(item: bytes) -> int:
    """The id in a value's header; raises ``ValueError`` when there is none."""
    if len(item) < HEADER_BYTES or item[0] != 0:
        raise ValueError(f"expected a zero byte and a schema id of four bytes, found {item[:HEADER_BYTES]!r}")
    return int.from_bytes(item[1:HEADER_BYTES], "big")
