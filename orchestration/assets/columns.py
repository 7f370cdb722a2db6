"""The columns of a table as Dagster shows them: their types in words, and the columns that they come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import dagster as dg
import polars as pl
from polars._typing import PolarsDataType  # has no public name

from weir.orchestration.supervised import Supervised
from weir.pipelines.topology.column_lineage import ColumnLineage
from weir.pipelines.topology.topology import table_spec
from weir.state.commit.upserts import upserts_of
from weir.state.types import TableSpec

LINEAGE = "dagster/column_lineage"


def column_schema(spec: TableSpec) -> dg.TableSchema:
    """The columns that people read; key columns of updates are marked."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(name, type_words(dtype), tags={"weir/key": ""} if name in spec.keys else None)
            for name, dtype in (upserts_of(spec) or spec).schema.items()
        ]
    )


def column_lineage(supervised: Supervised) -> dict[str, dg.TableColumnLineage]:
    """By output table, the columns of topics that the values of its columns come from, where the topology tells.

    Dagster reads it from materializations, not from definitions. The topics of global tables are no assets, so nothing
    is said of columns that come from them.
    """
    lineage, found = ColumnLineage(), dict[str, dg.TableColumnLineage]()
    for sink in supervised.application.topology.sinks:
        if sink.sink is None:
            found[table_spec(sink).name] = dg.TableColumnLineage(
                {
                    name: [dg.TableColumnDep(supervised.topics[topic], column) for topic, column in sorted(origins)]
                    for name, origins in lineage.of(sink).items()
                    if all(topic in supervised.topics for topic, _ in origins)
                }
            )
    return found


def with_lineage(
    supervised: Supervised, events: Iterable[dg.AssetMaterialization]
) -> Iterator[dg.AssetMaterialization]:
    """The same materializations, those of outputs with the lineage of their columns."""
    lineage = {supervised.tables[table]: found for table, found in column_lineage(supervised).items()}
    for event in events:
        found = lineage.get(event.asset_key)
        yield event if found is None else event.with_metadata({**event.metadata, LINEAGE: found})


def type_words(dtype: PolarsDataType) -> str:
    """Such as ``integer``, ``time (ms, UTC)`` or ``list of text``; polars' own name for what has no plainer one."""
    match dtype:
        case pl.String():
            return "text"
        case pl.Boolean():
            return "true or false"
        case pl.Binary():
            return "bytes"
        case pl.Date():
            return "date"
        case pl.Int64():
            return "integer"
        case pl.Float64():
            return "number"
        case pl.Datetime(time_unit=unit, time_zone=zone):
            return f"time ({unit}, {zone or 'no time zone'})"
        case pl.Duration(time_unit=unit):
            return f"duration ({unit})"
        case pl.Decimal(precision=precision, scale=scale):
            return f"decimal ({precision} digits, {scale} after the point)"
        case pl.List(inner=inner):
            return f"list of {type_words(inner)}"
        case pl.Struct(fields=fields):
            return f"record ({', '.join(f'{field.name}: {type_words(field.dtype)}' for field in fields)})"
    if dtype.is_integer():
        return f"integer ({str(dtype).lower().removeprefix('u').removeprefix('int')} bits" + (
            ", not negative)" if dtype.is_unsigned_integer() else ")"
        )
    return str(dtype)
