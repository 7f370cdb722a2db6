"""What only ``make faults`` runs: it takes long, or more than one broker."""

from __future__ import annotations

import os

collect_ignore = (
    [] if "FAULT_KILLS" in os.environ else ["test_dead_leader.py", "test_soak.py", "test_unclean_election.py"]
)
