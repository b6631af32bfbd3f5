"""Tables of how costs grow, and what follows for corpora that were not measured."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.dense.build import choose_factory, lists_by_size
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.loadtest.extrapolate import dense_bytes, line, power
from lightretriever.loadtest.wire import LoadError

__all__ = ["BEGIN", "END", "predictions", "tables", "write_tables"]

BEGIN: Final = "<!-- scaling: written by loadtest/scaling.py -->"
END: Final = "<!-- end of scaling -->"
TARGETS: Final = (1_000_000, 10_000_000, 100_000_000)

Measured = Mapping[str, Any]


def write_tables(results: Path, page: Path) -> None:
    """Put the tables between the two marks of a Markdown page. Raises LoadError without them, or without results."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise LoadError(f"{page}: the tables have no place.", remedy=f"Put the lines {BEGIN} and {END} there.")
    try:
        content = json.loads(results.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{results}: no results: {error.strerror}.", remedy="Measure bundles first.") from error
    inside = "\n\n".join(tables(content))
    write_atomically(page, f"{before}{BEGIN}\n{inside}\n{END}{after}".encode())


def tables(content: Measured) -> list[str]:
    """The tables as Markdown, one block each."""
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
    rows = []
    for one in bundles:
        times = [_pair(one["stages"][stage]) for stage in stages]
        rows.append([*_names(one), *(f"{_per_document(one, part):,.0f}" for part in ("dense", "lucene")), *times])
    return _table([*_NAMES, "dense B/doc", "Lucene B/doc", *stages], rows)


def _by(bundles: Sequence[Measured], key: str, name: Any) -> str:
    labels = [name(row) for row in bundles[0][key]]
    return _table([*_NAMES, *labels], [[*_names(one), *(_pair(row) for row in one[key])] for one in bundles])


def _starts(bundles: Sequence[Measured]) -> str:
    rows = []
    for one in bundles:
        warm, none = one["cold"]["warm_up"], one["cold"]["no_warm_up"]
        first, second = one["processes"]
        times = [warm["ready_s"], warm["first_ms"], none["ready_s"], none["first_ms"], none["20th_ms"]]
        rows.append([*_names(one), *map(str, times), *map(str, (first["total_pss"], second["added_pss"]))])
    columns = ["ready s", "first query ms", "ready s, no warm-up", "first query ms", "20th"]
    return _table([*_NAMES, *columns, "MiB of one process", "MiB that a second adds"], rows)


def _extrapolated(bundles: Sequence[Measured]) -> list[str]:
    """The largest group of bundles that differ in size alone, carried on."""
    groups: dict[tuple[int, int | None], list[Measured]] = {}
    for one in bundles:
        groups.setdefault((one["dimension"], one["top_k"]), []).append(one)
    series = max(groups.values(), key=lambda group: len({one["documents"] for one in group}))
    if len({one["documents"] for one in series}) < 2:
        return ["Nothing is carried on to larger corpora: that takes bundles of different size and equal settings."]
    fit = predictions(series)
    rows = []
    for row in fit["rows"]:
        sizes = [f"{row[name]:,.2f}" for name in ("dense_gib", "lucene_gib")]
        rows.append(
            [f"{row['documents']:,}", row["factory"], *sizes, f"{row['private_mib']:,.0f}", f"{row['sparse_ms']:,.2f}"]
        )
    columns = ["documents", "dense index", "dense GiB", "Lucene GiB", "private MiB", "sparse leg p50 ms"]
    return [
        f"Carried on from {len(series)} sizes with {series[0]['dimension']} dimensions and the best "
        f"{series[0]['top_k'] or 'of all'} terms, on paper:",
        _table(columns, rows),
        f"- Dense index: the formula of `loadtest/extrapolate.py`; measured files differ from it by up to "
        f"{fit['dense_error']:.1%}. It must be in memory to be fast.\n"
        f"- Lucene: {fit['lucene'][0] / 2**20:,.1f} MiB + {fit['lucene'][1]:,.0f} bytes per document, the line of "
        f"least squares through the measured sizes.\n"
        f"- Private memory of a process: {fit['private'][0]:,.0f} MiB + {fit['private'][1] * 1e6:,.1f} MiB per million "
        f"documents, likewise. Index files are shared by all processes.\n"
        f"- Sparse leg: {fit['sparse'][0]:.3g}·N^{fit['sparse'][1]:.2f} ms, the power law through the two largest "
        f"sizes. One process doesn't stay fast where it exceeds the deadline: split the corpus.",
    ]


def predictions(series: Sequence[Measured]) -> dict[str, Any]:
    """Sizes and times of corpora of `TARGETS` documents, from bundles that differ in their size alone."""
    dimension = series[0]["dimension"]
    lucene = line([(one["documents"], one["bytes"]["lucene"]) for one in series])
    # Of a process beside another one: to a process alone, the pages of the files it has mapped are its own.
    private = line([(one["documents"], one["processes"][-1]["private"]) for one in series])
    sparse = power([(one["documents"], one["stages"]["sparse"]["p50"]) for one in series])
    errors = [
        abs(one["bytes"]["dense"] / dense_bytes(one["factory"], dimension, one["documents"]) - 1) for one in series
    ]
    rows = []
    for documents in TARGETS:
        factory = _at(documents, series)
        rows.append(
            {
                "documents": documents,
                "factory": factory,
                "dense_gib": dense_bytes(factory, dimension, documents) / 2**30,
                "lucene_gib": (lucene[0] + lucene[1] * documents) / 2**30,
                "private_mib": private[0] + private[1] * documents,
                "sparse_ms": sparse[0] * documents ** sparse[1],
            }
        )
    return {"rows": rows, "lucene": lucene, "private": private, "sparse": sparse, "dense_error": max(errors)}


def _at(documents: int, series: Sequence[Measured]) -> str:
    """The factory by size; laid out by queries where the largest index that was measured is."""
    parts = max(series, key=lambda one: one["documents"])["factory"].split(",")
    if parts[0] != "Queries":
        return choose_factory(documents, series[0]["dimension"])
    return ",".join([parts[0], f"IVF{lists_by_size(documents, asked=True)}", *parts[2:]])


_NAMES: Final = ("documents", "D", "terms")


def _names(one: Measured) -> list[str]:
    return [f"{one['documents']:,}", str(one["dimension"]), str(one["top_k"] or "all")]


def _per_document(one: Measured, part: str) -> float:
    return float(one["bytes"][part]) / float(one["documents"])


def _pair(row: Measured) -> str:
    return f"{row['p50']:g} / {row['p99']:g}" if "p50" in row else "–"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(columns), ["---:"] * len(columns), *map(list, rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
