"""The tables of single runs: systems under load, users, versions, heavy clients, documents beside a bundle."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lightretriever.loadtest.counters import median_of
from lightretriever.loadtest.record import four_digits
from lightretriever.loadtest.report import markdown_table
from research.pages.generated import of_file

__all__ = ["FIGURES", "fairness_table", "live_table", "load_table", "medians", "users_table", "versions_tables"]

Row = Mapping[str, Any]
_HALF: Final = 0.5  # of the highest throughput


@of_file
def load_table(load: Any, source: str) -> list[str]:
    """Tabulate the systems of a load test, fastest first: highest throughput, latencies at half of it, and
    nDCG@10 if it was measured."""
    rows = []
    systems = [one for one in load["systems"] if load["saturated"].get(one["name"])]
    for one in sorted(systems, key=lambda one: -load["saturated"][one["name"]]):
        half = [row for row in load["open"] if row["system"] == one["name"] and row["of"] == _HALF]
        cells = [load["saturated"][one["name"]], *(median_of(half, key) for key in ("p50_ms", "p99_ms"))]
        cells += [load["ndcg"][one["name"]]] if "ndcg" in load else []
        rows.append([one["label"], *("–" if cell is None else f"{cell:,.4g}" for cell in cells)])
    columns = ["under load", "queries/s", "p50 ms at half of them", "p99 ms at half of them"]
    return markdown_table(columns + (["nDCG@10"] if "ndcg" in load else []), rows)


@of_file
def versions_tables(content: Any, source: str) -> list[str]:
    """Give one block for each run: the sides' figures, and their ratios to the first side's."""
    return [line for name, run in content["runs"].items() for line in _versions(name, run)]


def _versions(name: str, run: Row) -> Iterable[str]:
    sides, plan = run["sides"], run["plan"]
    names = [side["name"] for side in sides]
    asked = f"{plan['turns']} turns of {plan['questions']} questions, {plan['connections']} connections to saturate"
    yield f"**{name}**: {sides[0]['documents']:,} documents; {asked}; {run['machine']}, {run['date'][:10]}."
    for side in sides:
        versions = ", ".join(f"{package} {version}" for package, version in side["versions"].items())
        yield f"- {side['name']}: commit {side['commit']}, dense index {side['dense']}; {versions}"
    yield ""
    columns = [*sides, *run["ratios"]]
    rows = [[label, *(_number(column[key]) for column in columns)] for key, label in FIGURES.items()]
    yield from markdown_table(["", *names, *(f"{side} ÷ {names[0]}" for side in names[1:])], rows)
    yield ""


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


FIGURES: Final = {
    "in_process_p50_ms": "in process, p50 ms",
    "in_process_p99_ms": "in process, p99 ms",
    "dense_alone_p50_ms": "dense leg alone, p50 ms",
    "sparse_alone_p50_ms": "sparse leg alone, p50 ms",
    "over_slower_leg": "in process ÷ slower leg alone, p50",
    "httpx_p50_ms": "over HTTP by httpx, p50 ms",
    "httpx_p99_ms": "over HTTP by httpx, p99 ms",
    "http_p50_ms": "over HTTP by the generator, p50 ms",
    "http_p99_ms": "over HTTP by the generator, p99 ms",
    "saturated_qps": "saturated, requests/s",
    "saturated_cpu_ms": "saturated, processor ms a request",
    "rss_mb": "memory after it, MiB (RSS)",
}
"""Figures of a side in `versions.json`, and their labels in the table."""

_USERS_FIGURES: Final = ("qps", "p50_ms", "p95_ms", "p99_ms")


def medians(content: Row) -> dict[tuple[str, int], dict[str, float | None]]:
    """Give by system and number of users the median over the rounds of `qps`, `p50_ms`, `p95_ms` and `p99_ms`; None
    where there were too few answers."""
    found = {}
    for system in content["systems"]:
        for users in content["plan"]["users"]:
            same = [row for row in content["runs"] if (row["system"], row["users"]) == (system["name"], users)]
            figures = {figure: median_of([dict(row) for row in same], figure) for figure in _USERS_FIGURES}
            found[system["name"], users] = figures
    return found


@of_file
def users_table(content: Any, source: str) -> list[str]:
    """Give the table with its origin; none without the file."""
    labels = {system["name"]: system["label"] for system in content["systems"]}
    rows = []
    for (system, users), figures in medians(content).items():
        shown = ("–" if value is None else f"{four_digits(value):,g}" for value in figures.values())
        rows.append([f"{labels[system]}, {users} user{'s' if users > 1 else ''}", *shown])
    plan, bundle = content["plan"], content["bundle"]
    runs = f"medians of {plan['rounds']} runs" if plan["rounds"] > 1 else "one run"
    facts = f"{bundle['documents']:,} documents; {runs} of {plan['seconds']:g} s each; "
    facts += f"locust {content['locust']}; {content['machine']}, {content['date'][:10]}, commit {content['commit']}."
    table = markdown_table(["", "requests/s", "p50 ms", "p95 ms", "p99 ms"], rows)
    return ["\n".join(["### Latency over throughput", "", facts, "", *table, ""])]


_CLIENTS: Final = {
    "plain": "usual searches",
    "filters": "1,000 hits by a long query and 990 numbers",
    "embeddings": "64 long texts to encode",
    "batches": "64 long searches at once",
    "usual": "64 usual searches at once",
    "snippets": "1,000 hits with long snippets",
    "explained": "500 explained hits",
}


@of_file
def fairness_table(run: Any, source: str) -> list[str]:
    """Give the table with its origin; none without the file."""
    rows = [["nobody", *_p50_p99(run["alone"]), "", ""]]
    rows += [
        [
            _asked(*row["clients"]),
            *_p50_p99(row),
            _answers(row["first"]),
            _answers(row["second"]),
        ]
        for row in run["beside"]
    ]
    headings = ["beside two clients that ask for", "p50 ms", "p99 ms", "the first one got", "the second one got"]
    return [
        "\n".join(
            [
                "### Usual searches beside heavy clients",
                "",
                f"One process, {run['machine']}, {run['date'][:10]}, commit {run['commit']}; service and clients share "
                f"the machine, whose load before was {run['load']}. {source}.",
                "",
                *markdown_table(headings, rows),
                "",
            ]
        )
    ]


def _asked(first: str, second: str) -> str:
    return f"{_CLIENTS[first]}, both" if first == second else f"{_CLIENTS[first]}; {_CLIENTS[second]}"


def _p50_p99(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}"]


def _answers(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} × {status}" for status, count in statuses.items())


@of_file
def live_table(content: Any, source: str) -> list[str]:
    """Give the tables with their origin; none without the file."""
    runs = ["\n".join(_live(content[documents])) for documents in sorted(content, key=int)]
    return ["\n".join(["### Documents beside a bundle", "", *runs])]


def _live(run: dict[str, Any]) -> list[str]:
    largest = f"{run['overlay'][-1]['written']:,}"
    writes = [
        ["writes/s acknowledged, by one writer", run["one_by_one_per_s"]],
        ["by 16 writers, whose writes share an fsync", run["together_per_s"]],
        ["documents/s in calls of 1,000 each", run["bulk_per_s"]],
        ["ms until another process finds it, p50", run["found_ms"]["p50"]],
        ["ms until another process finds it, p99", run["found_ms"]["p99"]],
        [f"s to open the journal of {largest} documents", run["start_s"]],
        ["s to open it without a checkpoint", run["replay_s"]],
    ]
    if "compaction_s" in run:
        writes.append(["s to compact it", run["compaction_s"]])
    times = [f"{which}{what}" for what in ("p50_ms", "cpu_p50_ms") for which in ("", "bundle_", "rebuilt_")]
    names = [*times, "p99_ms", "searches_per_s", "resident_mb"]
    searches = [
        [f"{row['written']:,}", *(f"{row[name]:,}" if name in row else "" for name in names)] for row in run["overlay"]
    ]
    headings = ["written", "p50 ms", "bundle alone", "bundle of all", "processor ms", "bundle alone", "bundle of all"]
    headings += ["p99 ms", "searches/s, 2 threads", "memory MB"]
    return [
        f"Beside {run['documents']:,} documents, one process; {run['machine']}, {run['date'][:10]}, commit "
        f"{run['commit']}. The load before was {run['load']}.",
        "",
        *markdown_table(["", "measured"], [[name, f"{value:,}"] for name, value in writes]),
        "",
        "With so many documents written, 5 % of the bundle's deleted; the three were searched in turns:",
        "",
        *markdown_table(headings, searches),
        "",
    ]
