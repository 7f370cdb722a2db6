"""Kafka's murmur2, against its published values and against a plain rendering of the Java code."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from weir.pipelines.serdes.partitioner import key_bytes, murmur2, partition_of

MASK = 0xFFFFFFFF


def murmur2_in_java_steps(data: bytes) -> int:
    h = (0x9747B28C ^ len(data)) & MASK
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & MASK
        k = (k ^ k >> 24) * 0x5BD1E995 & MASK
        h = h * 0x5BD1E995 & MASK ^ k
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & MASK
    h = (h ^ h >> 13) * 0x5BD1E995 & MASK
    return h ^ h >> 15


def test_hashes_are_those_of_kafkas_own_test():
    """org.apache.kafka.common.utils.UtilsTest.testMurmur2."""
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    assert murmur2(list(known)).tolist() == [value & MASK for value in known.values()]


@given(st.lists(st.binary(max_size=19), max_size=8))
def test_hashing_many_keys_equals_hashing_each(keys):
    assert murmur2(keys).tolist() == [murmur2_in_java_steps(key) for key in keys]


def test_rows_of_one_key_go_to_one_partition_even_with_nulls_in_a_composite_key():
    rows = pl.DataFrame({"a": ["x", "y", "x", None, None], "b": [1, 2, 1, 3, 3]})
    targets = partition_of(rows, ["a", "b"], 7)
    assert targets.dtype == pl.Int32
    assert targets[0] == targets[2]
    assert targets[3] == targets[4]
    assert targets.to_list() == [(h & 0x7FFFFFFF) % 7 for h in murmur2(key_bytes(rows)).tolist()]


def test_key_bytes_are_what_a_producer_would_write():
    assert key_bytes(pl.DataFrame({"k": ["é"]})) == ["é".encode()]
    assert key_bytes(pl.DataFrame({"k": [258]})) == [b"\x00\x00\x00\x00\x00\x00\x01\x02"]
    assert key_bytes(pl.DataFrame({"k": [b"\xff"]})) == [b"\xff"]
    assert key_bytes(pl.DataFrame({"k": ["a"], "n": [1]})) == [b'["a",1]']
