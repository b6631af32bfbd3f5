"""Any decoder LLM, ready to encode: a Hugging Face id or directory, optionally a PEFT adapter on it, or a GGUF file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import torch
from transformers import AutoTokenizer, PreTrainedModel

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.loading import check_vocabulary, loading, text_tokenizer
from lightretriever.artifacts.pipeline.recipe import ModelDtype, ModelRecipe, name_of
from lightretriever.artifacts.pipeline.weights import (
    GGUF,
    PROJECTION_FILE,
    adapter_file,
    adapter_settings,
    centre_head_rows,
    fingerprint,
    gguf_options,
    load_causal_lm,
    load_projection,
    local_folder,
    merge_adapter,
)
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

CHARS_PER_TOKEN: Final = 64
"""Of a text, so many characters are tokenised for each token that a document may have."""


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
        """The positions of framed texts, end exclusive, whose states make sparse weights.

        `skip` positions at the beginning are no part of the text (None: `[bos]`, where `sparse_inner` leaves it out).
        """
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
        # Tokens have far fewer characters on average, so this cuts only what `max_length` would cut anyway, and
        # a document of many megabytes isn't tokenised to its end.
        encoded = self.tokenizer.encode_batch([text[: CHARS_PER_TOKEN * max_length] for text in texts])
        return [self.frame(ids[:room].tolist()) for ids in encoded]

    def prefix(self) -> list[int]:
        """`[bos]`, or nothing for a model without one."""
        return [] if self.bos_id is None else [self.bos_id]


def load_model(recipe: ModelRecipe, *, lowercase: bool = True, layers: int | None = None) -> Backbone:
    """Load model, adapter and tokenizer, merged and in evaluation mode. Raises ModelError.

    The tokenizer is the adapter's where it brings one, else the
    model's; the recipe's `bos_token` and `eos_token` override what that says, and what an adapter of our own says it
    was trained with. Without them, texts begin with the tokenizer's `bos_token` only where the tokenizer itself puts it
    before a text. `dtype` "auto" is bfloat16 on CUDA and float32 on CPU. `centre_head` takes the mean row off the LM
    head (see `centre_head_rows`); None does so for an adapter that was trained this way. `layers` keeps only the
    model's first so many; None keeps as many as the adapter was trained on.
    """
    path, adapter = recipe.path, recipe.adapter
    target = choose_device(recipe.device)
    weights = choose_dtype(recipe.dtype, target)
    sources = [path] if adapter is None else [path, adapter]
    with loading(f"{path}: the model can't be used", *sources):
        brought = adapter_settings(adapter or path) if adapter or Path(path).is_dir() else {}
        layers = brought.get("layers") if layers is None else layers
        model = load_causal_lm(path, weights, layers)
        folders = [local_folder(path)]
        if adapter is not None:
            model = merge_adapter(model, adapter)
            folders.append(local_folder(adapter))
        theirs = _load_tokenizer([str(folder) for folder in reversed(folders)])
        tokenizer, content = text_tokenizer(theirs, path, lowercase=lowercase)
        wanted = recipe.bos_token or brought.get("bos_token"), recipe.eos_token or brought.get("eos_token")
        bos_id, eos_id = _ends(theirs, tokenizer, *wanted, path)
        check_vocabulary(_embedding_rows(model), theirs.backend_tokenizer, {bos_id, eos_id}, path)
        centred = bool(brought.get("centre_head") if recipe.centre_head is None else recipe.centre_head)
        if centred:
            centre_head_rows(model, tokenizer.vocab_size)
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


def _ends(
    theirs: Any, tokenizer: TextTokenizer, bos_token: str | None, eos_token: str | None, path: str
) -> tuple[int | None, int]:
    """The ids before and after a text, by default the tokenizer's own."""
    first = theirs.bos_token if theirs.bos_token_id in theirs.encode("", add_special_tokens=True) else None
    bos_id, eos_id = (
        _token_id(tokenizer, token, path) for token in (bos_token or first, eos_token or theirs.eos_token)
    )
    if eos_id is None:
        raise ModelError(f"{path}: the tokenizer names no end token.", remedy="Set model.eos_token in the recipe.")
    return bos_id, eos_id


def _adapter_parts(adapter: str, brought: dict[str, Any], model: PreTrainedModel) -> dict[str, Any]:
    """The fields of a backbone that an adapter of our own brings; nothing for one made elsewhere."""
    parts = dict[str, Any]()
    if brought:
        parts = {"pooling": brought.get("pooling", "end"), "sparse_inner": brought.get("sparse_positions") == "inner"}
        parts["attention"] = brought.get("attention", "causal")
    for name in ("bm25", "term_thresholds"):
        if brought.get(name) is not None:
            raise ModelError(
                f"{adapter}: was trained with {name}, which only older versions read.",
                remedy="Use the version that trained it, or train it again.",
            )
    if brought.get("projection"):
        size = int(model.config.get_text_config().hidden_size)
        parts["projection"] = load_projection(adapter_file(adapter, PROJECTION_FILE), size).to(model.device)
    return parts


def _load_tokenizer(folders: list[str]) -> Any:
    """The tokenizer of the first folder that has one."""
    with_tokenizer = [folder for folder in folders if (Path(folder) / "tokenizer_config.json").is_file()]
    source = with_tokenizer[0] if with_tokenizer else folders[-1]
    folder, options = gguf_options(source)
    with loading(f"{source}: the tokenizer can't be loaded", source):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **options)


def _token_id(tokenizer: TextTokenizer, token: str | None, path: str) -> int | None:
    if token is None:
        return None
    token_id = tokenizer.token_id(token)
    if token_id is None:
        raise ModelError(f"{path}: the token {token!r} is not in the vocabulary.", remedy="Name one that is.")
    return token_id


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


def _embedding_rows(model: PreTrainedModel) -> int:
    return int(cast(torch.nn.Embedding, model.get_input_embeddings()).weight.shape[0])
