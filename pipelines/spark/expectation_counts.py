"""The query that reads from the commit log what each commit counted of each expectation."""

from __future__ import annotations

from weir.pipelines.expectations import OUTCOMES, PREFIX

_RECORD = "tasks MAP<STRING, STRUCT<totals: MAP<STRING, BIGINT>>>"
"""What is needed of a row's record."""


def expectation_counts_query(log: str) -> str:
    """One row per commit and expectation of which the commit counted something; ``log`` is the table's rows in SQL.

    Columns: ``expectation``, ``generation``, ``epoch``, ``committed_at``; ``passed``, ``failed`` and ``dropped`` of the
    records of this commit; the same with ``total_`` of all records up to it.
    """
    totals = ", ".join(
        f"SUM(IF(name = concat('{PREFIX}', expectation, '/{outcome}'), count, 0)) AS total_{outcome}"
        for outcome in OUTCOMES
    )
    new = ", ".join(f"total_{outcome} - LAG(total_{outcome}, 1, 0L) OVER w AS {outcome}" for outcome in OUTCOMES)
    listed = ", ".join([*OUTCOMES, *(f"total_{outcome}" for outcome in OUTCOMES)])
    place = "expectation, generation, epoch, committed_at"
    return f"""
        SELECT {place}, {listed} FROM (
            SELECT *, {new} FROM (
                SELECT {place}, {totals} FROM (
                    SELECT *, split_part(name, '/', 2) AS expectation FROM (
                        SELECT generation, epoch, committed_at, explode(task.totals) AS (name, count) FROM (
                            SELECT generation, epoch, at AS committed_at,
                                explode(map_values(from_json(record, '{_RECORD}').tasks)) AS task
                            FROM {log} WHERE kind = 'commit'
                        )
                    ) WHERE startswith(name, '{PREFIX}')
                ) GROUP BY {place}
            ) WINDOW w AS (PARTITION BY expectation ORDER BY generation, epoch)
        ) WHERE passed <> 0 OR failed <> 0
    """
