"""Weights from disk: a Hugging Face model or a GGUF file whole, a PEFT adapter merged into it, and what our own trainer
writes beside PEFT's files: settings and a linear map. Also the token table of an official release.

Nothing is ever filled with random numbers or left out silently, and no code that a model brings along is run.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError, importing
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.pipeline.loading import loading

#: What makes a folder an adapter in PEFT's layout.
ADAPTER_CONFIG = "adapter_config.json"
GGUF = ".gguf"
#: What an adapter of our own trainer says of itself.
ADAPTER_SETTINGS = "lightretriever.json"
PROJECTION_FILE = "projection.safetensors"
#: Files of a model or adapter that decide its output.
DECISIVE = ("config.json", ADAPTER_CONFIG, "*.safetensors", "*.bin")

if not sys.stderr.isatty():  # half a bar would stand in a log, before the line of an error
    disable_progress_bar()


def load_causal_lm(source: str, dtype: torch.dtype, layers: int | None = None) -> PreTrainedModel:
    """Load a decoder LLM with its LM head, with `layers` only the first so many of its layers.

    Raises ModelError when it can't be loaded, weights are missing, or it has fewer layers.
    """
    remedy = "Give a Hugging Face id, a directory with config.json and weights, or a .gguf file."
    folder, options = gguf_options(source)
    with loading(f"{source}: the model can't be loaded", source, remedy=remedy):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **options)
        if layers is not None:
            _keep_layers(config.get_text_config(), layers, source)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, output_loading_info=True, trust_remote_code=False, **options
        )
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise ModelError(
            f"{source}: the checkpoint lacks {len(missing)} of the model's weights, such as {', '.join(missing[:3])}.",
            remedy="Save it as a causal LM, with its LM head (AutoModelForCausalLM), and all of its layers.",
        )
    return model


def _keep_layers(config: Any, layers: int, source: str) -> None:
    """Make `config` one of a model with the first `layers` layers alone."""
    if layers > config.num_hidden_layers:
        raise ModelError(
            f"layers is {layers}, but {source} has {config.num_hidden_layers}.", remedy="Lower it, or leave it out."
        )
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]


def merge_adapter(model: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """Merge a PEFT adapter into `model`, one made for the causal LM or for its decoder alone (`AutoModel`).

    Raises ModelError when the adapter can't be read or doesn't fit; it is never left out silently.
    """
    with importing("pipeline"):
        from peft import PeftModel, load_peft_weights
    whole, merged = f"base_model.model.{model.base_model_prefix}.", model
    failed = f"{adapter}: the adapter can't be loaded onto {model.config.name_or_path}"
    remedy = "It must be a PEFT directory (adapter_config.json and weights) made for this base model."
    with loading(failed, adapter, remedy=remedy), warnings.catch_warnings():
        # peft only warns when the file holds none or not all of the weights that the adapter should have.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        is_whole = any(name.startswith(whole) for name in load_peft_weights(adapter, device="cpu"))
        merged = PeftModel.from_pretrained(model if is_whole else model.get_decoder(), adapter).merge_and_unload()
    return merged if is_whole else model  # the decoder is changed in place, inside the model


def local_folder(source: str) -> Path:
    """Where a model's or adapter's files lie: the directory or `.gguf` file itself, or the hub's local snapshot."""
    return Path(source) if Path(source).exists() else Path(snapshot_download(source, local_files_only=True))


def centre_head_rows(model: PreTrainedModel, rows: int) -> None:
    """Take the mean of the LM head's first `rows` rows off each of its rows; the embedding stays as it is.

    All logits of a position shift by the same amount, which the softmax doesn't see: it is the same language model. The
    ReLU of the sparse weights does see it. Uncentred, an untrained model may give every term a positive weight.
    """
    head = cast(torch.nn.Linear, model.get_output_embeddings())
    weight = head.weight.detach().float()
    centred = (weight - weight[:rows].mean(dim=0)).to(head.weight.dtype)
    head.weight = torch.nn.Parameter(centred)  # a new one, as the old may be tied to the embedding


def software() -> str:
    """Versions of torch and transformers: other versions may round differently, so a run isn't continued with them."""
    return f"torch {version('torch')}, transformers {version('transformers')}"


def fingerprint(folders: Iterable[Path], *settings: object) -> str:
    """SHA-256 over the decisive files of `folders`, or over files such as a `.gguf`, and every setting that changes a
    vector."""
    digest = hashlib.sha256(json.dumps([str(setting) for setting in settings]).encode())
    for folder in folders:
        files = [[folder.name, file_sha256(folder)]] if folder.is_file() else hashes(folder, DECISIVE)
        digest.update(json.dumps(files).encode())
    return digest.hexdigest()


def hashes(folder: Path, patterns: Iterable[str]) -> list[list[str]]:
    """Name and SHA-256 of the files in a folder that match any of the patterns, by name."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    return [[file.name, file_sha256(file)] for file in files]


def gguf_options(source: str) -> tuple[str | Path, dict[str, str]]:
    """The folder and the options by which transformers reads a model, or a `.gguf` file, whose weights it dequantises.
    Raises ModelError for a `.gguf` file that is not there."""
    if not source.endswith(GGUF):
        return source, {}
    file = Path(source)
    if not file.is_file():
        raise ModelError(f"{file}: no such GGUF file.", remedy="Give the path of the file.")
    return file.parent, {"gguf_file": file.name}


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

    `centre_head`, `idf_rows` and `lowercase` are as in the training recipe, `query_weights` is `count` or `idf_count`,
    as the last stage had it, `bos_token` and `eos_token` what the recipe named. `sparse_positions` is "inner" where
    `[bos]` and `<eos>` take no part in sparse weights, else "all", as in adapters that don't say. Of earlier versions:
    `attention` ("causal" where it is not said), `layers`, `pooling`, and `projection`, which says whether dense vectors
    go through the linear map in PROJECTION_FILE.
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


def load_projection(file: Path, hidden_size: int) -> torch.nn.Linear:
    """Read the linear map of dense vectors, (D, H) float32, frozen. Raises ModelError when it is not there or fits
    another model."""
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
