"""Any decoder LLM, ready to encode: a Hugging Face id or directory, optionally a PEFT adapter on it, or a GGUF file.

Nothing is ever filled with random numbers or left out silently, and no code that a model brings along is run.
"""

import hashlib
import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError, importing
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.pipeline.loading import check_vocabulary, loading, text_tokenizer
from lightretriever.artifacts.pipeline.recipe import ModelDtype, ModelRecipe, name_of
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

CHARS_PER_TOKEN: Final = 64
"""Of a text, so many characters are tokenised for each token that a document may have."""

ADAPTER_CONFIG: Final = "adapter_config.json"
"""What makes a folder an adapter in PEFT's layout."""

GGUF: Final = ".gguf"
ADAPTER_SETTINGS: Final = "lightretriever.json"
"""What an adapter of our own trainer says of itself."""

PROJECTION_FILE: Final = "projection.safetensors"
_DECISIVE: Final = ("config.json", ADAPTER_CONFIG, "*.safetensors", "*.bin")
"""Files of a model or adapter that decide its output."""

if not sys.stderr.isatty():  # half a bar would stand in a log, before the line of an error
    disable_progress_bar()


@dataclass(frozen=True)
class Backbone:
    """An LLM ready to encode, with the token ids that frame a text.

    A document is `[bos] d <eos>`, a query token `[bos] I t <eos>`; `bos_id` is None for models without one.
    `fingerprint` stands for weights, adapter, tokenizer, frame, number type, lowercasing and a centred head.
    `projection` is the linear map of dense vectors, H → D, of an adapter that follows a teacher's vectors. `pooling`
    says what they are made from: the state at the `end` token, or the mean over the text's own positions. `attention`
    says what a position sees of its text: what stands before it, as the model was made, or all of it. With
    `sparse_inner` the positions of `[bos]` and `<eos>` take no part in sparse weights, as in the official code.
    """

    model: PreTrainedModel
    tokenizer: TextTokenizer
    tokenizer_json: bytes
    bos_id: int | None
    eos_id: int
    name: str
    fingerprint: str
    projection: torch.nn.Linear | None = None
    pooling: Literal["end", "mean"] = "end"
    attention: Literal["causal", "bidirectional"] = "causal"
    sparse_inner: bool = True

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return torch.device(self.model.device)

    @property
    def hidden_size(self) -> int:
        """H."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def vector_size(self) -> int:
        """The dimension of dense vectors and of the rows of a token table: D of the linear map, else H."""
        return self.hidden_size if self.projection is None else self.projection.out_features

    def dense(self, states: torch.Tensor) -> torch.Tensor:
        """Dense vectors of texts of L tokens each, `<eos>` included, (n, L, H) → (n, `vector_size`), not normalised."""
        pooled = states[:, -1] if self.pooling == "end" else states.mean(dim=1)
        if self.projection is None:
            return pooled
        with torch.autocast(self.device.type, enabled=False):
            vectors: torch.Tensor = self.projection(pooled.float())
        return vectors

    def sparse_spans(self, spans: Sequence[tuple[int, int]], skip: int | None = None) -> list[tuple[int, int]]:
        """The positions of framed texts, end exclusive, whose states make sparse weights: behind the first `skip`
        (None: behind `[bos]`, where `sparse_inner` leaves it out)."""
        first = skip if skip is not None else len(self.prefix()) if self.sparse_inner else 0
        return [(begin + first, end - self.sparse_inner) for begin, end in spans]

    @property
    def max_positions(self) -> int | None:
        """The longest sequence the model was made for, None where it doesn't say."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def vocab_size(self) -> int:
        """V: the tokenizer's highest id + 1."""
        return self.tokenizer.vocab_size

    @property
    def embedded(self) -> int:
        """How many of the V ids the model has an embedding for; the others are special tokens no text contains."""
        return min(self.vocab_size, _embedding_rows(self.model))

    @property
    def decoder(self) -> torch.nn.Module:
        """The model without its LM head; its first output is the last hidden state (B, T, H)."""
        decoder: torch.nn.Module = self.model.get_decoder()
        return decoder

    @property
    def head(self) -> torch.Tensor:
        """LM head P, one row per embedded token id, shape (`embedded`, H)."""
        return cast(torch.nn.Linear, self.model.get_output_embeddings()).weight[: self.embedded]

    def frame(self, ids: list[int]) -> list[int]:
        """`[bos] ids <eos>`."""
        return [*self.prefix(), *ids, self.eos_id]

    def document_ids(self, texts: Sequence[str], max_length: int) -> list[list[int]]:
        """The framed token ids of documents, each of at most `max_length` ids, special tokens included."""
        room = max_length - len(self.prefix()) - 1
        # A document of many megabytes isn't tokenised to its end.
        encoded = self.tokenizer.encode_batch([text[: CHARS_PER_TOKEN * max_length] for text in texts])
        return [self.frame(ids[:room].tolist()) for ids in encoded]

    def prefix(self) -> list[int]:
        """`[bos]`, or nothing for a model without one."""
        return [] if self.bos_id is None else [self.bos_id]


