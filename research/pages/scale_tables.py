"""The tables of docs/lab/scale.md, from the results of `research.scale.scatter` and `research.scale.build`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightretriever.loadtest.report import markdown_table

__all__ = ["build_table", "scale_tables"]

Shard = Mapping[str, Any]


def scale_tables(file: Path) -> list[str]:
    """Give the tables as Markdown, with their headings and origin; none if nothing is recorded."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    shards: list[Shard] = content["shards"]
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
        _origin(shards, file),
    ]


def build_table(file: Path) -> list[str]:
    """Give what a build takes with each version of the program, with heading and origin; none if nothing is
    recorded."""
    if not file.is_file():
        return []
    content = json.loads(file.read_text(encoding="utf-8"))
    sides = content["sides"]
    kinds = {"whole": "all but the models' reading", "changed": "again, 1 % of the lines changed"}
    figures = {"wall_s": "wall s", "cpu_s": "processor s", "peak_mib": "peak memory MiB", "disk_mib": "disk MiB"}
    rows = [
        [f"{side['name']}, {shown}", *(f"{side[kind][name]:,.4g}" for name in figures)]
        for kind, shown in kinds.items()
        for side in sides
    ]
    turns = "one turn" if content["turns"] == 1 else f"median of {content['turns']} turns"
    same = "The bundles of all versions are identical." if sides[0]["identical"] else "The bundles differ."
    return [
        *_section("What a build takes", markdown_table(["", *figures.values()], rows)),
        f"{sides[0]['documents']:,} passages, {turns}; commits "
        f"{', '.join(side['commit'] for side in sides)}. {same} Measured on {content['machine']}, "
        f"{content['date'][:10]}. [{file.name}](results/{file.name}).\n",
    ]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}\n", "\n".join([*lines, ""])]


def _parts(shards: Sequence[Shard]) -> list[str]:
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


def _growing(shard: Shard) -> list[Mapping[str, Any]]:
    return [part for part in shard["parts"] if part["per_document"] >= 1]


def _fixed(shard: Shard) -> bool:
    return any(part["fixed"] for part in shard["parts"])


def _capacity(shards: Sequence[Shard]) -> list[str]:
    rows = []
    for one in shards:
        found = one["capacity"]
        legs = "–" if found["legs_s"] is None else f"{found['legs_s']:,g}"
        sizes = [f"{found[name]:,.0f}" for name in ("disk_gib", "memory_gib", "shards", "documents_a_shard", "nodes")]
        rows.append([one["name"], *sizes, legs])
    columns = ["", "GiB on disk", "GiB in memory", "shards", "documents a shard", "nodes", "processor s a search"]
    return markdown_table(columns, rows)


def _trips(shards: Sequence[Shard]) -> list[str]:
    rows = [
        [f"{one['name']}, {one['documents']:,} documents", *(_pair(times) for times in one["trips"].values())]
        for one in shards
    ]
    heads = ["legs", "true scores of the other leg", "documents of the first page"]
    return markdown_table(["p50 / p99 ms", *heads], rows)


def _pair(times: Mapping[str, float]) -> str:
    return f"{times['p50']:.3g} / {times['p99']:.3g}"


def _scatter(shards: Sequence[Shard]) -> list[str]:
    rows = [
        [f"{found[0]['shards']:,}", *(_figures(row) for row in found)]
        for found in zip(*(one["scatter"] for one in shards), strict=True)
    ]
    return markdown_table(["shards", *(one["name"] for one in shards)], rows)


def _figures(row: Mapping[str, Any]) -> str:
    return " / ".join(f"{'≥ ' if name in row['at_least'] else ''}{row[name]:.3g}" for name in ("p50", "p95", "p99"))


def _origin(shards: Sequence[Shard], file: Path) -> str:
    places = dict.fromkeys(f"{one['machine']}, {one['date'][:10]}" for one in shards)
    commits = dict.fromkeys(one["commit"].removesuffix("+") for one in shards)
    source = f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}"
    return f"Measured on {'; '.join(places)}, {source}. [{file.name}](results/{file.name}).\n"
