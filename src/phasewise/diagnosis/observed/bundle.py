"""The file format of what a watch saw: one gzipped JSON object, versioned, without any text of a prompt.

Requests are numbered, because clients choose their ids.

A verdict is made of nothing else, so a file is judged again by later rules, and by anybody it is sent to.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isnan, nan
from typing import Any

import orjson

from phasewise.clients.processes import CpuSource, CpuUse
from phasewise.clients.timeline_feed import Missed
from phasewise.core.engine_metrics import LoadReading, MetricsSnapshot, ScrapedHistogram, SeriesKey, delta
from phasewise.core.errors import ConfigError
from phasewise.core.slo import Slo
from phasewise.core.steps import EngineStep, FinishedRequest, KvTransfer
from phasewise.core.timeline_record import from_record, to_record
from phasewise.diagnosis.observed.observation import EngineSeen, HostCpu, Observed, TargetKind, WatchedEngine

BUNDLE_VERSION = 1
MAGIC = b"\x1f\x8b"
"""A gzipped file begins so."""
ID_KEYS = frozenset({"id", "client_id", "engine_id", "request_id"})
"""What the ids of requests are called, in timelines and in steps."""

Record = dict[str, Any]


def bundle_of(observed: Observed, slo: Slo, program: str) -> bytes:
    """The file's content; `program` names the version that wrote it."""
    numbers: dict[str, str] = {}
    record = {
        "phasewise_evidence": BUNDLE_VERSION,
        "written_by": program,
        "slo": {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s},
        "url": observed.url,
        "kind": observed.kind,
        "began_unix_s": observed.began_unix_s,
        "ended_unix_s": observed.ended_unix_s,
        "engines": _numbered([_engine_record(engine) for engine in observed.engines], numbers),
        "hosts": {name: asdict(host) for name, host in observed.hosts.items()},
        "reported": _numbered([to_record(timeline) for timeline in observed.reported], numbers),
        "missed": asdict(observed.missed),
        "probed": _numbered([to_record(timeline) for timeline in observed.probed], numbers),
        "synthetic": observed.synthetic,
        "cut_short": observed.cut_short,
        "stolen_share": observed.stolen_share,
    }
    # Without a time stamp: the same evidence is the same file.
    return gzip.compress(orjson.dumps(record), mtime=0)


def _numbered(value: Any, numbers: dict[str, str]) -> Any:  # noqa: ANN401 - any JSON value
    """The value with every request's id replaced by its number, one for each id."""
    if isinstance(value, list):
        return [_numbered(each, numbers) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: numbers.setdefault(inner, f"r{len(numbers) + 1}")
        if key in ID_KEYS and isinstance(inner, str)
        else _numbered(inner, numbers)
        for key, inner in value.items()
    }


def read_bundle(content: bytes) -> tuple[Observed, Slo]:
    """What was seen, and the objective it was judged by; ConfigError if this is no such file."""
    try:
        record = orjson.loads(gzip.decompress(content))
        version = record["phasewise_evidence"]
    except (EOFError, zlib.error):
        raise ConfigError("the evidence file is cut off or damaged", hint="copy it again") from None
    except (OSError, ValueError, LookupError, TypeError):
        raise ConfigError(
            "this is not an evidence file", hint="`phasewise diagnose URL --save-evidence FILE` writes one"
        ) from None
    if version != BUNDLE_VERSION:
        raise ConfigError(
            f"the evidence file has version {version}, and this phasewise reads version {BUNDLE_VERSION}",
            hint=f"it was written by {record.get('written_by')}: install that version to judge it",
        )
    try:
        return _observed(record), Slo(**record["slo"])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the evidence file is damaged ({type(error).__name__})", hint="gather the evidence again"
        ) from error


def _observed(record: Record) -> Observed:
    return Observed(
        url=record["url"],
        kind=TargetKind(record["kind"]),
        began_unix_s=record["began_unix_s"],
        ended_unix_s=record["ended_unix_s"],
        engines=tuple(map(_engine, record["engines"])),
        hosts={name: _host(host) for name, host in record["hosts"].items()},
        reported=tuple(map(from_record, record["reported"])),
        missed=Missed(**record["missed"]),
        probed=tuple(map(from_record, record["probed"])),
        synthetic=record["synthetic"],
        cut_short=record["cut_short"],
        stolen_share=record.get("stolen_share"),
    )


