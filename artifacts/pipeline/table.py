"""The token table: e(t) of every token behind an instruction, computed once so that queries need no model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from artifacts.pipeline.model import Backbone
from artifacts.pipeline.states import PrefixCache, token_states_cached
from artifacts.progress import ProgressBar
from artifacts.shards import ShardStore

__all__ = ["TableJob", "instruction_prefix", "make_table"]


@dataclass(frozen=True)
class TableJob:
    """One table: the task's instruction, and how many tokens share a forward pass and a part file.

    `batch` None means 128 tokens on a CPU (more falls out of its caches) and 2,048 on CUDA.
    """

    instruction: str
    batch: int | None = None
    part: int = 8192


def instruction_prefix(backbone: Backbone, instruction: str) -> list[int]:
    """`[bos] I` as token ids, I being `Instruct: {task}\\nQuery: ` or nothing for an empty instruction."""
    text = f"Instruct: {instruction}\nQuery: " if instruction else ""
    prefix = [*backbone.prefix(), *backbone.tokenizer.encode(text).tolist()]
    if not prefix:  # a model without [bos] and an empty instruction: the end token serves as the first position
        prefix = [backbone.eos_id]
    return prefix


def make_table(backbone: Backbone, job: TableJob, work: Path) -> Path:
    """Write E, shape (V, H) float32, to `work/table.npy` and return that path.

    Rows are *not* normalised: a query is normalise(mean_i E[t_i]). The work is done in parts that survive a kill; a
    table that is already there, made from the same model and instruction, is returned at once. Raises ResumeError when
    `work` was begun with another model or instruction.
    """
    batch = job.batch or (2048 if backbone.device.type == "cuda" else 128)
    plan = {"model": backbone.fingerprint, "instruction": job.instruction, "batch": batch, "part": job.part}
    ShardStore(work, plan)
    target = work / "table.npy"
    if target.is_file():
        return target
    vocabulary = backbone.vocab_size
    starts = range(0, vocabulary, job.part)
    with torch.inference_mode(), ProgressBar("table", total=vocabulary, unit="tokens") as progress:
        cache = PrefixCache(backbone, instruction_prefix(backbone, job.instruction))
        for start in starts:
            file = work / f"part-{start:07d}.npy"
            end = min(start + job.part, vocabulary)
            if not file.is_file():
                _save(file, _rows(backbone, cache, start, end, batch))
            progress.advance(end - start)
    _save(target, np.concatenate([np.load(work / f"part-{start:07d}.npy") for start in starts]))
    for start in starts:
        (work / f"part-{start:07d}.npy").unlink()
    return target


def _rows(backbone: Backbone, cache: PrefixCache, start: int, end: int, batch: int) -> npt.NDArray[np.float32]:
    """E[start:end], (end - start, H) float32."""
    states = [
        token_states_cached(backbone, cache, torch.arange(first, min(first + batch, end))).float().cpu()
        for first in range(start, end, batch)
    ]
    rows: npt.NDArray[np.float32] = torch.cat(states).numpy()
    if not np.isfinite(rows).all():
        bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ArithmeticError(f"token {bad} has a state that is not finite; try dtype float32")
    return rows


def _save(path: Path, rows: npt.NDArray[np.float32]) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        np.save(file, rows)
    partial.replace(path)
