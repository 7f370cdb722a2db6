"""Says for Dagster what a message advises: who looks there has no command line, but jobs.

Messages of pipelines, state and infra name commands (``start it with `weir run MODULE:APP```); ``in_dagster`` puts the
job in the place of each, with its partition and what has to be in its configuration. It imports no Dagster, because
drivers use it too.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"`(weir [^`]+)`")
_ASIDE = re.compile(r" \((?:in Dagster, |--)[^)]*\)|`weir[ ]demo` or ")
"""What a message adds that tells an operator nothing: about options, about Dagster, about the demo."""
_OPTION = re.compile(r"--([a-z-]+)(?: (?!--)(\S+))?")
_STORES = re.compile(r"((?:--keyed-by-record \S+ )+)in the same command")
_RESOURCE = ("dir", "bootstrap-servers")
"""Options that are fields of the resource ``weir``."""
_FIELDS = {
    "`--dir DIR`": "dir: DIR in the resource weir",
    "--empty-stores in the same command": "empty_stores: true in the run's config",
    "--changelog": "changelogs",
    "--serdes": "serdes",
    "--replace": "replace: true",
    "--publish": "publish: true",
}
"""Options that messages name without the command, and the fields of its job."""


def in_dagster(text: str, application: str) -> str:
    """``text`` without commands; each is about the application with that id. What has no job is left to the host."""
    said = _COMMAND.sub(lambda found: _instead(found[1], application), _ASIDE.sub("", text))
    said = _STORES.sub(
        lambda found: f"keyed_by_record: [{', '.join(found[1].split()[1::2])}] in the run's config", said
    )
    for option, field in _FIELDS.items():
        said = said.replace(option, field)
    return said


def dagster_name(application: str) -> str:
    """An application's id as it appears in the names of ops, jobs and the asset group, which may not contain a dash."""
    return re.sub(r"\W", "_", application)


def ingest_job_name(application: str) -> str:
    """The job that runs the application's ingest."""
    return f"{dagster_name(application)}_run"


def _instead(command: str, application: str) -> str:
    """What to launch, or to look at, in the place of a command."""
    match command.split()[1:]:
        case ["run", program, *options]:
            job = f"the job {ingest_job_name(application)}"
            if program.startswith("OLD_"):
                return f"{job} with the old program{_configured(options, joined='and')}"
            return job + _configured(options, joined="with")
        case ["stop", _]:
            return _job("weir_stop", application)
        case ["restore", _, task, *options]:
            return _job("weir_restore", f"{application}:{task}", options)
        case ["compact", _, *options]:
            return _job("weir_compaction", application, options)
        case ["repartition", _]:
            return _job("weir_repartition", application, ["--dry-run false"])
        case ["backfill", "run", _, "--everything"]:
            return _job("weir_rebuild", application)
        case ["backfill", "run", _, _, _, *options]:
            return f"the days of the asset {application}/backfill{_configured(options, joined='with')}"
        case ["backfill", "list", _]:
            return _job("weir_backfills", application)
        case ["backfill", "swap", _, backfill, *options]:
            return _job("weir_swap_backfill", f"{application}:{backfill}", options)
        case ["backfill", "discard", _, backfill]:
            return _job("weir_discard_backfill", f"{application}:{backfill}")
        case ["dead-letters", "list", _]:
            return _job("weir_dead_letters", application)
        case ["dead-letters", "replay", _]:
            return _job("weir_replay_dead_letters", application)
        case ["sink", "list", _]:
            return "the check delivered of its asset"
        case ["sink", decision, _, *sink]:
            return _job(f"weir_sink_{decision}", f"{application}:{' '.join(sink)}")
        case ["status", *_]:
            return f"the check running of {application}/ingest"
        case ["logs", _]:
            return f"the log file logs/{application}.log in Weir's folder"
        case _:
            return f"the command {command} on the host"


def _job(name: str, partition: str, options: list[str] | None = None) -> str:
    return f"the job {name} with the partition {partition}{_configured(options or [], joined='and')}"


def _configured(options: list[str], joined: str) -> str:
    """What has to be in the configuration of a run, or of the resource, for the options of a command."""
    found = dict(_OPTION.findall(" ".join(options)))
    fields = [_field(name, value) for name, value in found.items() if name not in _RESOURCE]
    places = [_field(name, value) for name, value in found.items() if name in _RESOURCE]
    in_config = f" {joined} {', '.join(fields)} in its config" if fields else ""
    in_resource = f" {joined} {', '.join(places)} in the resource weir" if places else ""
    return in_config + in_resource


def _field(option: str, value: str) -> str:
    if option == "yes":
        return "max_change: 1.0"
    if option == "from":
        topic, _, path = value.partition("=")
        return f"paths: {{{topic}: {path}}}"
    return f"{option.replace('-', '_')}: {value or 'true'}"
