"""The engine of training: accelerate's processes, precision and gradients, and what it leaves to us: the exchange of
representations, and gradient caching over several processes (docs/decisions.md#training-runs-on-accelerate).

A step needs the representations of the whole batch at once, but not their graphs. It runs in three parts: forward
passes without gradients, a chunk at a time; the loss on all representations, with the gradient of each; the same
passes with gradients, each chunk fed with its share. A batch that fits into one chunk keeps its graph instead. Both
give the gradients of the plain step. Several processes share the chunks; their gradients add up to those of one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    DistributedType,
    InitProcessGroupKwargs,
    broadcast_object_list,
)

from lightretriever.artifacts.errors import ModelError, RecipeError
from lightretriever.artifacts.pipeline.model import choose_device, choose_dtype
from lightretriever.artifacts.training.mixture import StepContext, Tensors
from lightretriever.artifacts.training.recipe import TrainRecipe

T = TypeVar("T")
_FEWEST = 64  # positions of a chunk


@dataclass(frozen=True)
class Chunk:
    """One forward pass: which rows of which representations it gives, and how.

    A `filler` repeats a pass and adds nothing, so that every process makes as many passes.
    """

    rows: slice
    run: Callable[[slice], Tensors]
    tokens: int
    filler: bool = False


class Engine:
    """This process among those of the run, which torchrun or `accelerate launch` started.

    `device` is where the model works; `model` is what accelerate makes of it, and passes on what it is to run.
    `chunk_tokens` are the positions whose graphs are held at once.
    """

    def __init__(self, device: str = "cpu", *, half: bool = False) -> None:
        """Meet the other processes. `half` computes in bfloat16. Raises ModelError for a device that is not there, and
        RecipeError for a way of sharing a model that accelerate is configured to."""
        target = choose_device(device)
        self.accelerator = Accelerator(
            cpu=target.type == "cpu",
            mixed_precision="bf16" if half else "no",
            device_placement=False,
            kwargs_handlers=[
                # Two hours: the others wait while the first one prepares data.
                InitProcessGroupKwargs(timeout=timedelta(hours=2)),
                # No cache: weights cast in the pass without gradients would serve the pass with gradients, too.
                AutocastKwargs(cache_enabled=False),
                DistributedDataParallelKwargs(broadcast_buffers=False),
            ],
        )
        kind = self.accelerator.distributed_type
        if kind not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
            raise RecipeError(
                f"accelerate is configured for {kind.value}, which training doesn't use.",
                remedy="Take it out of accelerate's configuration.",
            )
        alone = kind == DistributedType.NO or target.type == "cpu"
        self.device = target if alone else self.accelerator.device
        local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local))
        self.model: torch.nn.Module | None = None
        self.chunk_tokens = 65_536 if self.device.type == "cuda" else 8_192

    @classmethod
    def of(cls, recipe: TrainRecipe) -> "Engine":
        """The engine that a recipe asks for."""
        weights = choose_dtype(recipe.model.dtype, choose_device(recipe.model.device))
        return cls(recipe.model.device, half=weights == torch.bfloat16)

    def halve(self) -> bool:
        """Halve `chunk_tokens` after memory ran out. False where one process can't help itself in this way: where
        others wait for it, or the chunks are small already."""
        if self.accelerator.num_processes > 1 or self.chunk_tokens < 2 * _FEWEST:
            return False
        self.chunk_tokens //= 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return True

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all processes, in order; they may have different numbers of them, but not none."""
        counts = self.accelerator.gather(torch.tensor([len(rows)], device=rows.device)).tolist()
        padded = self.accelerator.pad_across_processes(rows)
        parts = self.accelerator.gather(padded).split(len(padded))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def evaluate(self, run: Callable[[], T]) -> T:
        """Run something that passes through the model, without gradients and dropout; returns what the first process
        has."""
        if self.model is not None:
            self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            agreed: T = broadcast_object_list([run()])[0]
        return agreed

    def chunks(self, lengths: list[int], run: Callable[[slice], Tensors], *, items: str) -> Iterator[Chunk]:
        """Chunks of at most `chunk_tokens` positions of this process' share of the items, whose representations `run`
        makes; rows are numbered over all processes' items. Raises RecipeError where there are fewer `items`, so named,
        than processes: one without any would have no tensors to exchange."""
        processes = self.accelerator.num_processes
        if len(lengths) < processes:
            raise RecipeError(
                f"stages[].batch_size: the {items} of a batch are {len(lengths)}, fewer than the {processes} processes "
                "that share them.",
                remedy="Raise it, or start fewer processes.",
            )
        bounds = np.linspace(0, len(lengths), processes + 1).round().astype(int).tolist()
        start, end = bounds[self.accelerator.process_index], bounds[self.accelerator.process_index + 1]
        while start < end:
            stop, total = start + 1, lengths[start]
            while stop < end and total + lengths[stop] <= self.chunk_tokens:
                total += lengths[stop]
                stop += 1
            yield Chunk(slice(start, stop), run, total)
            start = stop

    def backward(
        self,
        chunks: list[Chunk],
        context: StepContext,
        objective: Callable[[Tensors], tuple[Tensors, dict[str, float]]],
    ) -> dict[str, float]:
        """Add the gradients of the losses that `objective` makes of all chunks' representations; returns each loss,
        their sum, and the norm of each one's gradient at the representations.

        Chunks of at most `chunk_tokens` positions together are run once, more of them twice.
        """
        sizes = self.gather(torch.tensor([[len(chunks), sum(chunk.tokens for chunk in chunks)]], device=self.device))
        passes, largest = sizes.amax(dim=0).tolist()
        chunks = chunks + [replace(chunks[-1], filler=True)] * (passes - len(chunks))
        keep = largest <= self.chunk_tokens
        outputs = [self._pass(chunk, number, context, gradients=keep) for number, chunk in enumerate(chunks)]
        own = [output for chunk, output in zip(chunks, outputs, strict=True) if not chunk.filler]
        leaves = {name: self.gather(part).requires_grad_() for name, part in _joined(own).items()}
        with torch.autocast(self.device.type, enabled=False):
            losses, logged = objective(leaves)
            total = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
            for name, loss in losses.items():
                gradients = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True, allow_unused=True)
                parts = {leaf: part for leaf, part in zip(leaves, gradients, strict=True) if part is not None}
                for leaf, part in parts.items():
                    total[leaf] += part
                logged[f"{name}_gradient"] = float(sum(float(part.square().sum()) for part in parts.values()) ** 0.5)
        logged |= {name: float(loss.detach()) for name, loss in losses.items()}
        if keep:
            shares = [self._share(chunk, output, total) for chunk, output in zip(chunks, outputs, strict=True)]
            self.accelerator.backward(torch.stack(shares).sum())
        for number, chunk in enumerate([] if keep else chunks):
            last = number == passes - 1
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                made = self._pass(chunk, number, context, gradients=True)
                self.accelerator.backward(self._share(chunk, made, total))
        return logged | {
            "loss": sum(float(loss.detach()) for loss in losses.values()),
            "tokens": float(sizes[:, 1].sum()),
        }

    def _pass(self, chunk: Chunk, number: int, context: StepContext, *, gradients: bool) -> Tensors:
        """The representations of a chunk, with the same dropout in both of its passes, and another one in every chunk,
        step and process."""
        torch.manual_seed(
            hash((context.seed, context.batch, self.accelerator.process_index, number)) & 0x7FFF_FFFF_FFFF_FFFF
        )
        with torch.set_grad_enabled(gradients), self.accelerator.autocast():
            made: Tensors = chunk.run(chunk.rows) if self.model is None else self.model(lambda: chunk.run(chunk.rows))
        return made

    def _share(self, chunk: Chunk, output: Tensors, gradients: Tensors) -> torch.Tensor:
        """A number whose gradient at a chunk's representations is theirs in the loss, times the number of processes, by
        which the shared gradients are divided."""
        weight = 0 if chunk.filler else self.accelerator.num_processes
        products = [(part.float() * gradients[name][chunk.rows].float()).sum() for name, part in output.items()]
        return weight * torch.stack(products).sum()


def out_of_memory(error: Exception) -> bool:
    """True if memory ran out, on a GPU or on the CPU, where torch raises a RuntimeError like any other."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def too_large(error: Exception, device: torch.device) -> ModelError:
    """The error for a step that the memory of a device can't hold."""
    reason = (str(error).splitlines() or ["no memory"])[0].removesuffix(".")
    return ModelError(
        f"The memory of {device} is too small for a training step: {reason}.",
        remedy="Set gradient_checkpointing: true, or lower stages[].chunk_tokens, stages[].batch_size or "
        "data.max_document_length; The last checkpoint is kept.",
    )


def _joined(outputs: list[Tensors]) -> Tensors:
    """The rows of all chunks, by representation, detached from their graphs."""
    names = dict.fromkeys(chain.from_iterable(outputs))
    return {name: torch.cat([output[name].detach() for output in outputs if name in output]) for name in names}
