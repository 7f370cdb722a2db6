"""Serdes: bytes of keys and values to typed columns, and back."""

from pipelines.serdes.avro import Avro
from pipelines.serdes.delimited import Delimited
from pipelines.serdes.json_serde import Json
from pipelines.serdes.msgpack_serde import Msgpack
from pipelines.serdes.protobuf import Protobuf
from pipelines.serdes.registry import SchemaRegistryError
from pipelines.serdes.scalar import Boolean, Bytes, Float32, Float64, Int32, Int64, String, Uuid
from pipelines.serdes.windowed import SessionWindowed, TimeWindowed

__all__ = ["Avro", "Boolean", "Bytes", "Delimited", "Float32", "Float64", "Int32", "Int64", "Json", "Msgpack",
           "Protobuf", "SchemaRegistryError", "SessionWindowed", "String", "TimeWindowed", "Uuid"]