def _host(record: Record) -> HostCpu:
    use = record["use"]
    source = None if use["source"] is None else CpuSource(use["source"])
    return HostCpu(
        CpuUse(**(use | {"source": source})),
        record["started_unix_s"],
        record["slow_format"],
        record.get("settings", {}),
        record.get("cores"),
    )


# --- Engines.


def _engine_record(seen: EngineSeen) -> Record:
    metrics = seen.metrics
    return {
        "engine": asdict(seen.engine),
        "before": None if metrics is None else _snapshot_record(metrics.before),
        "after": None if metrics is None else _snapshot_record(metrics.after),
        "steps": _table(EngineStep, [_step_record(step) for step in seen.steps]),
        "loads": _table(LoadReading, [asdict(load) for load in seen.loads]),
        "details": seen.details,
        "dropped": seen.dropped,
        "round_trip_s": seen.round_trip_s,
        "recorded": seen.recorded,
        "out_of_service": seen.out_of_service,
    }


def _engine(record: Record) -> EngineSeen:
    before, after = record["before"], record["after"]
    return EngineSeen(
        engine=WatchedEngine(**record["engine"]),
        metrics=None if before is None else delta(_snapshot(before), _snapshot(after)),
        steps=tuple(map(_step, _rows(record["steps"]))),
        details=record["details"],
        dropped=record["dropped"],
        loads=tuple(LoadReading(**row) for row in _rows(record["loads"])),
        round_trip_s=record["round_trip_s"],
        recorded=record["recorded"],
        out_of_service=record.get("out_of_service", ""),
    )


def _table(kind: type[Any], records: list[Record]) -> Record:
    """Many records of one kind, with their names written once."""
    columns = [field.name for field in fields(kind)]
    return {"columns": columns, "rows": [[record[name] for name in columns] for record in records]}


def _rows(table: Record) -> list[Record]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def _step_record(step: EngineStep) -> Record:
    record = {field.name: getattr(step, field.name) for field in fields(EngineStep)}
    record["finished"] = [_without_nan(asdict(ended)) for ended in step.finished]
    record["transfers"] = [asdict(transfer) for transfer in step.transfers]
    return record


def _step(record: Record) -> EngineStep:
    finished = tuple(FinishedRequest(**_with_nan(ended)) for ended in record["finished"])
    transfers = tuple(KvTransfer(**transfer) for transfer in record["transfers"])
    return EngineStep(**(record | {"finished": finished, "transfers": transfers}))


def _without_nan(record: Record) -> Record:
    return {k: None if isinstance(v, float) and isnan(v) else v for k, v in record.items()}


def _with_nan(record: Record) -> Record:
    return {name: nan if value is None else value for name, value in record.items()}


# --- Metrics: a series is its name, its labels and its value.


def _snapshot_record(snapshot: MetricsSnapshot) -> Record:
    return {
        "taken_at_unix_s": snapshot.taken_at_unix_s,
        "counters": _series_rows(snapshot.counters),
        "gauges": _series_rows(snapshot.gauges),
        "histograms": [
            [name, sorted(labels), [list(each.buckets), each.count, each.total]]
            for (name, labels), each in snapshot.histograms.items()
        ],
        "infos": {name: dict(labels) for name, labels in snapshot.infos.items()},
        "process_start_unix_s": snapshot.process_start_unix_s,
        "process_cpu_s": snapshot.process_cpu_s,
    }


def _snapshot(record: Record) -> MetricsSnapshot:
    histograms = {
        key: ScrapedHistogram(tuple((_bound(bound), upto) for bound, upto in buckets), count, total)
        for key, (buckets, count, total) in _series(record["histograms"]).items()
    }
    series = {name: _series(record[name]) for name in ("counters", "gauges")}
    return MetricsSnapshot(**(record | series | {"histograms": histograms}))


def _series_rows(series: Mapping[SeriesKey, float]) -> list[list[Any]]:
    return [[name, sorted(labels), value] for (name, labels), value in series.items()]


def _series(rows: list[list[Any]]) -> dict[SeriesKey, Any]:
    return {
        (name, frozenset((key, value) for key, value in labels)): reading for name, labels, reading in rows
    }


def _bound(bound: float | None) -> float:
    """JSON has no infinity: the last bucket's bound is written as null."""
    return float("inf") if bound is None else float(bound)
