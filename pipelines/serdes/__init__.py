"""Serdes: bytes of keys and values to typed columns, and back."""

from pipelines.serdes.delimited import Delimited
from pipelines.serdes.json_serde import Json
from pipelines.serdes.msgpack_serde import Msgpack
from pipelines.serdes.scalar import Boolean, Bytes, Float32, Float64, Int32, Int64, String, Uuid
from pipelines.serdes.windowed import SessionWindowed, TimeWindowed

__all__ = ["Boolean", "Bytes", "Delimited", "Float32", "Float64", "Int32", "Int64", "Json", "Msgpack",
           "SessionWindowed", "String", "TimeWindowed", "Uuid"]
