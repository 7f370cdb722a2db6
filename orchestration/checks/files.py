"""Checks that output tables have their files: the part of ``weir verify`` that looks at tables."""

from collections.abc import Collection, Iterator

import dagster as dg

from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.tables import output_tables
from weir.state.commit.table_files import check_table
from weir.state.errors import DamagedFileError, TableFileError
from weir.state.storage.places import folder_at

PRESENT_CHECK, READABLE_CHECK = "files_present", "files_readable"


def file_checks(supervised: Supervised) -> list[dg.AssetChecksDefinition]:
    """Look for the files of every output table, which is cheap enough to run every hour, and read all their rows; none
    for an application without output tables."""
    if not supervised.outputs:
        return []
    return [
        _file_checks(
            supervised, PRESENT_CHECK, "Every file that the table names is there, with its size.", reads=False
        ),
        _file_checks(supervised, READABLE_CHECK, "All rows of every file can be read.", reads=True),
    ]


def _file_checks(supervised: Supervised, name: str, description: str, *, reads: bool) -> dg.AssetChecksDefinition:
    @dg.multi_asset_check(
        name=f"{supervised.name}_{name}",
        can_subset=True,
        description=description,
        specs=[dg.AssetCheckSpec(name, asset=key, description=description) for key in supervised.outputs.values()],
    )
    def check_files(context: dg.AssetCheckExecutionContext, weir: WeirResource) -> Iterator[dg.AssetCheckResult]:
        asked = {key.asset_key for key in context.selected_asset_check_keys}
        yield from file_results(supervised, weir.settings(), name, asked, reads=reads)

    return check_files


def file_results(
    supervised: Supervised, settings: Settings, name: str, asked: Collection[dg.AssetKey] | None = None, *, reads: bool
) -> Iterator[dg.AssetCheckResult]:
    """One result of the check ``name`` per output table that is asked for, all if None; ``reads`` has all rows read."""
    folder = folder_at(settings.warehouse) / supervised.id
    there = set(output_tables(folder))
    for table, key in supervised.outputs.items():
        if asked is not None and key not in asked:
            continue
        found, trouble = None, ""
        if table in there:
            try:
                found = check_table(folder, supervised.id, table, reads=reads)
            except (TableFileError, DamagedFileError) as error:
                trouble = in_dagster(str(error), supervised.id)
        yield dg.AssetCheckResult(
            asset_key=key,
            check_name=name,
            passed=not trouble,
            description=trouble or ("" if found else "nothing was written yet"),
            metadata={"files": found.files, "bytes": found.size_bytes} if found else {},
        )
