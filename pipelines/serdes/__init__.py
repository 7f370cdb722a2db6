"""Serdes: bytes of keys and values to typed columns, and back."""

from weir.pipelines.serdes.avro import Avro
from weir.pipelines.serdes.delimited import Delimited
from weir.pipelines.serdes.json_serde import Json
from weir.pipelines.serdes.msgpack_serde import Msgpack
from weir.pipelines.serdes.protobuf import Protobuf
from weir.pipelines.serdes.scalar import Boolean, Bytes, Float32, Float64, Int32, Int64, String, Uuid
from weir.pipelines.serdes.serde import SchemaRegistryError
from weir.pipelines.serdes.windowed import SessionWindowed, TimeWindowed

__all__ = [
    "Avro",
    "Boolean",
    "Bytes",
    "Delimited",
    "Float32",
    "Float64",
    "Int32",
    "Int64",
    "Json",
    "Msgpack",
    "Protobuf",
    "SchemaRegistryError",
    "SessionWindowed",
    "String",
    "TimeWindowed",
    "Uuid",
]
