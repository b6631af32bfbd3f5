"""The paper's table of speed, reproduced: 65,536 queries, tokenised, encoded and searched, with and without the LLM.

    python -m research.speed.paper_table BUNDLE --queries FOLDER --results docs/results/speed.json
    python -m research.speed.paper_table BUNDLE --queries FOLDER --model MODEL --adapter ADAPTER --device cuda

The folder's questions are shuffled, and repeated until there are 65,536. Without the LLM, the service's query encoder
encodes half of them in each of two processes; `tokenize_s` and `encode_s` are summed over the processes, `both_s` is
the wall-clock time, each from the median of five turns. As many threads as the machine has processors search both legs
for 100 candidates and fuse them. With the LLM, they search the same indexes for the model's queries. On a GPU the model
encodes all of them; on a CPU `--llm-queries` of them, and its times are scaled up, as the row shows. The paper's ratio
of encoding leaves tokenising out on both sides. So does `encode_alone_vs_llm`: the model's tokenising, timed apart, is
subtracted, and the service's encoding is shared by its processes. `encode_vs_llm` counts tokenising on both sides.

The paper's figures (arXiv:2505.12260, table 1; one A800 GPU, 1 million passages, exact dense search, batches of 256):

    Full-Llama8b            tokenise 1.3746 s   encode 109.4853 s   search 8.5133 s   total 119.3730 s     549 QPS
    LightRetriever-Llama8b  tokenise 0.8209 s   encode   0.0412 s   search 8.5010 s   total   9.3630 s   6,999 QPS
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.model_server import Encode, model_encoder
from lightretriever.loadtest.program import BUNDLE, MODEL, QUERIES, SPEED, option, program
from lightretriever.loadtest.record import four_digits
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.backends.local import open_local
from lightretriever.service.execution.executor import Executor
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.fusion import align, fuse_linear
from lightretriever.service.settings import Settings
from research.harness.rows import record
from research.servers.bundle_documents import query_encoder

__all__ = ["PAPER", "encode_light", "main", "rows_of"]

COUNT: Final = 65_536
CANDIDATES: Final = 100
PAPER: Final = {"encode_ratio": 109.4853 / 0.0412, "qps_ratio": 6999 / 549}
"""The paper's ratios for Llama-8b: "over 2500x" in encoding, and 12.7 in queries per second."""
_WARM_UP: Final = 2000
_TURNS: Final = 5  # of some tenths of a second
_LLM_ON_CPU: Final = 1024
_PATIENCE_S: Final = 600
_HERE: Final[dict[str, Any]] = {}  # state of an encoding process

Times = dict[str, float]


def encode_light(path: Path, texts: Sequence[str], processes: int) -> Times:
    """Encode texts with the service's encoder in `processes` new processes, and give the seconds: `tokenize_s` and
    `encode_s` summed over them, and the wall-clock time `both_s` from the first start to the last end."""
    shares = [texts[number::processes] for number in range(processes)]
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _open, (path, context.Barrier(processes))) as pool:
        list(pool.map(_encode, [share[:_WARM_UP] for share in shares]))
        spans = list(pool.map(_encode, shares))
    both = max(span["end"] for span in spans) - min(span["begin"] for span in spans)
    return {f"{name}_s": sum(span[name] for span in spans) for name in ("tokenize", "encode")} | {"both_s": both}


def _open(path: Path, barrier: Barrier) -> None:
    """Open the encoder in a new process."""
    bundle = Bundle.open(path)
    _HERE.update(encoder=query_encoder(bundle), task=bundle.manifest.default_task, barrier=barrier)


def _encode(texts: Sequence[str]) -> Times:
    """Encode when all processes are ready; give its start, its end, and the seconds of its parts."""
    clock = StageClock()
    _HERE["barrier"].wait(_PATIENCE_S)
    begin = perf_counter()  # CLOCK_MONOTONIC, the same in all processes
    _HERE["encoder"].encode_batch(texts, _HERE["task"], clock)
    end = perf_counter()
    return {"begin": begin, "end": end, **{name: clock.seconds[name] for name in ("tokenize", "encode")}}


def search_s(bundle: Bundle, queries: Sequence[EncodedQuery]) -> float:
    """Search dense and sparse leg for encoded queries, 100 candidates each, and fuse them, on all processors; give the
    seconds."""
    share = (0.7, 0.3)
    settings = Settings()
    backends = open_local(bundle, settings, Executor([], settings.threads(), patience_s=60.0))
    dense, sparse = backends.legs["dense"], backends.legs["sparse"]

    def search(query: EncodedQuery) -> None:
        fuse_linear(align([dense.search(query, CANDIDATES), sparse.search(query, CANDIDATES)]), share)

    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(search, islice(cycle(queries), _WARM_UP)))
            begin = perf_counter()
            list(pool.map(search, queries))
            return perf_counter() - begin
    finally:
        backends.close()


