"""Compare a light and a best bundle of one corpus in turns: what a search of each costs, and what of that is Faiss.

    python -m research.floor.bundles LIGHT BEST --queries FILE

Each bundle has a service of its own and gets the same load as in `research.floor`. Then the stages of a search are
measured in this process. Writes docs/results/bundles.json.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.reports import folder_size
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.process import ROOT, Server
from lightretriever.loadtest.program import QUERIES, option, program
from research.floor.__main__ import MEASURES, cell, measure_turn
from research.floor.overload import SERVE
from research.floor.stages import measure_stages
from research.record import origin, write_json

_TEXTS: Final = 100
_MEASURES: Final = {key: name for key, name in MEASURES.items() if key != "switches"}
_STAGES: Final = ("search", "encode", "dense", "sparse", "fuse")


def bundles_table(content: Mapping[str, Any]) -> list[str]:
    """Return a `bundles.json` as a Markdown table: medians of each bundle, and their ratio."""
    heads = ["bundle, MB", "memory, MiB", *_MEASURES.values(), *(f"{stage}, ms" for stage in _STAGES)]
    rows = {}
    for name, turns in content["turns"].items():
        measures = [median(turn[key] for turn in turns) for key in _MEASURES]
        stages = [median(turn[stage] for turn in content["milliseconds"][name]) for stage in _STAGES]
        rows[name] = [*content["sizes"][name].values(), *measures, *stages]
    rows["best ÷ light"] = [best / light for light, best in zip(rows["light"], rows["best"], strict=True)]
    lines = [f"| {name} | {' | '.join(map(cell, values))} |" for name, values in rows.items()]
    return [f"| | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}", *lines]


@program(
    option("light", Path),
    option("best", Path),
    QUERIES,
    option("--turns", 5, "how often each is measured"),
    option("--seconds", 6.0, "length of a turn"),
    option("--warm-up-s", 15.0, "seconds of searches before the first turn"),
    option("--connections", 8, "requests under way"),
    option("--output", ROOT / "docs" / "results" / "bundles.json", "file of the results", type=Path),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    opened = {"light": Bundle.open(given.light), "best": Bundle.open(given.best)}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in opened}
    stages: dict[str, list[dict[str, float]]] = {name: [] for name in opened}
    sizes = {}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server([*SERVE, f"{bundle.path.resolve()}", "--port", "0"]))
            for name, bundle in opened.items()
        }
        for name, server in servers.items():
            size = folder_size(opened[name].path)[1] / 1e6
            sizes[name] = {"bundle": size, "memory": server.memory_mb()}
            measure_turn(server, given, 0, given.warm_up_s)
        for turn in range(given.turns):
            for name, server in servers.items():
                turns[name].append(measure_turn(server, given, turn, given.seconds))
    texts = read_texts(given.queries, 0)[:_TEXTS]
    for _ in range(given.turns):
        for name, bundle in opened.items():
            stages[name].append(measure_stages(bundle, texts))
    manifest = opened["light"].manifest
    about = {"corpus": manifest.corpus.name, "documents": manifest.documents}
    plan = {"connections": given.connections, "seconds": given.seconds}
    content = origin() | {"command": given.command, "bundle": about, "plan": plan}
    content |= {"turns": turns, "sizes": sizes, "milliseconds": stages}
    write_json(given.output, content)
    print("\n".join(bundles_table(content)))


if __name__ == "__main__":
    sys.exit(main())
