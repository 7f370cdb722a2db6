"""An application as a component of a ``dg`` project: a ``defs.yaml`` takes the place of a ``defs.py``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from typing import Annotated, Any

import dagster as dg
from dagster.components import ComponentLoadContext, ResolutionContext, Scaffolder, ScaffoldRequest, scaffold_component
from pydantic import BaseModel, Field

from weir.orchestration.application import own_definitions, shared_definitions, supervise
from weir.orchestration.on_lag import OnLag
from weir.orchestration.resources import WeirResource
from weir.orchestration.supervised import FIRST_DAY, Supervised
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.application import load_application

PROGRAM = '''"""Counts the records of the topic {name} by key."""

from weir import Application, Count, StreamsBuilder, String

builder = StreamsBuilder()
records = builder.stream("{name}", key=String("key"), value=String("value"))
records.group_by_key().agg("counts", records=Count()).to_delta("counts")
app = Application("{name}", builder)
'''


class Parameters(BaseModel):
    """What ``dg scaffold defs weir.dagster.WeirApplication`` takes besides the name."""

    program: str | None = Field(
        default=None,
        description="Where your program is, module:attribute; without it, a small one is written beside defs.yaml.",
    )


class WeirApplicationScaffolder(Scaffolder[Parameters]):
    """Writes ``defs.yaml``, and without ``--program`` the program ``program.py`` too."""

    @classmethod
    def get_scaffold_params(cls) -> type[Parameters]:
        return Parameters

    def scaffold(self, request: ScaffoldRequest[Parameters]) -> None:
        program = request.params.program
        if program is None:
            program = ".program:app"
            name = re.sub(r"[^A-Za-z0-9_-]", "_", request.target_path.name)
            (request.target_path / "program.py").write_text(PROGRAM.format(name=name))
        scaffold_component(request, {"program": program})


def _program(context: ResolutionContext, program: str) -> str:
    """A module that begins with a dot is beside ``defs.yaml``."""
    if not program.startswith("."):
        return program
    place = ComponentLoadContext.from_resolution_context(context)
    return f"{place.defs_relative_module_name(place.path)}{program}"


def _day(context: ResolutionContext, day: date | str) -> date:
    return date.fromisoformat(str(day))


def _keys(context: ResolutionContext, topics: Mapping[str, str]) -> Mapping[str, dg.AssetKey]:
    return {topic: dg.AssetKey.from_user_string(key) for topic, key in topics.items()}


@dg.scaffold_with(WeirApplicationScaffolder)
@dataclass(kw_only=True, eq=False)
class WeirApplication(dg.Component, dg.Resolvable):
    """An application of Weir: its ingest, tables, backfill and checks, and the sensors and jobs that look after it."""

    program: Annotated[
        str,
        dg.Resolver(
            _program,
            model_field_type=str,
            description="Where the application is, module:attribute; .module:attribute is a module beside defs.yaml.",
            examples=["my_jobs.shop:app", ".program:app"],
        ),
    ]
    topics: Annotated[
        Mapping[str, dg.AssetKey],
        dg.Resolver(
            _keys,
            model_field_type=dict[str, str],
            description="By source topic that an asset of yours fills, the key of that asset.",
        ),
    ] = field(default_factory=dict)
    thresholds: Annotated[
        Thresholds, dg.Resolver.default(description="The limits at which sensors act and checks fail.")
    ] = field(default_factory=Thresholds)
    on_lag: Annotated[
        OnLag,
        dg.Resolver.default(description="What the sensor weir_lag may do when the application lags."),
    ] = field(default_factory=OnLag)
    first_day: Annotated[
        date,
        dg.Resolver(_day, model_field_type=date, description="No earlier day of event time is offered for backfills."),
    ] = FIRST_DAY
    end_day: Annotated[
        date | None,
        dg.Resolver(_day, model_field_type=date, description="Nor this one or a later one; today if left out."),
    ] = None
    owners: Annotated[
        Sequence[str],
        dg.Resolver.default(description="Shown with the assets: e-mail addresses, or team:name."),
    ] = ()
    unwatched: Annotated[
        Sequence[str],
        dg.Resolver.default(description="Sensors and schedules that leave the application alone, such as succession."),
    ] = ()
    weir: Annotated[
        Mapping[str, Any],
        dg.Resolver.default(
            description="Where Weir works: dir, bootstrap_servers, control_url, slots. What is left out comes from "
            "WEIR_* variables and weir.toml. For all applications of the code location, so give it once.",
        ),
    ] = field(default_factory=dict)

    @cached_property
    def supervised(self) -> Supervised:
        return supervise(
            load_application(self.program),
            self.program,
            topics=self.topics,
            thresholds=self.thresholds,
            on_lag=self.on_lag,
            first_day=self.first_day,
            end_day=self.end_day,
            owners=self.owners,
            unwatched=self.unwatched,
        )

    @cached_property
    def own(self) -> dg.Definitions:
        return own_definitions(self.supervised)

    def build_defs(self, context: ComponentLoadContext) -> dg.Definitions:
        """Its own definitions; those of the first component of the code location include what all of them share."""
        components = context.component_tree.get_all_components(of_type=WeirApplication)
        if self not in components:  # Python code has made it without saying of which type it is
            components = [self]
        if self is not components[0]:
            return self.own
        places = [WeirResource(**each.weir) for each in components if each.weir]
        if len(places) > 1:
            raise ValueError(
                "two components say where Weir works, but a code location has one place for all its applications; "
                "keep the attribute weir in one of them"
            )
        shared = shared_definitions([(each.supervised, each.own) for each in components], *places)
        return dg.Definitions.merge(self.own, shared)
