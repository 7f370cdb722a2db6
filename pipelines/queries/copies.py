"""A global table, of which each executor has a copy: the one that is furthest answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from weir.pipelines.queries.contract import AwayError, Question, TaskAnswer, TaskStores


class Copies:
    """The same rows in several places; implements ``TaskStores``."""

    def __init__(self, places: Sequence[TaskStores]) -> None:
        self._places = places

    def answer(self, question: Question, tasks: Sequence[str]) -> list[TaskAnswer]:
        """What the copy says that is furthest now; of those that are equally far, the first. The others go on
        while their executors have tasks that join the table.

        Raises:
            AwayError: No place can be reached.
        """
        look = dataclasses.replace(question, look="position", lower=None, upper=None)
        best, away, furthest = None, None, -1
        for place in self._places:
            try:
                (found,) = place.answer(look, tasks)
            except AwayError as error:
                away = error
                continue
            read = sum(offset for offsets in (found.reached or {}).values() for offset in offsets.values())
            if found.has_state and read > furthest:
                best, furthest = place, read
        if best is not None:
            return best.answer(question, tasks)
        if away is not None:
            raise away
        return [TaskAnswer(task=task, has_state=False) for task in tasks]
