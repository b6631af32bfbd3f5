"""The token table: e(t) of every token behind an instruction, computed once so that queries need no model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.arrays import read_array, write_array
from lightretriever.artifacts.files.workdir import check_plan
from lightretriever.artifacts.pipeline.model import Backbone
from lightretriever.artifacts.pipeline.states import PrefixCache, mlp_states, token_states_cached
from lightretriever.artifacts.pipeline.weights import software
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.idf import idf_sha256

__all__ = ["instruction_prefix", "make_table"]

StatesOf = Callable[[torch.Tensor], torch.Tensor]


def instruction_prefix(backbone: Backbone, instruction: str) -> list[int]:
    """`[bos] I` as token ids, I being `Instruct: {task}\\nQuery: ` or nothing for an empty instruction."""
    text = f"Instruct: {instruction}\nQuery: " if instruction else ""
    prefix = [*backbone.prefix(), *backbone.tokenizer.encode(text).tolist()]
    if not prefix:  # a model without [bos] and an empty instruction: the end token serves as the first position
        prefix = [backbone.eos_id]
    return prefix


def make_table(
    backbone: Backbone,
    instruction: str,
    work: Path,
    weights: npt.NDArray[np.float32] | None = None,
    *,
    batch: int | None = None,
    part: int = 8192,
) -> Path:
    """Write E, shape (V, H) float32, to `work/table.npy` and return that path.

    Rows are *not* normalised: a query is normalise(mean_i E[t_i]). Special tokens without an embedding get rows of
    zeros. With `weights` (V,) float32, row t is weights[t] · e(t), for adapters that were trained so. A forward pass
    takes `batch` tokens (None: 128 on a CPU, where more falls out of its caches, and 512 on CUDA). A stopped call goes
    on after the last finished part of `part` rows; a finished table is kept. Raises ResumeError when `work` was begun
    with another model or instruction, and ModelError for states that are not finite.
    """
    batch = batch or (512 if backbone.device.type == "cuda" else 128)
    plan = {"model": backbone.fingerprint, "instruction": instruction, "batch": batch, "part": part}
    if weights is not None:
        plan["row_weights"] = idf_sha256(weights)
    check_plan(work / "plan.json", {**plan, "device": backbone.device.type, "software": software()})
    target = work / "table.npy"
    parts = {start: work / f"part-{start:07d}.npy" for start in range(0, backbone.embedded, part)}
    if not target.is_file():
        _make_parts(backbone, instruction, batch, parts)
        rows = np.concatenate([read_array(part) for part in parts.values()])
        surplus = np.zeros((backbone.vocab_size - len(rows), rows.shape[1]), dtype=np.float32)
        whole = np.concatenate([rows, surplus])
        write_array(target, whole if weights is None else whole * weights[:, None])
    for leftover in work.glob("part-*.npy*"):
        leftover.unlink()
    return target


def _make_parts(backbone: Backbone, instruction: str, batch: int, parts: dict[int, Path]) -> None:
    """Write the parts that are not there yet; each begins at its row."""
    ends = [*list(parts)[1:], backbone.embedded]
    with torch.inference_mode(), ProgressBar("table", total=backbone.embedded, unit="tokens") as progress:
        states_of = _states_of(backbone, instruction)
        for (start, file), end in zip(parts.items(), ends, strict=True):
            if file.is_file():
                progress.skip(end - start)
                continue
            write_array(file, _rows(states_of, start, end, batch))
            progress.advance(end - start)


def _states_of(backbone: Backbone, instruction: str) -> StatesOf:
    """How tokens (n,) become their states (n, H)."""
    if backbone.token_mlp is not None:
        return lambda tokens: mlp_states(backbone, tokens)
    cache = PrefixCache(backbone, instruction_prefix(backbone, instruction))
    return lambda tokens: token_states_cached(backbone, cache, tokens)


def _rows(states_of: StatesOf, start: int, end: int, batch: int) -> npt.NDArray[np.float32]:
    """E[start:end], (end - start, H) float32."""
    states = [
        states_of(torch.arange(first, min(first + batch, end))).float().cpu() for first in range(start, end, batch)
    ]
    rows: npt.NDArray[np.float32] = torch.cat(states).numpy()
    if not np.isfinite(rows).all():
        bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ModelError(f"Token {bad} has a state that is not finite.", remedy="Set model.dtype to float32.")
    return rows
