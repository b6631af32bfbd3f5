"""The paper's table of speed, remade: 65,536 queries, tokenised, encoded and searched, with and without the LLM.

    python -m lightretriever.loadtest.paper_table BUNDLE --queries FOLDER --results docs/results/speed.json
    python -m lightretriever.loadtest.paper_table BUNDLE --queries FOLDER --model MODEL --adapter ADAPTER --device cuda

The folder's questions are shuffled, and repeated until there are 65,536. Without the LLM they are encoded by the
service's own query encoder, in two processes that share the work, each its half at once; "tokenise" and "encode" are
the two parts of that, "both" the time on the clock, of the median of five turns. Both legs are searched for 100
candidates and fused, by as many threads as the machine has processors. With the LLM the same indexes are searched, for
the model's queries. On a GPU it encodes all of them; on a CPU `--llm-queries` of them, and encoding and searching are
scaled up, which the row says. Ratios are of times on the clock, all processors working on either side.

The paper's own (arXiv:2505.12260, table 1; one A800 GPU, 1 million passages, exact dense search, batches of 256):

    Full-Llama8b            tokenise 1.3746 s   encode 109.4853 s   search 8.5133 s   total 119.3730 s     549 QPS
    LightRetriever-Llama8b  tokenise 0.8209 s   encode   0.0412 s   search 8.5010 s   total   9.3630 s   6,999 QPS
"""

import argparse
import os
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.full import QueryModel
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.loadtest.record import record
from lightretriever.loadtest.servers.encoders import Encode, load_encoder
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.backends.legs import DenseLeg, SparseLeg
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import EncodedQuery, QueryEncoder
from lightretriever.service.search.fusion import align, fuse_linear

__all__ = ["PAPER", "encode_light", "main", "repeated", "rows_of"]

COUNT: Final = 65_536
CANDIDATES: Final = 100
PAPER: Final = {"encode_ratio": 109.4853 / 0.0412, "qps_ratio": 6999 / 549}
"""The paper's ratios for Llama-8b: "over 2500x" in encoding, and 12.7 in queries per second."""
_WARM_UP: Final = 2000
_TURNS: Final = 5  # of some tenths of a second, each in new processes, which remember no words
_LLM_ON_CPU: Final = 1024

Times = dict[str, float]


