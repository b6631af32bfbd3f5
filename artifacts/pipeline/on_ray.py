"""Encoding on a Ray cluster: each task encodes some of the shards, in the work directory that all machines share. A
task whose machine or process is lost runs again elsewhere, and goes on after the last text."""

import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import ray

from lightretriever.artifacts.errors import LightRetrieverError, RecipeError, ResumeError
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.encode import encode_summary
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.encoders import Encoders
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.stages import load_recipe_encoders, run_encode
from lightretriever.artifacts.pipeline.store import TextStore
from lightretriever.artifacts.reports import ProgressBar, Summary

_PARTS_PER_TASK: Final = 4
"""Parts for each task that runs at a time, so that fast machines take more of them."""

_RETRIES: Final = 20
_CONNECT_S: Final = 10.0
_encoders: Final = dict[str, Encoders]()
_AGAIN: Final = "Run the same command again: it goes on after the last encoded text."


def encode_on_ray(recipe: Recipe, address: str) -> Summary:
    """Encode the recipe's corpus on the Ray cluster at `auto`, `HOST:PORT` or `ray://HOST:PORT`, to the shards that one
    process makes. Every machine needs this project and Ray, and recipe, model, corpus and work directory at the same
    paths. A task takes a GPU, or all processors of a machine where the recipe asks for none or there is none.

    Raises RecipeError if there is no such cluster, ResumeError if it loses too much, and the errors of `run_encode`.
    """
    with _connected(address):
        slots, options = _tasks(recipe.model.device)
        count = slots * _PARTS_PER_TASK
        with work_lock(recipe.work, shared=True), ProgressBar("encode", total=count, unit="parts") as progress:
            encoded_corpus(recipe, shared=True)  # else every task would read it
            task = ray.remote(_encode).options(name="encode", max_retries=_RETRIES, **options)
            summaries = []
            for summary in _results([task.remote(recipe, slice(number, None, count)) for number in range(count)]):
                summaries.append(summary)
                progress.advance(1)
    with work_lock(recipe.work):  # removes what lost tasks left half written
        store, corpus, limited = TextStore(recipe.work / "encode"), encoded_corpus(recipe), recipe.corpus.limit
        removed = 0 if limited else store.others(corpus.digests)
        store.join(corpus.digests, keep=limited is not None)
        reused, encoded = (sum(summary.facts[name] for summary in summaries) for name in ("reused", "encoded"))
        skipped = corpus.skipped.count
        return encode_summary(store, corpus.digests, skipped, reused=reused, encoded=encoded, removed=removed)


def _encode(recipe: Recipe, shards: slice) -> Summary | LightRetrieverError:
    """Encode some shards, in a process of the cluster, which loads the models once and is given several parts. An error
    of ours is returned, because Ray wraps a raised one."""
    try:
        with work_lock(recipe.work, shared=True):
            if (key := recipe.model_dump_json()) not in _encoders:
                _encoders.clear()
                _encoders[key] = load_recipe_encoders(recipe)
            return run_encode(recipe, _encoders[key], shards)
    except LightRetrieverError as error:
        return error.with_traceback(None)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Raise RecipeError for an address where nothing listens: Ray itself would try for minutes, and ignore signals."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address != "auto" and not (host and colon and port.isdecimal()):
        raise RecipeError(
            f"--ray is {address!r}, expected auto, HOST:PORT or ray://HOST:PORT.", remedy="Name the head of a cluster."
        )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address != "auto":
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(address, log_to_driver=False, logging_level="error")
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RecipeError(
            f"--ray is {address!r}, where no Ray cluster can be used: {reason:.300}.",
            remedy="Start one (`ray start --head`), and name the address of its head.",
        ) from error
    signal.signal(signal.SIGTERM, handler)  # Ray has set its own
    try:
        yield
    finally:
        ray.shutdown()


def _tasks(device: str) -> tuple[int, dict[str, Any]]:
    """How many tasks the cluster runs at a time, and what each takes of it."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if gpus and device != "cpu":
        return gpus, {"num_gpus": 1, "num_cpus": 1}
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not processors:
        raise RecipeError("--ray: no machine of the cluster takes tasks.", remedy="Add one (`ray start`).")
    least = min(processors)
    return sum(count // least for count in processors), {"num_cpus": least, "scheduling_strategy": "SPREAD"}


def _results(tasks: Sequence[Any]) -> Iterator[Summary]:
    """The results as they come. Raises the first error, which ends the other tasks with this process."""
    waiting = list(tasks)
    while waiting:
        (done,), waiting = ray.wait(waiting)
        try:
            result: Summary | LightRetrieverError = ray.get(done)
        except ray.exceptions.RayError as error:
            raise ResumeError(f"--ray: a task failed: {' '.join(str(error).split()):.500}.", remedy=_AGAIN) from error
        if isinstance(result, LightRetrieverError):
            raise result
        yield result
