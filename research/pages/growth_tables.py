"""The tables of growth: costs by documents, a shard and many, what a build takes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lightretriever.loadtest.report import markdown_table
from research.pages.generated import of_file

__all__ = ["build_table", "predict", "scale_tables", "scaling_tables", "tables"]

TARGETS: Final = (1_000_000, 10_000_000, 100_000_000)

Measured = Mapping[str, Any]


@of_file
def scaling_tables(content: Any, source: str) -> list[str]:
    """Give how costs grow, extrapolated to larger corpora."""
    return ["\n\n".join(tables(content)) + "\n"]


def tables(content: Measured) -> list[str]:
    """Give the tables as Markdown, one block each."""
    bundles = sorted(content["bundles"], key=lambda one: (one["dimension"], one["top_k"] or 0, one["documents"]))
    origin = f"{content['machine']}, {content['date']}; `{content['command']}` at commit {content['commit']}"
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


@of_file
def scale_tables(content: Any, source: str) -> list[str]:
    """Give the tables as Markdown, with their headings and origin; none if nothing is recorded."""
    shards: list[Measured] = content["shards"]
    timed = [one for one in shards if one["scatter"]]
    assumed = content["assumed"]
    return [
        *_section("Bytes of a document", _parts(shards)),
        *_section(f"{timed[0]['capacity']['documents']:,} documents, on paper", _capacity(timed)),
        f"A node has {assumed['node_gib']} GiB, of which {assumed['cache_share']:.0%} cache files, and "
        f"{assumed['cores']} cores, one a shard. A shard has at most {assumed['shard_gib']} GiB on disk, and its legs "
        f"take at most {assumed['legs_ms']} ms. One copy; each replica takes as many nodes again. A dash: the shard "
        "measured is too small to tell how its time grows.\n",
        *_section("One shard", _trips(timed)),
        *_section("Many shards, simulated", _scatter(timed)),
        f"Milliseconds of a search, p50 / p95 / p99; {content['searches']:,} searches each, seed {content['seed']}. ≥: "
        "some shard was as slow as the slowest time measured, so the truth is higher.\n",
        _origin(shards, source),
    ]


@of_file
def build_table(content: Any, source: str) -> list[str]:
    """Give what a build takes with each version of the program, with heading and origin; none if nothing is
    recorded."""
    sides, words = content["sides"], content.get("words")
    kinds = {"whole": "all but the models' reading", "changed": "again, 1 % of the lines changed"}
    figures = {"wall_s": "wall s", "cpu_s": "processor s", "peak_mib": "peak memory MiB"}
    figures |= {"own_mib": "without mapped files", "disk_mib": "disk MiB"}
    rows = [
        [f"{side['name']}, {shown}", *(_figure(side[kind].get(name)) for name in figures)]
        for kind, shown in kinds.items()
        for side in sides
        if kind in side
    ]
    turns = "one turn" if content["turns"] == 1 else f"median of {content['turns']} turns"
    differ = ", ".join(sides[0]["differ"])
    same = f" The bundles differ in: {differ}." if differ else " The bundles of all versions are identical."
    count = f"{sides[0]['documents']:,}"
    documents = f"{count} documents of {words} words" if words else "passages"
    return [
        *_section(f"What a build of {documents} takes", markdown_table(["", *figures.values()], rows)),
        f"{documents if words else f'{count} passages'}, {turns}; commits "
        f"{', '.join(side['commit'] for side in sides)}.{same if len(sides) > 1 else ''} Measured on "
        f"{content['machine']}, {content['date'][:10]}. {source}.\n",
    ]


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}\n", "\n".join([*lines, ""])]


def _parts(shards: Sequence[Measured]) -> list[str]:
    rows = [
        [
            f"{one['name']}, {one['documents']:,} documents",
            f"{one['dimension']}",
            ", ".join(f"{part['name']} {part['per_document']:,.0f}" for part in _growing(one)),
            f"{sum(part['per_document'] for part in one['parts'] if part['in_memory']):,.0f}",
            f"{sum(part['per_document'] for part in one['parts']):,.0f}",
            f"{sum(part['fixed'] for part in one['parts']) / 1e6:,.0f} MB" if _fixed(one) else "–",
        ]
        for one in shards
    ]
    return markdown_table(["", "D", "parts", "in memory", "on disk", "whatever the number"], rows)


def _growing(shard: Measured) -> list[Mapping[str, Any]]:
    return [part for part in shard["parts"] if part["per_document"] >= 1]


def _fixed(shard: Measured) -> bool:
    return any(part["fixed"] for part in shard["parts"])


def _capacity(shards: Sequence[Measured]) -> list[str]:
    rows = []
    for one in shards:
        found = one["capacity"]
        legs = "–" if found["legs_s"] is None else f"{found['legs_s']:,g}"
        sizes = [f"{found[name]:,.0f}" for name in ("disk_gib", "memory_gib", "shards", "documents_a_shard", "nodes")]
        rows.append([one["name"], *sizes, legs])
    columns = ["", "GiB on disk", "GiB in memory", "shards", "documents a shard", "nodes", "processor s a search"]
    return markdown_table(columns, rows)


def _trips(shards: Sequence[Measured]) -> list[str]:
    rows = [
        [f"{one['name']}, {one['documents']:,} documents", *(_short_pair(times) for times in one["trips"].values())]
        for one in shards
    ]
    heads = ["legs", "true scores of the other leg", "documents of the first page"]
    return markdown_table(["p50 / p99 ms", *heads], rows)


def _short_pair(times: Mapping[str, float]) -> str:
    return f"{times['p50']:.3g} / {times['p99']:.3g}"


def _scatter(shards: Sequence[Measured]) -> list[str]:
    rows = [
        [f"{found[0]['shards']:,}", *(_figures(row) for row in found)]
        for found in zip(*(one["scatter"] for one in shards), strict=True)
    ]
    return markdown_table(["shards", *(one["name"] for one in shards)], rows)


def _figures(row: Mapping[str, Any]) -> str:
    return " / ".join(f"{'≥ ' if name in row['at_least'] else ''}{row[name]:.3g}" for name in ("p50", "p95", "p99"))


def _origin(shards: Sequence[Measured], source: str) -> str:
    places = dict.fromkeys(f"{one['machine']}, {one['date'][:10]}" for one in shards)
    commits = dict.fromkeys(one["commit"].removesuffix("+") for one in shards)
    told = f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}"
    return f"Measured on {'; '.join(places)}, {told}. {source}.\n"
