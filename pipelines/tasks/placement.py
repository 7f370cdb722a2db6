"""Whether the producers of a topic put keys where repartitioned rows look for them.

Kafka's own producers use murmur2 of the key; librdkafka's use CRC32 by default, and then a join would find nothing,
without an error. Only the first keys of each read are checked, which proves nothing: a few misplaced keys pass.
"""

from __future__ import annotations

import numpy as np

from weir.pipelines.errors import PartitionerError
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.source import RawRecords

RECORDS = 1_000
FEWEST_KEYS = 4
SHARE_ELSEWHERE = 0.25
"""With two partitions another partitioner misplaces half of the keys, with more partitions more."""


def check_placement(raw: RawRecords, partitions: int) -> None:
    """Raise ``PartitionerError`` if too many keys belong in another of the topic's ``partitions``."""
    keys = raw.frame["key"][:RECORDS].drop_nulls().unique().to_list()
    if len(keys) < FEWEST_KEYS:
        return
    targets = (murmur2(keys) & np.uint32(0x7FFFFFFF)) % partitions
    elsewhere = int((targets != raw.partition).sum())
    if elsewhere > SHARE_ELSEWHERE * len(keys):
        raise PartitionerError(raw.topic, raw.partition, elsewhere, len(keys))