def load_model(recipe: ModelRecipe, *, lowercase: bool = True, layers: int | None = None) -> Backbone:
    """Load model, adapter and tokenizer, merged and in evaluation mode. Raises ModelError.

    The tokenizer is the adapter's where it brings one, else the model's. Texts begin with the tokenizer's `bos_token`
    only where the tokenizer itself puts it before a text; the recipe's `bos_token` and `eos_token`, or else those that
    an adapter of our own was trained with, take the place of the tokenizer's. `centre_head` None does what the adapter
    was trained with. `layers` keeps only the model's first so many; None keeps as many as the adapter was trained on.
    """
    path, adapter = recipe.path, recipe.adapter
    target = choose_device(recipe.device)
    weights = choose_dtype(recipe.dtype, target)
    sources = [path] if adapter is None else [path, adapter]
    with loading(f"{path}: the model can't be used", *sources):
        brought = adapter_settings(adapter or path) if adapter or Path(path).is_dir() else {}
        layers = brought.get("layers") if layers is None else layers
        model = _load_causal_lm(path, weights, layers)
        folders = [local_folder(path)]
        if adapter is not None:
            model = _merge_adapter(model, adapter)
            folders.append(local_folder(adapter))
        theirs = _load_tokenizer([str(folder) for folder in reversed(folders)])
        tokenizer, content = text_tokenizer(theirs, path, lowercase=lowercase)
        first = theirs.bos_token if theirs.bos_token_id in theirs.encode("", add_special_tokens=True) else None
        bos_id = _token_id(tokenizer, recipe.bos_token or brought.get("bos_token") or first, path)
        eos_id = _token_id(tokenizer, recipe.eos_token or brought.get("eos_token") or theirs.eos_token, path)
        if eos_id is None:
            raise ModelError(f"{path}: the tokenizer names no end token.", remedy="Set model.eos_token in the recipe.")
        check_vocabulary(_embedding_rows(model), theirs.backend_tokenizer, {bos_id, eos_id}, path)
        centred = bool(brought.get("centre_head") if recipe.centre_head is None else recipe.centre_head)
        if centred:
            _centre_head_rows(model, tokenizer.vocab_size)
        model.eval().requires_grad_(False)
        torch.nn.Module.to(model, device=target, dtype=weights)
        model.get_decoder()(input_ids=torch.tensor([[eos_id]], device=target))  # that it reads is seen now
        parts = _adapter_parts(adapter or path, brought, model)
        frame = [bos_id, eos_id, weights, lowercase, brought.get("sparse_positions"), brought.get("pooling"), layers]
        frame += ["centred head"] if centred else []
        frame += [brought["attention"]] if brought.get("attention") else []
        identity = fingerprint(folders, tokenizer.sha256, *frame)
        name = name_of(path).removesuffix(GGUF)
        return Backbone(model, tokenizer, content, bos_id, eos_id, name, identity, **parts)


def _load_causal_lm(source: str, dtype: torch.dtype, layers: int | None) -> PreTrainedModel:
    """Load a decoder LLM with its LM head, with `layers` only the first so many of its layers.

    Raises ModelError when it can't be loaded, weights are missing, or it has fewer layers.
    """
    remedy = "Give a Hugging Face id, a directory with config.json and weights, or a .gguf file."
    folder, options = _gguf_options(source)
    with loading(f"{source}: the model can't be loaded", source, remedy=remedy):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, **options)
        if layers is not None:
            text = config.get_text_config()
            if layers > text.num_hidden_layers:
                raise ModelError(
                    f"layers is {layers}, but {source} has {text.num_hidden_layers}.",
                    remedy="Lower it, or leave it out.",
                )
            text.num_hidden_layers = layers
            if getattr(text, "layer_types", None):
                text.layer_types = text.layer_types[:layers]
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


def _merge_adapter(model: PreTrainedModel, adapter: str) -> PreTrainedModel:
    """Merge a PEFT adapter into `model`, one made for the causal LM or for its decoder alone (`AutoModel`). Raises
    ModelError when it can't be read or doesn't fit."""
    with importing("pipeline"):
        from peft import PeftModel, load_peft_weights
    whole = f"base_model.model.{model.base_model_prefix}."
    failed = f"{adapter}: the adapter can't be loaded onto {model.config.name_or_path}"
    remedy = "It must be a PEFT directory (adapter_config.json and weights) made for this base model."
    with loading(failed, adapter, remedy=remedy), warnings.catch_warnings():
        # peft only warns when the file holds none or not all of the weights that the adapter should have.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        is_whole = any(name.startswith(whole) for name in load_peft_weights(adapter, device="cpu"))
        merged = PeftModel.from_pretrained(model if is_whole else model.get_decoder(), adapter).merge_and_unload()
    return merged if is_whole else model  # the decoder is changed in place, inside the model


