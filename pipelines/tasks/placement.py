"""Whether the producers of a topic put keys where repartitioned rows look for them.

Kafka's own producers do, by murmur2 over the key; librdkafka's by CRC32 unless they are told otherwise, and then a join
would find nothing and say nothing. This is a look at the first keys of each read, not a proof: a few that lie
elsewhere pass.
"""

from __future__ import annotations

import numpy as np

from weir.pipelines.errors import PartitionerError
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.serdes.source import RawRecords

RECORDS = 1_000
FEWEST_KEYS = 4
SHARE_ELSEWHERE = 0.25
"""Another partitioner puts half of the keys elsewhere where there are two partitions, more where there are more."""


def check_placement(raw: RawRecords, partitions: int) -> None:
    """Raises ``PartitionerError`` where too many keys belong into another one of the topic's ``partitions``."""
    keys = raw.frame["key"][:RECORDS].drop_nulls().unique().to_list()
    if len(keys) < FEWEST_KEYS:
        return
    targets = (murmur2(keys) & np.uint32(0x7FFFFFFF)) % partitions
    elsewhere = int((targets != raw.partition).sum())
    if elsewhere > SHARE_ELSEWHERE * len(keys):
        raise PartitionerError(raw.topic, raw.partition, elsewhere, len(keys))
