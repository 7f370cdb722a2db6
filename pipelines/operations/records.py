"""Records of Kafka as text: lines that become records, and keys and values that people can read."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from weir.pipelines.operations.errors import OperationError
from weir.pipelines.serdes.shapes import LAST_TIME_MS
from weir.state.printable import is_printable

Sent = tuple[bytes | None, bytes | None, int | None]
"""Key, value and time in ms; a record without a time has the present."""


def records_of(
    lines: Iterable[str],
    *,
    key_field: str | None = None,
    time_field: str | None = None,
    left_out: list[int] | None = None,
) -> Iterator[Sent]:
    """The record of each line that is not blank; the numbers of blank ones are added to ``left_out``.

    With ``key_field`` or ``time_field`` a line is a JSON object, and these fields are its key and its time, which is an
    ISO time or milliseconds since 1970. Without ``key_field``, a line that is JSON is a value without a key; any other
    is ``key<TAB>value``, where an empty value is null and deletes a table's row; without a tab it is a value.

    Raises:
        OperationError: A line is not a JSON object or lacks a field, or its time is not one.
    """
    for number, line in enumerate(lines, start=1):
        if not (text := line.rstrip("\r\n")).strip():
            if left_out is not None:
                left_out.append(number)
            continue
        if key_field is None and time_field is None:
            key, tab, value = text.partition("\t")
            if not tab or _is_json(text):
                yield None, text.encode(), None
            else:
                yield key.encode(), value.encode() or None, None
            continue
        fields = _object(text, number, "--time-field" if key_field is None else "--key-field")
        field_key, time_ms = None, None
        if key_field is not None:
            field_key = _key(_field(fields, key_field, number, "--key-field"))
        if time_field is not None:
            time_ms = _time_ms(_field(fields, time_field, number, "--time-field"), time_field, number)
        yield field_key, text.encode(), time_ms


def _object(text: str, number: int, option: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OperationError(f"line {number} is not JSON ({error}); {option} takes one JSON object per line") from None
    if not isinstance(found, dict):
        raise OperationError(f"line {number} is not a JSON object; {option} takes one JSON object per line")
    return found


def _field(fields: dict[str, Any], name: str, number: int, option: str) -> Any:
    if name not in fields:
        raise OperationError(
            f"line {number} has no field {name!r}; it has {', '.join(fields) or 'none'}: correct {option} or the line"
        )
    return fields[name]


def _key(found: Any) -> bytes | None:
    if found is None:
        return None
    return (found if isinstance(found, str) else json.dumps(found, separators=(",", ":"), ensure_ascii=False)).encode()


def _time_ms(found: Any, name: str, number: int) -> int:
    what = f"line {number}: the time in {name!r}"
    time_ms = time_ms_of(found, what) if isinstance(found, str) else found
    if type(time_ms) is int and 0 < time_ms <= LAST_TIME_MS:  # librdkafka takes 0 for the present
        return time_ms
    raise OperationError(
        f"{what} cannot be {json.dumps(found)}; write a time such as 2024-01-31T12:00:00Z, or milliseconds since 1970 "
        "as a number, from 1 to the year 9999"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def text_of(data: bytes | None) -> str | None:
    """Text if these bytes are readable UTF-8, with its line breaks and tabs escaped; None for null and other bytes."""
    try:
        text = None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
    if text is None or not all(is_printable(each) or each in "\r\n\t" for each in text):
        return None
    return text


def shown(data: bytes | None) -> str:
    """A key or value on one line: text, ``-`` for null, or ``base64:`` and the bytes."""
    if data is None:
        return "-"
    text = text_of(data)
    if text is None:
        return f"base64:{base64.b64encode(data).decode()}"
    return text.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")


def plain(name: str, data: bytes | None) -> dict[str, Any]:
    """A member of a JSON object: ``name`` with text or null, or ``name_base64`` for other bytes."""
    text = text_of(data)
    if data is not None and text is None:
        return {f"{name}_base64": base64.b64encode(data).decode()}
    return {name: text}


def iso_time(time_ms: int | None) -> str | None:
    """``2024-01-01T00:00:00.000Z``; milliseconds for a time that a datetime cannot hold."""
    if time_ms is None:
        return None
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def time_ms_of(text: str, option: str) -> int:
    """Milliseconds since 1970 of an ISO time, in UTC unless it says otherwise.

    Raises:
        OperationError: It is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OperationError(f"{option} cannot be {text!r}; write a time such as 2024-01-31T12:00:00Z") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
