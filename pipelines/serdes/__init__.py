"""Serdes: bytes of keys and values to typed columns, and back."""

from pipelines.serdes.delimited import Delimited
from pipelines.serdes.json_serde import Json
from pipelines.serdes.scalar import Bytes, Int64, String

__all__ = ["Bytes", "Delimited", "Int64", "Json", "String"]
