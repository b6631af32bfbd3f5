"""The processes of a training run: one, or those that torchrun started. Each holds the whole model and a share of every
batch."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

__all__ = ["Processes"]

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process, number `rank` among `count`, of which `local_count` run on this machine. `device` is its own where
    there are several."""

    rank: int = 0
    count: int = 1
    local_count: int = 1
    device: str | None = None

    @classmethod
    def join(cls, device: str) -> "Processes":
        """Meet the other processes by torchrun's environment; without it the run is this process alone."""
        rank, count, local, local_count = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
        )
        if count == 1:
            return cls()
        cuda = device != "cpu" and torch.cuda.is_available()
        if cuda:
            torch.cuda.set_device(local)
        # Two hours: the others wait while the first one prepares data.
        dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(hours=2))
        return cls(rank, count, local_count, f"cuda:{local}" if cuda else "cpu")

    def leave(self) -> None:
        """End the connection to the other processes."""
        if self.count > 1:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            dist.barrier()

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run `work` on the first process, then on the others, which find its files on disk."""
        if not self.first:
            self.wait()
        result = work()
        if self.first:
            self.wait()
        return result

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set in the first process, which decides for all."""
        flags = [flag]
        if self.count > 1:
            dist.broadcast_object_list(flags)
        return flags[0]

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all processes, in order; they may have different numbers of them."""
        if self.count == 1:
            return rows
        parts: list[torch.Tensor] = [rows] * self.count
        dist.all_gather_object(parts, rows.cpu())
        return torch.cat(parts).to(rows.device)

    def add_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes. A missing one counts as zero."""
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        if self.count > 1:
            dist.all_reduce(flat)
        for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
