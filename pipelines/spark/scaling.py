"""How many slots a run has while it goes on: as somebody asks for, and more where executors join that were not planned.

Slots are numbered from 0; those that are too many are the last ones. They end once their tasks, which move with their
stores, are in other slots of the same executor. Which tasks move where, ``weir.pipelines.spark.whereabouts`` says.
"""

from __future__ import annotations

import logging

from weir.pipelines.spark.errors import RunError
from weir.pipelines.spark.parts import Slots
from weir.pipelines.spark.slot_count import SlotCount
from weir.pipelines.spark.whereabouts import Whereabouts
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")


class Scaling:
    """Has the slots of one generation follow their number, and the tasks follow the slots."""

    def __init__(self, slots: Slots, whereabouts: Whereabouts, count: SlotCount | None) -> None:
        """``count`` is how many slots there are to be; None if they do not follow executors."""
        self._slots, self._whereabouts = slots, whereabouts
        self.count = count
        """The same by now."""
        self._is_under_way = False
        """Whether slots were added or end, and tasks have yet to move."""
        self._has_new = False
        """Whether executors have slots that began without tasks."""
        self._refused = ""

    def ask(self, wanted: str) -> str:
        """Have as many slots as somebody wants; the answer says which tasks have moved, and that others will.

        Raises:
            RunError: That is not a number, or there cannot be so few or so many.
        """
        before, there = self._slots.count, len(self._slots.executors())
        if not wanted.isdecimal() or not int(wanted):
            raise RunError(f"{wanted!r} is not a number of slots; give one from 1 on")
        number = int(wanted)
        if number < there:
            raise RunError(
                f"each of the {there} executors needs a slot; ask for {there} slots, or have executors leave first"
            )
        if number == before:
            return f"there are {_slots(before)} already"
        self._change(number)
        if self.count is not None:
            self.count = self.count.asked(number, there)
        try:
            moved = self._move()
        except RunError as error:  # the slot that does not answer is asked again
            log.warning("%s", error)
            moved = []
        later = "; more tasks follow once they rest" if self._is_under_way else ""
        return f"{_slots(number)} instead of {before}; moved: {', '.join(map(str, moved)) or 'no task'}{later}"

    def follow_executors(self, *, is_late: bool) -> None:
        """Have slots where an executor has joined that was not planned, and fewer once one has left for good: it is
        about to end, or was lost and is not replaced although it ``is_late``."""
        if self.count is None or (self._slots.lost() and not is_late):
            return
        before, there = self._slots.count, len(self._slots.executors())
        if (wanted := self.count.at(there)) == before:
            return
        try:
            self._change(wanted)
        except RunError as error:
            if str(error) != self._refused:
                log.warning("%s", error)
            self._refused = str(error)
        else:
            self._refused = ""

    def go_on(self) -> None:
        """Have tasks move that could not yet; called between epochs."""
        if self._is_under_way:
            try:
                self._move()
            except RunError as error:  # whoever waits for its plans finds out what is wrong with it
                log.warning("%s", error)

    def slots_went(self) -> None:
        """Slots have gone to other executors, where they begin without tasks."""
        self._has_new = True

    def fill(self) -> None:
        """Have tasks of their executors move into slots that began without; raises as ``Whereabouts.fill_slots``."""
        if self._has_new and self._whereabouts.has_empty_slot:
            self._whereabouts.fill_slots()

    def _change(self, count: int) -> None:
        before, there = self._slots.count, len(self._slots.executors())
        self._slots.scale(count)
        self._is_under_way = self._has_new = True
        log.info("%s instead of %s, on %s executor%s", _slots(count), before, there, "s" * (there > 1))

    def _move(self) -> list[TaskId]:
        moved = self._whereabouts.leave_ending()
        moved += self._whereabouts.fill_slots()
        self._is_under_way = self._whereabouts.has_ending_slot or self._whereabouts.has_empty_slot
        return sorted(moved)


def _slots(count: int) -> str:
    return f"{count} slot{'s' * (count != 1)}"
