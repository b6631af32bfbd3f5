"""Weights from disk: a Hugging Face model whole, a PEFT adapter merged into it, a GGUF file converted.

Nothing is ever filled with random numbers or left out silently, and no code that a model brings along is run.
"""

import hashlib
import json
import shutil
import sys
import warnings
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import snapshot_download
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from lightretriever.artifacts.errors import ModelError, importing
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.pipeline.loading import loading

__all__ = [
    "ADAPTER_CONFIG",
    "centre_head_rows",
    "convert_gguf",
    "fingerprint",
    "hashes",
    "load_causal_lm",
    "local_folder",
    "merge_adapter",
    "software",
]

#: What makes a folder an adapter in PEFT's layout.
ADAPTER_CONFIG = "adapter_config.json"
#: Files of a model or adapter that decide its output.
DECISIVE = ("config.json", ADAPTER_CONFIG, "*.safetensors", "*.bin")

if not sys.stderr.isatty():  # half a bar would stand in a log, before the line of an error
    disable_progress_bar()


def load_causal_lm(source: str, dtype: torch.dtype, layers: int | None = None) -> PreTrainedModel:
    """Load a decoder LLM with its LM head, with `layers` only the first so many of its layers.

    Raises ModelError when it can't be loaded, weights are missing, or it has fewer layers.
    """
    remedy = "Give a Hugging Face id, a directory with config.json and weights, or a .gguf file."
    with loading(f"{source}: the model can't be loaded", source, remedy=remedy):
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        if layers is not None:
            _keep_layers(config.get_text_config(), layers, source)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    model: PreTrainedModel = loaded[0]
    _refuse_missing(source, loaded[1]["missing_keys"])
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
    """The folder a model's or adapter's files lie in: the directory itself, or the hub's local snapshot."""
    return Path(source) if Path(source).is_dir() else Path(snapshot_download(source, local_files_only=True))


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
    """SHA-256 over the decisive files of `folders`, and every setting that changes a vector."""
    digest = hashlib.sha256(json.dumps([str(setting) for setting in settings]).encode())
    for folder in folders:
        digest.update(json.dumps(hashes(folder, DECISIVE)).encode())
    return digest.hexdigest()


def hashes(folder: Path, patterns: Iterable[str]) -> list[list[str]]:
    """Name and SHA-256 of the files in a folder that match any of the patterns, by name."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    return [[file.name, file_sha256(file)] for file in files]


def convert_gguf(gguf: Path, target: Path) -> Path:
    """Dequantise a GGUF file into a Hugging Face directory, once; later calls return the directory.

    `from_pretrained(gguf_file=…)` keeps the weights packed and such a model can't be saved, so its state dict is
    loaded into a fresh model of the same configuration. Raises ModelError when the file is missing or unreadable.
    """
    marker = target / "converted.json"
    if not gguf.is_file():
        raise ModelError(f"{gguf}: no such GGUF file.", remedy="Give the path of the file.")
    identity = {"source": gguf.name, "sha256": file_sha256(gguf)}
    if marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == identity:
        return target
    shutil.rmtree(target, ignore_errors=True)
    scratch = target.with_name(target.name + ".partial")
    shutil.rmtree(scratch, ignore_errors=True)
    model, tokenizer = _dequantise(gguf)
    try:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        (scratch / marker.name).write_text(json.dumps(identity), encoding="utf-8")
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _dequantise(gguf: Path) -> tuple[PreTrainedModel, Any]:
    """The GGUF file as an ordinary float32 model, and its tokenizer."""
    with loading(f"{gguf}: the GGUF file can't be read", gguf, remedy="Fetch or convert it again."):
        packed = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    settings = packed.config.to_dict()
    settings.pop("quantization_config", None)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
    missing, _ = model.load_state_dict(packed.state_dict(), strict=False)
    tied = set(model.all_tied_weights_keys)
    _refuse_missing(str(gguf), [name for name in missing if name not in tied])
    model.tie_weights()
    return model, tokenizer


def _refuse_missing(source: str, missing: Iterable[str]) -> None:
    names = sorted(missing)
    if names:
        raise ModelError(
            f"{source}: the checkpoint lacks {len(names)} of the model's weights, such as {', '.join(names[:3])}.",
            remedy="Save it as a causal LM, with its LM head (AutoModelForCausalLM), and all of its layers.",
        )
