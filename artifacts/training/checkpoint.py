"""Checkpoints: everything a run needs to go on as if it had never stopped, in one safetensors file.

All randomness of a step is derived from the seed and the step's number, so weights, the optimiser's moments and the
step are enough.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.workdir import write_atomically
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

__all__ = ["Progress", "load_checkpoint", "read_progress", "save_checkpoint"]


@dataclass
class Progress:
    """Where a run stands: `step` steps of stage number `stage` are done. `best` is the best development score so far.

    `elapsed_s` is the time spent in all slices, in seconds.
    """

    stage: int = 0
    step: int = 0
    best: float | None = None
    best_step: int | None = None
    elapsed_s: float = 0.0


def save_checkpoint(
    file: Path, progress: Progress, parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> None:
    """Write weights and optimiser state, float32, so that the file is always whole."""
    tensors = {f"weight:{name}": parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}:{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, save(tensors, metadata={"progress": json.dumps(asdict(progress))}))


def load_checkpoint(
    file: Path, parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer
) -> Progress:
    """Set weights and optimiser state from a file of `save_checkpoint`. Raises ResumeError for one that doesn't fit."""
    progress = read_progress(file)
    try:
        with safe_open(file, framework="pt") as content:
            names = content.keys()
            tensors = {name: content.get_tensor(name) for name in names}
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(tensors.pop(f"weight:{name}"))
        for key, tensor in tensors.items():
            kind, _, name = key.partition(":")
            parameter = parameters[name]
            optimizer.state[parameter][kind] = tensor if kind == "step" else tensor.to(parameter.device)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise _unusable(file, error) from error
    return progress


def read_progress(file: Path) -> Progress:
    """Where a run stands that wrote this file by `save_checkpoint`. Raises ResumeError for another file."""
    try:
        with safe_open(file, framework="pt") as content:
            return Progress(**json.loads(content.metadata()["progress"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _unusable(file, error) from error


def _unusable(file: Path, error: Exception) -> ResumeError:
    return ResumeError(f"{file}: the checkpoint can't be used: {error}.", remedy="Delete it to begin again.")
