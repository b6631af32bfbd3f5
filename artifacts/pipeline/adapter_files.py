"""What our own trainer writes beside PEFT's files: settings and a linear map.

Also the token table of an official release.
"""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.artifacts.pipeline.loading import loading

__all__ = [
    "ADAPTER_SETTINGS",
    "PROJECTION_FILE",
    "adapter_file",
    "adapter_settings",
    "load_embedding_bag",
    "load_projection",
    "save_projection",
]

#: What an adapter of our own trainer says of itself.
ADAPTER_SETTINGS = "lightretriever.json"
PROJECTION_FILE = "projection.safetensors"


def adapter_file(adapter: str, name: str) -> Path:
    """Where a file of an adapter lies, if it has one. Loading an adapter from the hub brings only its weights along.

    Raises ModelError for an adapter that is neither a folder nor on the hub.
    """
    if Path(adapter).is_dir():
        return Path(adapter) / name
    try:
        return Path(snapshot_download(adapter, allow_patterns=name)) / name
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{adapter}: no folder, and no adapter that can be fetched from Hugging Face: {str(error).rstrip('.')}.",
            remedy="Give the folder of the adapter.",
        ) from error


def adapter_settings(adapter: str) -> dict[str, Any]:
    """What an adapter of our own trainer says of itself (`lightretriever.json`); nothing for one made elsewhere.

    `attention` ("causal" in adapters that don't say), `centre_head`, `idf_rows`, `layers`, `lowercase` and `pooling`
    are as in the training recipe, `query_weights` is `count` or `idf_count`, as the last stage had it, `bos_token` and
    `eos_token` what the recipe named. `projection` says whether dense vectors go through the linear map in
    PROJECTION_FILE. `sparse_positions` is "inner" where `[bos]` and `<eos>` take no part in sparse weights, else "all",
    as in adapters that don't say.
    """
    file = adapter_file(adapter, ADAPTER_SETTINGS)
    if not file.is_file():
        return {}
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{file}: not JSON: {error}.", remedy="Fetch or train the adapter again.") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{file}: not a JSON object.", remedy="Fetch or train the adapter again.")
    return settings


def save_projection(file: Path, weight: torch.Tensor) -> None:
    """Write the linear map of the dense vectors, (D, H) float32."""
    write_atomically(file, save({"weight": weight.float().contiguous()}))


def load_projection(file: Path, hidden_size: int) -> torch.nn.Linear:
    """Read what `save_projection` wrote, frozen. Raises ModelError when it isn't there or fits another model."""
    try:
        weight = load_file(file)["weight"]
        if weight.dim() != 2 or weight.shape[1] != hidden_size:
            raise ValueError(f"its shape is {tuple(weight.shape)}")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(
            f"{file}: not a linear map of {hidden_size} dimensions: {error}", remedy="Fetch or train the adapter again."
        ) from error
    projection = torch.nn.Linear(hidden_size, len(weight), bias=False)
    projection.weight = torch.nn.Parameter(weight)
    return projection.requires_grad_(False)


def load_embedding_bag(file: Path, rows: int, hidden_size: int) -> Float32Array:
    """Read the token table of an official release, `torch.save` of its weight: (`rows`, `hidden_size`) float32.

    Raises ModelError when the file holds something else, or a table of another shape.
    """
    with loading(f"{file}: no table", remedy="Give the release's emb_bag.pt."):
        weight = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(weight, torch.Tensor):
        raise ModelError(f"{file}: no table, but a {type(weight).__name__}.", remedy="Give the release's emb_bag.pt.")
    if weight.shape != (rows, hidden_size):
        raise ModelError(
            f"{file}: a table of shape {tuple(weight.shape)}, but the model has {rows} token ids and vectors of "
            f"{hidden_size} values.",
            remedy="Give the table that was released with this model.",
        )
    table: Float32Array = weight.float().numpy()
    return table