def measure_light(bundle: Bundle, texts: Sequence[str], processes: int, searches: int) -> Times:
    """Measure the service: `tokenize_s`, `encode_s` and `both_s` of the median of several turns, and `search_s`, scaled
    from the first `searches` texts."""
    turns = [encode_light(bundle.path, texts, processes) for _ in range(_TURNS)]
    times = sorted(turns, key=lambda turn: turn["both_s"])[_TURNS // 2]
    few = texts[:searches]
    queries = list(query_encoder(bundle).encode_batch(few, bundle.manifest.default_task, StageClock()))
    return {**times, "search_s": search_s(bundle, queries) * len(texts) / len(few)}


def measure_model(bundle: Bundle, encode: Encode, texts: Sequence[str], count: int) -> Times:
    """Measure the LLM, scaled from `texts` to `count`: `both_s`, including tokenising, `tokenize_s` of the same texts
    by its tokenizer, and `search_s`."""
    encode(texts[:16])
    begin = perf_counter()
    queries = encode(texts)
    both, scale = perf_counter() - begin, count / len(texts)
    instruction = bundle.manifest.tasks[bundle.manifest.default_task].instruction
    tokenizer, begin = bundle.tokenizer(), perf_counter()  # the model's, as `query_encoder` checks
    for text in texts:
        tokenizer.encode(f"{instruction} {text}")
    times = {"both_s": both, "tokenize_s": perf_counter() - begin, "search_s": search_s(bundle, queries)}
    return {name: seconds * scale for name, seconds in times.items()} | {"measured": len(texts)}


def rows_of(light: Times, model: Times | None, count: int, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Make rows for `speed.json`: the table's own, and `encode_65536_s`, `encode_vs_llm` and
    `encode_alone_vs_llm` if measured."""
    rows = [_table_row("without the LLM", light, count, facts)]
    if count == COUNT:
        rows.append({"key": "encode_65536_s", "unit": "s", "value": round(light["both_s"], 4), **facts})
    if model is not None:
        scaled = {"scaled_from": int(model["measured"])} if model["measured"] < count else {}
        rows.append(_table_row("with the LLM", model, count, {**facts, **scaled}))
        ratio = model["both_s"] / light["both_s"]
        alone = (model["both_s"] - model["tokenize_s"]) / (light["encode_s"] / facts["processes"])
        qps = (model["both_s"] + model["search_s"]) / (light["both_s"] + light["search_s"])
        on = {} if facts["device"] == "cpu" else {"setting": f"the LLM on {facts['device']}"}
        papers = {"qps_ratio": four_digits(qps), "paper_qps_ratio": 12.7}
        row = {"key": "encode_vs_llm", "unit": "times", **on, "value": four_digits(ratio)}
        rows.append(row | papers | facts | scaled)
        row = {"key": "encode_alone_vs_llm", "unit": "times", **on, "value": four_digits(alone)}
        rows.append(row | {"paper": round(PAPER["encode_ratio"])} | facts | scaled)
    return rows


def _table_row(setting: str, times: Times, count: int, facts: dict[str, Any]) -> dict[str, Any]:
    total = times["both_s"] + times["search_s"]
    seconds = {name: four_digits(value) for name, value in times.items() if name.endswith("_s")}
    named = {"setting": f"{setting}, {facts['documents']:,} documents", "unit": "s"}
    return {
        "key": "paper_table",
        **named,
        "value": four_digits(total),
        **seconds,
        "qps": four_digits(count / total),
        **facts,
    }


def _measured(given: Namespace) -> list[dict[str, Any]]:
    bundle = Bundle.open(given.bundle)
    bundle.check_hashes()  # into the page cache, as in the service
    texts = list(islice(cycle(read_texts(given.queries, given.seed)), given.count))
    light = measure_light(bundle, texts, given.processes, given.searches)
    facts: dict[str, Any] = {"documents": bundle.manifest.documents, "queries": given.count}
    facts |= {"searches": given.searches} if given.searches < given.count else {}
    facts |= {"different_queries": len(set(texts)), "processes": given.processes, "threads": os.cpu_count()}
    if given.model is None:
        return rows_of(light, None, given.count, facts)
    from lightretriever.artifacts.pipeline.model import choose_device  # needs torch, as the model does

    names = {"adapter": given.adapter, "bos_token": given.bos_token}
    model = ModelRecipe(path=given.model, device=given.device, **names)
    encode = model_encoder(model, bundle, query_encoder(bundle))
    device = str(choose_device(given.device))
    sample = texts[: given.llm_queries or (_LLM_ON_CPU if device == "cpu" else given.count)]
    facts |= {"model": Path(given.model).name, "device": device}
    return rows_of(light, measure_model(bundle, encode, sample, given.count), given.count, facts)


@program(
    BUNDLE,
    QUERIES,
    option("--count", COUNT, "queries"),
    option("--seed", 7, "order of the queries"),
    option("--processes", 2, "processes that encode without the LLM"),
    option("--searches", COUNT, "queries searched without the LLM"),
    *MODEL,
    option("--llm-queries", None, "queries it encodes (1024 on a CPU, else all)", type=int),
    SPEED,
)
def main(given: Namespace) -> None:
    """Measure, print and record."""
    rows = _measured(given)
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items() if name != "key"))
    record(given.results, rows, given.command)


if __name__ == "__main__":
    sys.exit(main())
