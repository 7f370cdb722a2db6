"""Writers' schemas that few bytes of a bad record could turn against its reader, whatever the program declares.

fastavro counts the items of an array one by one, even where they take no bytes, and its compiled reader ends the
process when records are nested too deeply.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def contains_itself(writer: Any) -> bool:
    """Whether records of ``writer``, a schema that fastavro has parsed, may be nested in each other to any depth."""
    named = _named_types(writer)

    def is_within(schema: Any, around: frozenset[str]) -> bool:
        if isinstance(schema, str):
            if schema in around:
                return True
            schema = named.pop(schema, None)  # each once
        if isinstance(schema, dict) and "name" in schema:
            named.pop(schema["name"], None)
            around |= {schema["name"]}
        return any(is_within(inner, around) for inner in _inner(schema))

    return is_within(writer, frozenset())


def has_items_without_bytes(writer: Any) -> bool:
    """Whether ``writer`` has an array whose items take no bytes, so that a few could announce any number of them."""
    named = _named_types(writer)

    def takes_none(schema: Any) -> bool:
        schema = named.get(schema, schema) if isinstance(schema, str) else schema
        match schema:
            case "null" | {"type": "null"} | {"type": "fixed", "size": 0}:
                return True
            case {"type": "record", "fields": fields}:
                return all(takes_none(field["type"]) for field in fields)
        return False

    return any(schema["type"] == "array" and takes_none(schema["items"]) for schema in _walk(writer))


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    """The complex types within a schema, itself among them."""
    if isinstance(schema, dict):
        yield schema
    for inner in _inner(schema):
        yield from _walk(inner)


def _inner(schema: Any) -> list[Any]:
    match schema:
        case list():
            return schema
        case {"type": "record", "fields": fields}:
            return [field["type"] for field in fields]
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            return [inner]
    return []


def _named_types(writer: Any) -> dict[str, Any]:
    """A type is written out where it is first mentioned; later mentions are only its name."""
    return {schema["name"]: schema for schema in _walk(writer) if "name" in schema}