def _centre_head_rows(model: PreTrainedModel, rows: int) -> None:
    """Take the mean of the LM head's first `rows` rows off each of its rows; the embedding stays as it is.

    All logits of a position shift by the same amount, which the softmax doesn't see, but the ReLU of the sparse weights
    does: uncentred, an untrained model may give every term a positive weight.
    """
    head = cast(torch.nn.Linear, model.get_output_embeddings())
    weight = head.weight.detach().float()
    centred = (weight - weight[:rows].mean(dim=0)).to(head.weight.dtype)
    head.weight = torch.nn.Parameter(centred)  # a new one, as the old may be tied to the embedding


def _adapter_parts(adapter: str, brought: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """The fields of a backbone that an adapter of our own brings; nothing for one made elsewhere."""
    for name in ("bm25", "term_thresholds"):
        if brought.get(name) is not None:
            raise ModelError(
                f"{adapter}: was trained with {name}, which only older versions read.",
                remedy="Use the version that trained it, or train it again.",
            )
    if not brought:
        return {}
    parts = {"pooling": brought.get("pooling", "end"), "sparse_inner": brought.get("sparse_positions") == "inner"}
    parts["attention"] = brought.get("attention", "causal")
    if not brought.get("projection"):
        return parts
    file, size = adapter_file(adapter, PROJECTION_FILE), int(model.config.get_text_config().hidden_size)
    try:
        weight = load_file(file)["weight"]
        if weight.dim() != 2 or weight.shape[1] != size:
            raise ValueError(f"its shape is {tuple(weight.shape)}")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise ModelError(
            f"{file}: not a linear map of {size} dimensions: {error}", remedy="Fetch or train the adapter again."
        ) from error
    projection = torch.nn.Linear(size, len(weight), bias=False)
    projection.weight = torch.nn.Parameter(weight, requires_grad=False)
    return parts | {"projection": projection.to(model.device)}


def _load_tokenizer(folders: list[str]) -> Any:
    """The tokenizer of the first folder that has one."""
    with_tokenizer = [folder for folder in folders if (Path(folder) / "tokenizer_config.json").is_file()]
    source = with_tokenizer[0] if with_tokenizer else folders[-1]
    folder, options = _gguf_options(source)
    with loading(f"{source}: the tokenizer can't be loaded", source):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)


def _gguf_options(source: str) -> tuple[str | Path, dict[str, str]]:
    """The folder and the options by which transformers reads a model, or a `.gguf` file, whose weights it dequantises.
    Raises ModelError for a `.gguf` file that is not there."""
    if not source.endswith(GGUF):
        return source, {}
    file = Path(source)
    if not file.is_file():
        raise ModelError(f"{file}: no such GGUF file.", remedy="Give the path of the file.")
    return file.parent, {"gguf_file": file.name}


def _token_id(tokenizer: TextTokenizer, token: str | None, path: str) -> int | None:
    if token is None:
        return None
    token_id = tokenizer.token_id(token)
    if token_id is None:
        raise ModelError(f"{path}: the token {token!r} is not in the vocabulary.", remedy="Name one that is.")
    return token_id


def _embedding_rows(model: PreTrainedModel) -> int:
    return int(cast(torch.nn.Embedding, model.get_input_embeddings()).weight.shape[0])


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA where there is one. Raises ModelError for one that is not there."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise ModelError(f"device {name!r} is unknown to torch: {error}", remedy="Use cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {name!r}: torch finds no CUDA device.", remedy="Use --device cpu, or auto.")
    return device


def choose_dtype(dtype: ModelDtype, device: torch.device) -> torch.dtype:
    """The number type of the weights; "auto" is bfloat16 on CUDA and float32 elsewhere."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if dtype == "bfloat16" else torch.float32


def local_folder(source: str) -> Path:
    """Where a model's or adapter's files lie: the directory or `.gguf` file itself, or the hub's local snapshot."""
    return Path(source) if Path(source).exists() else Path(snapshot_download(source, local_files_only=True))


def software() -> str:
    """Versions of torch and transformers: other versions may round differently, so a run isn't continued with them."""
    return f"torch {version('torch')}, transformers {version('transformers')}"


def fingerprint(folders: Iterable[Path], *settings: object) -> str:
    """SHA-256 over the decisive files of `folders`, or over files such as a `.gguf`, and every setting that changes a
    vector."""
    digest = hashlib.sha256(json.dumps([str(setting) for setting in settings]).encode())
    for folder in folders:
        files = [[folder.name, file_sha256(folder)]] if folder.is_file() else hashes(folder, _DECISIVE)
        digest.update(json.dumps(files).encode())
    return digest.hexdigest()


def hashes(folder: Path, patterns: Iterable[str]) -> list[list[str]]:
    """Name and SHA-256 of the files in a folder that match any of the patterns, by name."""
    files = sorted({file for pattern in patterns for file in folder.glob(pattern)})
    return [[file.name, file_sha256(file)] for file in files]


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
    `[bos]` and `<eos>` take no part in sparse weights, else "all". Adapters of earlier versions also have `attention`,
    `layers`, `pooling`, and `projection`: dense vectors go through the linear map in PROJECTION_FILE.
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
