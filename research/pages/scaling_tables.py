"""Tables of the growth of costs, and extrapolation to larger corpora."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.report import markdown_table

__all__ = ["predict", "scaling_tables", "tables"]

TARGETS: Final = (1_000_000, 10_000_000, 100_000_000)

Measured = Mapping[str, Any]


def scaling_tables(file: Path) -> list[str]:
    """Give the tables as Markdown; none if nothing is recorded."""
    if not file.is_file():
        return []
    return ["\n\n".join(tables(json.loads(file.read_text(encoding="utf-8")))) + "\n"]


def tables(content: Measured) -> list[str]:
    """Give the tables as Markdown, one block each."""
    bundles = sorted(content["bundles"], key=lambda one: (one["dimension"], one["top_k"] or 0, one["documents"]))
    origin = f"{content['machine']}, {content['date']}, commit {content['commit']}; `{content['command']}`"
    return [
        f"{origin}. Times in ms (p50 / p99), one query after the other.",
        _costs(bundles),
        "By hits and candidates, and by words of the query:",
        _by(bundles, "sizes", lambda row: f"k {row['k']}, {row['candidates']} candidates"),
        _by(bundles, "lengths", lambda row: f"{row['words']} words"),
        "Start with the bundle's files out of the page cache, and memory:",
        _starts(bundles),
        *_extrapolated(bundles),
    ]


def _costs(bundles: Sequence[Measured]) -> str:
    stages = ("encode", "dense", "sparse", "rescore", "fetch", "search")
    rows = [
        [f"{one['bytes'][part] / one['documents']:,.0f}" for part in ("dense", "lucene")]
        + [_pair(one["stages"][stage]) for stage in stages]
        for one in bundles
    ]
    return _table(bundles, ["dense B/doc", "Lucene B/doc", *stages], rows)


def _by(bundles: Sequence[Measured], key: str, name: Callable[[Measured], str]) -> str:
    labels = [name(row) for row in bundles[0][key]]
    return _table(bundles, labels, [[_pair(row) for row in one[key]] for one in bundles])


def _starts(bundles: Sequence[Measured]) -> str:
    rows = [
        [*map(str, one["cold"].values()), str(one["processes"][0]["total_pss"]), str(one["processes"][1]["added_pss"])]
        for one in bundles
    ]
    columns = ["ready s", "first query ms", "20th query ms", "MiB of one process", "MiB that a second adds"]
    return _table(bundles, columns, rows)


def _extrapolated(bundles: Sequence[Measured]) -> list[str]:
    """Extrapolate the largest group of bundles that differ only in size."""
    groups: dict[tuple[int, int | None], list[Measured]] = {}
    for one in bundles:
        groups.setdefault((one["dimension"], one["top_k"]), []).append(one)
    series = max(groups.values(), key=lambda group: len({one["documents"] for one in group}))
    if len({one["documents"] for one in series}) < 2:
        return ["Nothing is carried on to larger corpora: that takes bundles of different size and equal settings."]
    columns = ["documents", "dense GiB", "Lucene GiB", "private MiB", "sparse leg p50 ms"]
    rows = [
        [f"{documents:,}", *(f"{value:,.2f}" for value in predict(series, documents).values())] for documents in TARGETS
    ]
    return [
        f"Carried on from {len(series)} sizes with {series[0]['dimension']} dimensions and the best "
        f"{series[0]['top_k'] or 'of all'} terms, on paper:",
        "\n".join(markdown_table(columns, rows)),
        "Files and the private memory of a process follow the straight line through the two largest sizes, the sparse "
        "leg's time the power law through them. The dense index must be in memory to be fast; all processes share the "
        "files. Split the corpus where the sparse leg's time exceeds the deadline.",
    ]


def predict(series: Sequence[Measured], documents: int) -> dict[str, float]:
    """Predict sizes (GiB, MiB) and time (ms) of a corpus from the two largest bundles that differ only in size."""
    by_size = {one["documents"]: one for one in series}
    small, large = (by_size[size] for size in sorted(by_size)[-2:])
    sizes = small["documents"], large["documents"]

    def along(line: Callable[[Measured], float]) -> float:
        slope = (line(large) - line(small)) / (sizes[1] - sizes[0])
        return float(line(large) + slope * (documents - sizes[1]))

    times = [one["stages"]["sparse"]["p50"] for one in (small, large)]
    exponent = math.log(times[1] / times[0]) / math.log(sizes[1] / sizes[0])
    return {
        "dense_gib": along(lambda one: float(one["bytes"]["dense"])) / 2**30,
        "lucene_gib": along(lambda one: float(one["bytes"]["lucene"])) / 2**30,
        # From the second process: a lone process counts the pages of mapped files as private.
        "private_mib": along(lambda one: float(one["processes"][-1]["private"])),
        "sparse_ms": float(times[1] * (documents / sizes[1]) ** exponent),
    }


def _pair(row: Measured) -> str:
    return f"{row['p50']:g} / {row['p99']:g}" if "p50" in row else "–"


def _kind(one: Measured) -> str:
    return f"{one['dimension']}, {one['top_k'] or 'all'}"


def _table(bundles: Sequence[Measured], columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a table with a row for each bundle, which begins with its facts."""
    named = [[f"{one['documents']:,}", _kind(one), *row] for one, row in zip(bundles, rows, strict=True)]
    return "\n".join(markdown_table(["documents", "D, terms", *columns], named))
