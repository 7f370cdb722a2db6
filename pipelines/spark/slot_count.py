"""How many slots a run is to have, by the number of executors that are there."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class SlotCount:
    """How many slots there are to be, by the number of executors: one that was not planned brings as many as each of
    the others has, rounded down, and takes them with it."""

    slots: int
    executors: int
    """How many executors have so many slots."""
    planned: int
    """How many a run asks for: if fewer are there, the slots that these would have wait, or go to the others."""

    def at(self, executors: int) -> int:
        """How many slots so many executors have.

        >>> count = SlotCount(slots=5, executors=2, planned=2)
        >>> [count.at(executors) for executors in (1, 2, 3, 4)]
        [5, 5, 7, 9]
        """
        share = max(1, self.slots // self.executors)
        return self.slots + share * (max(executors, self.planned) - self.executors)

    def asked(self, slots: int, executors: int) -> SlotCount:
        """The same once somebody has asked for ``slots`` while so many executors are there.

        >>> count = SlotCount(slots=4, executors=2, planned=2).asked(5, 3)
        >>> [count.at(executors) for executors in (2, 3, 4)]
        [4, 5, 6]
        """
        return replace(self, slots=slots, executors=max(executors, self.planned))
