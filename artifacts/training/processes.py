"""The processes of a training run: one, or one per GPU. Each holds the whole model and a share of every batch."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list, gather_object
from lightretriever.artifacts.training.recipe import TrainRecipe

__all__ = ["Processes"]

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process among those of the run."""

    accelerator: Accelerator | None

    @classmethod
    def join(cls, device: str) -> "Processes":
        """Meet the other processes that the launcher started; without a launcher the run is this process alone."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(None)
        patience = InitProcessGroupKwargs(timeout=timedelta(hours=2))  # while the first one prepares data alone
        cpu = device == "cpu" or not torch.cuda.is_available()
        return cls(Accelerator(cpu=cpu, kwargs_handlers=[patience]))

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return 0 if self.accelerator is None else int(self.accelerator.process_index)

    @property
    def count(self) -> int:
        """How many processes there are."""
        return 1 if self.accelerator is None else int(self.accelerator.num_processes)

    @property
    def local_count(self) -> int:
        """How many of them run on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def placed(self, recipe: TrainRecipe) -> TrainRecipe:
        """The recipe with this process' own device."""
        if self.accelerator is None:
            return recipe
        model = recipe.model.model_copy(update={"device": str(self.accelerator.device)})
        return recipe.model_copy(update={"model": model})

    def wait(self) -> None:
        """Wait for all processes."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run `work` on the first process, then on the others, which find its files on disk."""
        if self.accelerator is None:
            return work()
        with self.accelerator.main_process_first():
            return work()

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set in the first process, which decides for all."""
        if self.accelerator is None:
            return flag
        return bool(broadcast_object_list([flag])[0])

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all processes, in order; they may have different numbers of them."""
        if self.accelerator is None:
            return rows
        counts = gather_object([len(rows)])
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = self.accelerator.gather(padded).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def add_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes. A missing one counts as zero."""
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        if self.accelerator is not None:
            flat = self.accelerator.reduce(flat, reduction="sum")
        for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
