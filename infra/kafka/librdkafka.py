"""librdkafka's C API (rdkafka.h) through ctypes: confluent-kafka ships the library, but makes a Python object of every
record."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache

from confluent_kafka import KafkaError, KafkaException, cimpl

from weir.infra.kafka.columns import ERROR_BYTES, declare

PRODUCER, CONSUMER = 0, 1
OK = 0


class PartitionOffset(ctypes.Structure):
    """The beginning of ``rd_kafka_topic_partition_t``."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
    )


@cache
def rdkafka() -> ctypes.CDLL:
    """The librdkafka of confluent-kafka, found among the libraries that its module is linked with."""
    kafka = ctypes.CDLL(cimpl.__file__)
    pointer, text, number, partition = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int32
    declare(kafka, "rd_kafka_conf_new", pointer)
    declare(kafka, "rd_kafka_conf_set", number, pointer, text, text, text, ctypes.c_size_t)
    declare(kafka, "rd_kafka_conf_set_opaque", None, pointer, pointer)
    declare(kafka, "rd_kafka_conf_set_dr_msg_cb", None, pointer, pointer)
    declare(kafka, "rd_kafka_conf_destroy", None, pointer)
    declare(kafka, "rd_kafka_new", pointer, number, pointer, text, ctypes.c_size_t)
    declare(kafka, "rd_kafka_poll", number, pointer, number)
    declare(kafka, "rd_kafka_destroy", None, pointer)
    declare(kafka, "rd_kafka_topic_new", pointer, pointer, text, pointer)
    declare(kafka, "rd_kafka_topic_destroy", None, pointer)
    declare(kafka, "rd_kafka_metadata", number, pointer, number, pointer, ctypes.POINTER(pointer), number)
    declare(kafka, "rd_kafka_metadata_destroy", None, pointer)
    declare(kafka, "rd_kafka_last_error", number)
    declare(kafka, "rd_kafka_consume_start", number, pointer, partition, ctypes.c_int64)
    declare(kafka, "rd_kafka_consume_stop", number, pointer, partition)
    declare(kafka, "rd_kafka_consume_callback", number, pointer, partition, number, pointer, pointer)
    declare(kafka, "rd_kafka_init_transactions", pointer, pointer, number)
    declare(kafka, "rd_kafka_begin_transaction", pointer, pointer)
    declare(kafka, "rd_kafka_send_offsets_to_transaction", pointer, pointer, pointer, pointer, number)
    declare(kafka, "rd_kafka_commit_transaction", pointer, pointer, number)
    declare(kafka, "rd_kafka_abort_transaction", pointer, pointer, number)
    declare(kafka, "rd_kafka_consumer_group_metadata_new", pointer, text)
    declare(kafka, "rd_kafka_consumer_group_metadata_destroy", None, pointer)
    declare(kafka, "rd_kafka_topic_partition_list_new", pointer, number)
    declare(kafka, "rd_kafka_topic_partition_list_add", ctypes.POINTER(PartitionOffset), pointer, text, partition)
    declare(kafka, "rd_kafka_topic_partition_list_destroy", None, pointer)
    declare(kafka, "rd_kafka_mem_malloc", pointer, pointer, ctypes.c_size_t)
    declare(kafka, "rd_kafka_error_code", number, pointer)
    declare(kafka, "rd_kafka_error_string", text, pointer)
    declare(kafka, "rd_kafka_error_destroy", None, pointer)
    declare(kafka, "rd_kafka_fatal_error", number, pointer, text, ctypes.c_size_t)
    return kafka


def new_conf(properties: Mapping[str, object]) -> int:
    """A configuration, which ``new_client`` takes over.

    Raises:
        KafkaException: A property is invalid.
    """
    kafka, text = rdkafka(), ctypes.create_string_buffer(ERROR_BYTES)
    conf: int = kafka.rd_kafka_conf_new()
    for name, value in properties.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        if kafka.rd_kafka_conf_set(conf, name.encode(), written.encode(), text, ERROR_BYTES) != OK:
            kafka.rd_kafka_conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode()))
    return conf


def new_client(kind: int, conf: int) -> int:
    """A producer or consumer; ``rd_kafka_destroy`` ends it.

    Raises:
        KafkaException: The properties do not go together.
    """
    kafka, text = rdkafka(), ctypes.create_string_buffer(ERROR_BYTES)
    client: int | None = kafka.rd_kafka_new(kind, conf, text, ERROR_BYTES)
    if not client:
        kafka.rd_kafka_conf_destroy(conf)
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode()))
    return client
