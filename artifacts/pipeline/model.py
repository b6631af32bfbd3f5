"""Load any decoder LLM: a Hugging Face id or directory, optionally a PEFT adapter on it, or a GGUF file."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from artifacts.errors import ModelError
from artifacts.text import TextTokenizer

__all__ = ["Backbone", "ModelDtype", "convert_gguf", "load_backbone"]

ModelDtype = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Backbone:
    """An LLM ready to encode, with the token ids that frame a text.

    A document is `[bos] d <eos>`, a query token `[bos] I t <eos>`; `bos_id` is None for models without one.
    `head` is the LM head P as rows per token, shape (V, H), cut to the tokenizer's V ids.
    """

    model: PreTrainedModel
    tokenizer: TextTokenizer
    tokenizer_file: Path
    bos_id: int | None
    eos_id: int
    name: str
    fingerprint: str

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.device

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def vocab_size(self) -> int:
        """V: the tokenizer's highest id + 1 (a model may have more, unused rows)."""
        return self.tokenizer.vocab_size

    @property
    def decoder(self) -> torch.nn.Module:
        """The model without its LM head; its first output is the last hidden state (B, T, H)."""
        decoder: torch.nn.Module = self.model.get_decoder()
        return decoder

    @property
    def head(self) -> torch.Tensor:
        """LM head P, shape (V, H)."""
        return _weight(self.model.get_output_embeddings())[: self.vocab_size]

    def frame(self, ids: list[int]) -> list[int]:
        """`[bos] ids <eos>`."""
        return [*self.prefix(), *ids, self.eos_id]

    def prefix(self) -> list[int]:
        """`[bos]`, or nothing for a model without one."""
        return [] if self.bos_id is None else [self.bos_id]


def load_backbone(
    path: str,
    *,
    work: Path,
    adapter: str | None = None,
    bos_token: str | None = None,
    eos_token: str | None = None,
    dtype: ModelDtype = "auto",
    device: str = "auto",
    lowercase: bool = True,
) -> Backbone:
    """Load model, adapter and tokenizer, merged and in evaluation mode.

    `path` is a Hugging Face id, a local directory, or a `.gguf` file (converted once into `work/model`). `bos_token`
    and `eos_token` override the tokenizer's own. `dtype` "auto" is bfloat16 on CUDA and float32 on CPU. Nothing
    of the model's own code is ever run (no `trust_remote_code`). Raises ModelError.
    """
    source = str(convert_gguf(Path(path), work / "model")) if path.endswith(".gguf") else path
    target = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    weights = _torch_dtype(dtype, target)
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=weights)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{path}: the model can't be loaded: {error}",
            remedy="Give a Hugging Face id, a directory with config.json and weights, or a .gguf file.",
        ) from error
    if adapter is not None:
        model = _with_adapter(model, adapter)
    torch.nn.Module.to(model, device=target, dtype=weights)
    model.eval().requires_grad_(False)
    tokenizer_file = save_tokenizer(source, work / "tokenizer")
    tokenizer = TextTokenizer.from_file(tokenizer_file, lowercase=lowercase)
    _check_vocabulary(model, tokenizer, path)
    bos_id, eos_id = _frame_ids(source, tokenizer, bos_token, eos_token)
    fingerprint = _fingerprint(source, adapter, tokenizer.sha256, bos_id, eos_id, str(weights), lowercase)
    return Backbone(model, tokenizer, tokenizer_file, bos_id, eos_id, Path(path).stem, fingerprint)


def convert_gguf(gguf: Path, target: Path) -> Path:
    """Dequantise a GGUF file into a Hugging Face directory, once; later calls return the directory.

    `from_pretrained(gguf_file=…)` keeps the weights packed and such a model can't be saved, so its state dict is
    loaded into a fresh model of the same configuration. Raises ModelError when the file is missing or unreadable.
    """
    marker = target / "converted.json"
    if not gguf.is_file():
        raise ModelError(f"{gguf}: no such GGUF file.")
    identity = {"source": gguf.name, "sha256": _sha256(gguf)}
    if marker.is_file() and json.loads(marker.read_text()) == identity:
        return target
    try:
        packed = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{gguf}: the GGUF file can't be read: {error}") from error
    settings = packed.config.to_dict()
    settings.pop("quantization_config", None)
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(packed.state_dict(), strict=False)
    model.tie_weights()
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    marker.write_text(json.dumps(identity))
    return target


def save_tokenizer(source: str, target: Path) -> Path:
    """Write the model's `tokenizer.json` into `target` and return its path. Raises ModelError without a fast one."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{source}: the tokenizer can't be loaded: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{source}: this model has no fast tokenizer ({type(tokenizer).__name__}).",
            remedy="Convert it to a tokenizer.json first; the query path runs on it.",
        )
    target.mkdir(parents=True, exist_ok=True)
    file = target / "tokenizer.json"
    backend.save(str(file))
    return file


def _with_adapter(model: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """Merge a PEFT adapter into the model's weights."""
    from peft import PeftModel

    try:
        merged: PreTrainedModel = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"{adapter}: the adapter can't be loaded onto {model.config.name_or_path}: {error}",
            remedy="It must be a PEFT directory (adapter_config.json and weights) made for this base model.",
        ) from error
    return merged


def _check_vocabulary(model: PreTrainedModel, tokenizer: TextTokenizer, path: str) -> None:
    rows = int(_weight(model.get_input_embeddings()).shape[0])
    if tokenizer.vocab_size > rows:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model's embedding only {rows} rows.",
            remedy="Use the tokenizer the model was trained with.",
        )


def _weight(layer: Any) -> torch.Tensor:  # noqa: ANN401  (torch types a layer's attributes as Module or Tensor)
    weight: torch.Tensor = layer.weight
    return weight


def _frame_ids(
    source: str, tokenizer: TextTokenizer, bos_token: str | None, eos_token: str | None
) -> tuple[int | None, int]:
    """Ids of [bos] and <eos>: the overrides, else what the model's tokenizer says."""
    theirs: Any = AutoTokenizer.from_pretrained(source)
    bos, eos = bos_token or theirs.bos_token, eos_token or theirs.eos_token
    ids = {token: tokenizer.token_id(token) for token in (bos, eos) if token is not None}
    for token, token_id in ids.items():
        if token_id is None:
            raise ModelError(f"{source}: the token {token!r} is not in the vocabulary.", remedy="Name one that is.")
    if eos is None:
        raise ModelError(f"{source}: the tokenizer names no end token.", remedy="Set model.eos_token in the recipe.")
    return (None if bos is None else ids[bos]), int(ids[eos] or 0)


def _torch_dtype(dtype: ModelDtype, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def _fingerprint(source: str, adapter: str | None, *settings: object) -> str:
    """SHA-256 over the weights, the adapter and every setting that changes a vector."""
    digest = hashlib.sha256(json.dumps([str(setting) for setting in settings]).encode())
    for folder in (source, adapter):
        if folder is None:
            continue
        files = sorted(Path(folder).glob("*.safetensors")) if Path(folder).is_dir() else []
        digest.update(b"".join(_sha256(file).encode() for file in files) or folder.encode())
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
