"""Does stages of searches under valgrind, for `loadtest.instructions`, which starts it.

    python -m lightretriever.loadtest.instruction_worker BUNDLE INPUTS

Each stage is done by two forks of one process, which differ in how often it is done for every query; a line of JSON
tells their process ids. Java is not started.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.stage_calls import Inputs, calls_outside_java
from lightretriever.service.backends.legs import DenseLeg
from lightretriever.service.search.encoder import QueryEncoder

__all__ = ["ROUNDS", "main"]

ROUNDS: Final = (1, 3)
"""How often the two forks do a stage for every query."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all stages; returns the exit status."""
    folder, file = sys.argv[1:] if arguments is None else arguments
    bundle = Bundle.open(Path(folder))
    inputs = Inputs.from_json(json.loads(Path(file).read_text(encoding="utf-8")))
    task = bundle.manifest.default_task
    encoder = QueryEncoder(bundle.tokenizer(), {task: bundle.table(task)}, bundle.idf())
    calls = calls_outside_java(encoder, task, DenseLeg(bundle.dense()), inputs)
    numbers = range(len(inputs.texts))
    for stage, call in calls.items():
        forks = []
        for rounds in ROUNDS:
            fork = os.fork()
            if fork == 0:
                for number in [*numbers] * rounds:
                    call(number)
                os._exit(0)
            if status := os.waitpid(fork, 0)[1]:
                sys.exit(f"{stage}: its process ended with {os.waitstatus_to_exitcode(status)}")
            forks.append(fork)
        print(json.dumps({"stage": stage, "forks": forks}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