def repeated(texts: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` queries: all texts in a shuffled order, and again, as often as it takes."""
    shuffled = list(texts)
    random.Random(seed).shuffle(shuffled)
    return list(islice(cycle(shuffled), count))


def light_encoder(bundle: Bundle) -> QueryEncoder:
    """The service's query encoder for the bundle's default task."""
    task = bundle.manifest.default_task
    return QueryEncoder(bundle.tokenizer(), {task: bundle.table(task)}, bundle.idf())


def encode_light(path: Path, texts: Sequence[str], processes: int) -> Times:
    """Seconds to encode texts by the service's encoder in `processes` processes, each its share at once: `tokenize_s`
    and `encode_s` summed over them, and `both_s`, from the start of the first to the end of the last, on the clock."""
    context = get_context("spawn")
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    shares = [texts[number::processes] for number in range(processes)]
    workers = [context.Process(target=_encode, args=(path, share, barrier, results)) for share in shares]
    for worker in workers:
        worker.start()
    try:
        while not all(worker.exitcode is not None for worker in workers):
            for worker in workers:
                worker.join(0.05)
                if worker.exitcode:
                    raise LoadError("A process that encodes queries failed; the reason is above.")
        spans = [results.get() for _ in workers]
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    both = max(span["end"] for span in spans) - min(span["begin"] for span in spans)
    return {
        "tokenize_s": sum(span["tokenize"] for span in spans),
        "encode_s": sum(span["encode"] for span in spans),
        "both_s": both,
    }


def _encode(path: Path, texts: Sequence[str], barrier: Barrier, results: Any) -> None:
    """In a process of its own: encode, after a warm-up, at the same time as the others."""
    bundle = Bundle.open(path)
    encoder, task = light_encoder(bundle), bundle.manifest.default_task
    encoder.encode_batch(texts[:_WARM_UP], task, StageClock())
    clock = StageClock()
    barrier.wait()
    begin = perf_counter()  # CLOCK_MONOTONIC, the same in all processes
    encoder.encode_batch(texts, task, clock)
    end = perf_counter()
    results.put({"begin": begin, "end": end, **{name: clock.seconds[name] for name in ("tokenize", "encode")}})


def search_s(bundle: Bundle, queries: Sequence[EncodedQuery], threads: int) -> float:
    """Seconds to search both legs for encoded queries, 100 candidates each, and fuse them."""
    weights = bundle.manifest.fusion
    share = (0.7, 0.3) if weights is None else (weights.dense, weights.sparse)
    with bundle.sparse() as index, ThreadPoolExecutor(threads) as pool:
        dense, sparse = DenseLeg(bundle.dense()), SparseLeg(index)

        def search(query: EncodedQuery) -> None:
            fuse_linear(align([dense.search(query, CANDIDATES), sparse.search(query, CANDIDATES)]), share)

        list(pool.map(search, islice(cycle(queries), _WARM_UP)))
        begin = perf_counter()
        list(pool.map(search, queries))
        return perf_counter() - begin


def measure_light(bundle: Bundle, texts: Sequence[str], processes: int, threads: int) -> Times:
    """The row of the service: `tokenize_s`, `encode_s` and `both_s` of the median of several turns, and `search_s`."""
    turns = [encode_light(bundle.path, texts, processes) for _ in range(_TURNS)]
    times = sorted(turns, key=lambda turn: turn["both_s"])[_TURNS // 2]
    encoder, task = light_encoder(bundle), bundle.manifest.default_task
    queries = list(encoder.encode_batch(texts, task, StageClock()))
    return {**times, "search_s": search_s(bundle, queries, threads)}


def measure_model(bundle: Bundle, encode: Encode, texts: Sequence[str], count: int, threads: int) -> Times:
    """The row of the LLM, scaled from `texts` to `count`: `both_s`, tokenising included, and `search_s`."""
    encode(texts[:16])
    begin = perf_counter()
    queries = encode(texts)
    both = perf_counter() - begin
    scale = count / len(texts)
    return {"both_s": both * scale, "search_s": search_s(bundle, queries, threads) * scale, "measured": len(texts)}


def rows_of(light: Times, model: Times | None, count: int, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows for the file of speeds: the table's own, and `encode_65536_s` and `encode_vs_llm` where they are had."""
    rows = [_table_row("without the LLM", light, count, facts)]
    if count == COUNT:
        rows.append({"key": "encode_65536_s", "unit": "s", "value": round(light["both_s"], 4), **facts})
    if model is not None:
        scaled = {"scaled_from": int(model["measured"])} if model["measured"] < count else {}
        rows.append(_table_row("with the LLM", model, count, {**facts, **scaled}))
        ratio = model["both_s"] / light["both_s"]
        qps = (model["both_s"] + model["search_s"]) / (light["both_s"] + light["search_s"])
        on = {} if facts["device"] == "cpu" else {"setting": f"the LLM on {facts['device']}"}
        papers = {"paper": round(PAPER["encode_ratio"]), "qps_ratio": _digits(qps), "paper_qps_ratio": 12.7}
        rows.append(
            {"key": "encode_vs_llm", "unit": "times", **on, "value": _digits(ratio), **papers, **facts, **scaled}
        )
    return rows


def _table_row(setting: str, times: Times, count: int, facts: dict[str, Any]) -> dict[str, Any]:
    total = times["both_s"] + times["search_s"]
    seconds = {name: _digits(value) for name, value in times.items() if name.endswith("_s")}
    named = {"setting": f"{setting}, {facts['documents']:,} documents", "unit": "s"}
    return {"key": "paper_table", **named, "value": _digits(total), **seconds, "qps": _digits(count / total), **facts}


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        rows = _measured(given)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items() if name != "key"))
    if given.results is not None:
        words = [
            "python",
            "-m",
            "lightretriever.loadtest.paper_table",
            *(sys.argv[1:] if arguments is None else arguments),
        ]
        record(given.results, rows, typed_command(words))
    return 0


def _measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    bundle, threads = Bundle.open(given.bundle), os.cpu_count() or 1
    bundle.check_hashes()  # into the page cache, as in the service
    texts = repeated(list(read_queries(find_file(given.queries, "queries")).values()), given.count, given.seed)
    light = measure_light(bundle, texts, given.processes, threads)
    facts: dict[str, Any] = {"documents": bundle.manifest.documents, "queries": given.count}
    facts |= {"different_queries": len(set(texts)), "processes": given.processes, "threads": threads}
    if given.model is None:
        return rows_of(light, None, given.count, facts)
    model = QueryModel(given.model, given.adapter, given.bos_token)
    encode = load_encoder(model, bundle, light_encoder(bundle), device=given.device)
    device = _device(given.device)
    sample = texts[: given.llm_queries or (_LLM_ON_CPU if device == "cpu" else given.count)]
    facts |= {"model": Path(given.model).name, "device": device}
    return rows_of(light, measure_model(bundle, encode, sample, given.count, threads), given.count, facts)


def _device(name: str) -> str:
    """The device that a name, such as "auto", comes to."""
    from lightretriever.artifacts.pipeline.model import choose_device

    return str(choose_device(name))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The paper's table of speed, remade.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--count", type=int, default=COUNT, help=f"queries ({COUNT})")
    parser.add_argument("--seed", type=int, default=7, help="order of the queries (7)")
    parser.add_argument("--processes", type=int, default=2, help="processes that encode without the LLM (2)")
    parser.add_argument("--model", help="the language model that read the documents")
    parser.add_argument("--adapter", help="its adapter")
    parser.add_argument("--bos-token", help="its first token, as in the bundle's recipe")
    parser.add_argument("--device", default="auto", help="where it runs (auto: CUDA if there is one)")
    parser.add_argument("--llm-queries", type=int, help="queries it encodes (1024 on a CPU, else all)")
    parser.add_argument("--results", type=Path, help="JSON file to record the rows in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
