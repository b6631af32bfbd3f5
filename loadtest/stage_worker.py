"""Times the stages of searches on demand, for `loadtest.gate`: one process for each version of the code.

    python -m lightretriever.loadtest.stage_worker BUNDLE QUERIES

Every line on stdin has the first and the last place (exclusive) of the queries to search; the answer on stdout is one
line of JSON: stage → median seconds. The first line is written when the service is warm.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.stages import measure
from lightretriever.service.search.engine import SearchEngine

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer until stdin ends; returns the exit status."""
    bundle, file = sys.argv[1:] if arguments is None else arguments
    queries: list[str] = json.loads(Path(file).read_text(encoding="utf-8"))
    with SearchEngine.open(Bundle.open(Path(bundle))) as engine:
        engine.warm_up()
        measure(engine, queries)
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            first, last = map(int, line.split())
            seconds = measure(engine, queries[first:last])
            print(json.dumps({stage: float(np.median(values)) for stage, values in seconds.items()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
