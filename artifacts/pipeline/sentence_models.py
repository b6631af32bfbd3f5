"""Models of sentence-transformers: bi-encoders, one or several, and SparseEncoders for the sparse leg beside one.

A bi-encoder is the teacher of a distilled token table, and reads the documents. An asymmetric one (a Router) has other
modules for queries; the tokens and the table are theirs. Of several that read the same text the vectors stand side by
side, so that the cosine of two texts is the mean of their cosines:

    v = (v_1, …, v_n) / √n,  so that  v(q) · v(d) = Σ_j v_j(q) · v_j(d) / n

Queries have the tokens of the first one. Its table has rows for all of them, fitted to the joint vectors, so that a
query costs no more tokens than with one encoder.

A SparseEncoder is a masked language model with SPLADE pooling, or a Router with a route for queries. Where that route
is a `SparseStaticEmbedding`, as in OpenSearch's doc-v3 models, its weights are what the tokens of a query weigh; else
each weighs its count. The library counts a token once, however often a query has it; here it counts as often.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding
from sentence_transformers.util import truncate_embeddings
from tokenizers import Tokenizer

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder, StatesOf, TextModel
from lightretriever.artifacts.pipeline.language_model import quantise_top_k
from lightretriever.artifacts.pipeline.loading import (
    check_vocabulary,
    cut_at_longest,
    library_class,
    loading,
    longer_than,
    module_folders,
    route,
    text_tokenizer,
)
from lightretriever.artifacts.pipeline.model import choose_device, choose_dtype, fingerprint, hashes, local_folder
from lightretriever.artifacts.pipeline.recipe import BESIDE, EncodeRecipe, ModelDtype, ModelRecipe, name_of
from lightretriever.artifacts.pipeline.rows import ImpactRow
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

_BATCH: Final = 64
_SPARSE_BATCH: Final = 32
_MIN_WEIGHT: Final = np.float32(1e-6)
_READING: Final = ("tokenizer.json", "sentence_bert_config.json")
"""Files of its modules that decide how a text is read, beside the tokenizer of queries."""


@dataclass(frozen=True)
class BiEncoder(Encoder):
    """A bi-encoder ready to encode, with its own pooling, longest length and prompts."""

    model: SentenceTransformer

    @property
    def _reads(self) -> Any:
        """The module that reads a query."""
        return route(self.model, "query")[0]

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each text has more tokens than it reads, special ones included."""
        return longer_than(self.longest, route(self.model, "document")[0], texts)

    def query_prompt(self, instruction: str) -> str:
        """What stands before a query: `instruction`, or where that is empty, the encoder's own query prompt, if any."""
        return instruction or self.model.prompts.get("query") or ""

    def encode_queries(self, texts: Sequence[str], instruction: str = "") -> Encoded:
        """Vectors of queries by the whole encoder, (n, H). Raises ModelError for one that is not finite."""
        prompt = self.query_prompt(instruction)
        options = {"prompt": prompt} if prompt else {}
        return self._encoded(texts, self.model.encode_query, {"batch_size": _BATCH, **options})

    @property
    def one_by_one(self) -> bool:
        """True if the encoder reads each document by itself. Means of static rows never depend on the texts beside."""
        return super().one_by_one and not isinstance(route(self.model, "document")[0], StaticEmbedding)

    def encode_documents(self, texts: Sequence[str]) -> Encoded:
        """Vectors of documents, (n, H). Raises ModelError for one that is not finite."""
        size = 1 if self.one_by_one else _BATCH
        return self._encoded(texts, self.model.encode_document, {"batch_size": size})

    def token_states(self, instruction: str = "") -> StatesOf:
        """Encode single tokens behind the query prompt: ids (n,) → states (n, H).

        Of static embeddings, whose table is there already, it gives the rows through the modules behind. `Normalize` at
        the end is left out: the direction stays, and the mean of a query's rows weighs each by its length, as the
        encoder does.
        """
        if isinstance(self._reads, StaticEmbedding):
            rows, modules = _embedding(self.model), route(self.model, "query")[1:]
            while modules and isinstance(modules[-1], Normalize):
                modules.pop()
            return lambda tokens: self._vectors(modules, {"sentence_embedding": rows[tokens.to(rows.device)]})
        prompt = self.query_prompt(instruction)
        before, after = self.frame(prompt)
        framed = self._reads.preprocess(["a"], prompt=prompt) if prompt else {}
        # Some poolings leave the prompt out, and have to know how long it is.
        pooled = {name: framed[name] for name in ("prompt_length",) if name in framed}

        def states_of(tokens: torch.Tensor) -> torch.Tensor:
            ids = torch.tensor([[*before, token, *after] for token in tokens.tolist()], device=self.device)
            features = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pooled}
            return self._vectors(route(self.model, "query"), features)

        return states_of

    def _vectors(self, modules: Sequence[Any], features: dict[str, Any]) -> torch.Tensor:
        """The vectors (n, H) that modules make of features, one after the other, cut as the model's `truncate_dim`
        says."""
        for module in modules:
            features = module(features)
        vectors: torch.Tensor = truncate_embeddings(features["sentence_embedding"], self.model.truncate_dim)
        return vectors

    def _ids(self, text: str) -> list[int]:
        """The token ids that the encoder itself reads in a query, without special ones."""
        return list(self._reads.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])

    def frame(self, prompt: str) -> tuple[list[int], list[int]]:
        """The token ids before and after the text of a query, seen in a query of one word."""
        read: Any = self._reads.tokenizer
        for word in self.tokenizer.single_words() or ["a"]:
            probe = f"{prompt.rstrip()} {word}".strip()
            whole = list(read(probe, truncation=False)["input_ids"])
            inner, alone = self._ids(probe), self._ids(word)
            behind = self.tokenizer.query_ids(word, appended=True)  # its tokens inside a text
            word_ids = next((ids for ids in (behind, alone) if ids and inner[-len(ids) :] == ids), None)
            ends = [end for end in range(len(inner), len(whole) + 1) if whole[end - len(inner) : end] == inner]
            if word_ids is not None and ends:
                return whole[: ends[0] - len(word_ids)], whole[ends[0] :]
        raise ModelError(
            f"{self.name}: special tokens stand inside the text {probe!r}: {whole}.",
            remedy="Use a model whose tokenizer puts special tokens before and after a text alone.",
        )

    def _encoded(self, texts: Sequence[str], encode: Callable[..., Any], options: dict[str, Any]) -> Encoded:
        vectors = encode(list(texts), normalize_embeddings=True, show_progress_bar=False, **options)
        rows = np.asarray(vectors, dtype=np.float32)
        if not np.isfinite(rows).all():
            raise ModelError(f"{self.name}: a vector is not finite.", remedy="Set model.dtype to float32.")
        norms = np.linalg.norm(rows, axis=1, keepdims=True)  # of bfloat16 only nearly 1
        return Encoded(rows / np.maximum(norms, 1e-12))


def load_biencoder(path: str, *, dtype: ModelDtype = "auto", device: str = "auto", lowercase: bool = True) -> BiEncoder:
    """Load a sentence-transformers model, a Hugging Face id or a directory, in evaluation mode.

    No code that it brings along is run. `dtype` "auto" is bfloat16 on CUDA and float32 on a CPU. Raises ModelError
    when it can't be loaded or has no fast tokenizer.
    """
    target = choose_device(device)
    weights = choose_dtype(dtype, target)
    remedy = "Give a sentence-transformers directory or a Hugging Face id."
    with loading(f"{path}: the bi-encoder can't be loaded", path, remedy=remedy):
        if library_class(path) == "SparseEncoder":
            raise ModelError(
                f"{path}: is a SparseEncoder, which has no dense vectors.",
                remedy="Name it as sparse.path, and a model with dense vectors as model.path.",
            )
        model = SentenceTransformer(
            path, device=str(target), trust_remote_code=False, model_kwargs={"dtype": weights}
        ).eval()
        model.requires_grad_(False)
        theirs: Any = route(model, "query")[0].tokenizer
        tokenizer, content = text_tokenizer(theirs, path, lowercase=lowercase)  # before a call leaves padding in it
        rows = _embedding(model)
        _check_vocabulary(theirs, len(rows), path)
        included = all(getattr(module, "include_prompt", True) for module in model)
        special = [] if included else ["prompt left out of tokens"]
        special += [] if model.truncate_dim is None else [f"truncate_dim {model.truncate_dim}"]
        read_by = [hashes(folder, _READING) for folder in module_folders(local_folder(path))]
        encoder = BiEncoder(
            **_text_model(path, model, tokenizer, content, weights, lowercase, *special, *read_by),
            hidden_size=int(model.get_embedding_dimension() or 0),
            embedded=min(tokenizer.vocab_size, len(rows)),
            model=model,
        )
        try:
            read, asked = (len(encode(["a"]).dense[0]) for encode in (encoder.encode_documents, encoder.encode_queries))
        except KeyError as error:
            if error.args != ("sentence_embedding",):
                raise
            raise ModelError(
                f"{path}: has a vector for each token and none for a text, as no module of it pools them.",
                remedy="Name a model with a pooling module. Late interaction (ColBERT) is not supported.",
            ) from error
        if read != asked:
            raise ModelError(
                f"{path}: vectors of documents have {read} values, those of queries {asked}.",
                remedy="Fetch or save the model again.",
            )
        return encoder


def _text_model(
    path: str, model: Any, tokenizer: TextTokenizer, content: bytes, dtype: torch.dtype, lowercase: bool, *settings: Any
) -> dict[str, Any]:
    """The fields of a `TextModel`. From now on its modules cut texts at what they can read."""
    asked, read = (route(model, task)[0] for task in ("query", "document"))
    stated = read.max_seq_length
    cut_at_longest(path, asked, read)
    longest = read.max_seq_length
    prompts = json.dumps([model.prompts, model.default_prompt_name], sort_keys=True)
    parts = (tokenizer.sha256, stated, prompts, dtype, lowercase, *settings)
    return {
        "name": name_of(path),
        "fingerprint": fingerprint(module_folders(local_folder(path)), *parts),
        "tokenizer": tokenizer,
        "tokenizer_json": content,
        "device": model.device,
        "longest": None if longest is None or math.isinf(longest) else int(longest),
    }


def _embedding(model: SentenceTransformer) -> torch.Tensor:
    """The rows of its embedding layer."""
    first = route(model, "query")[0]
    layer = first.embedding if isinstance(first, StaticEmbedding) else first.auto_model.get_input_embeddings()
    weight: torch.Tensor = layer.weight
    return weight


def _check_vocabulary(theirs: Any, rows: int, path: str) -> None:
    """Compare the ids of its tokenizer with the rows of its embedding. Raises ModelError.

    The encoder takes the spelling of a special token for that token; not so where one has no row.
    """
    if isinstance(theirs, Tokenizer):  # static embeddings have the fast tokenizer alone
        theirs.encode_special_tokens = check_vocabulary(rows, theirs, (), path)
        return
    framing = {*theirs("")["input_ids"], theirs.pad_token_id, theirs.unk_token_id}
    beyond = check_vocabulary(rows, theirs.backend_tokenizer, framing, path)
    theirs.split_special_tokens = beyond or theirs.split_special_tokens


@dataclass(frozen=True)
class JointEncoder(Encoder):
    """Bi-encoders `members`, in order. `tokenizer` and `longest` are the first one's."""

    members: tuple[BiEncoder, ...]

    @property
    def one_by_one(self) -> bool:
        """True if a member reads each document by itself."""
        return any(member.one_by_one for member in self.members)

    def encode_documents(self, texts: Sequence[str]) -> Encoded:
        """Vectors of documents, (n, H). Raises ModelError for one that is not finite."""
        return Encoded(_joined([member.encode_documents(texts).dense for member in self.members]))

    def encode_queries(self, texts: Sequence[str], instruction: str = "") -> Encoded:
        """Vectors of whole queries, (n, H), each encoder's behind its own prompt where `instruction` is empty. Raises
        ModelError for one that is not finite."""
        return Encoded(_joined([member.encode_queries(texts, instruction).dense for member in self.members]))

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each text is longer than one of them reads."""
        return [any(cut) for cut in zip(*(member.are_cut(texts) for member in self.members), strict=True)]

    def token_states(self, instruction: str = "") -> StatesOf:
        """The first one reads a token, the others its letters as a query: ids (n,) → states (n, H)."""
        first, *others = self.members
        states_of = first.token_states(instruction)

        def joint(tokens: torch.Tensor) -> torch.Tensor:
            letters = [self.tokenizer.spelt(token) for token in tokens.numpy().astype(np.int32)[:, None]]
            parts = [torch.nn.functional.normalize(states_of(tokens).float(), dim=1).cpu().numpy()]
            parts += [other.encode_queries(letters, instruction).dense for other in others]
            return torch.from_numpy(_joined(parts))

        return joint


def load_biencoders(
    path: str, *, dtype: ModelDtype = "auto", device: str = "auto", lowercase: bool = True
) -> BiEncoder | JointEncoder:
    """Load the sentence-transformers model at `path`, or those of several paths joined by " + ", see `load_biencoder`.
    Raises ModelError."""
    paths = [part.strip() for part in path.split(BESIDE)]
    if not all(paths):
        raise ModelError(
            f"{path!r} names no encoder beside a plus sign.", remedy="Give the path of a folder on each side of it."
        )
    members = tuple(load_biencoder(path, dtype=dtype, device=device, lowercase=lowercase) for path in paths)
    if len(members) == 1:
        return members[0]
    shared = ("tokenizer", "tokenizer_json", "device", "embedded", "longest")
    return JointEncoder(
        name=BESIDE.join(member.name for member in members),
        fingerprint=sha256(" ".join(member.fingerprint for member in members).encode()).hexdigest(),
        **{name: getattr(members[0], name) for name in shared},
        hidden_size=sum(member.hidden_size for member in members),
        members=members,
    )


def _joined(parts: Sequence[Float32Array]) -> Float32Array:
    """Vectors (n, H_j) of length 1, side by side, (n, Σ H_j) of length 1."""
    vectors: Float32Array = np.concatenate(parts, axis=1) / np.float32(np.sqrt(len(parts)))
    return vectors


@dataclass(frozen=True)
class SparseModel(TextModel):
    """A SparseEncoder ready to encode.

    `weights` (V,) float32 are what the tokens of a query weigh, above 0; None where they weigh their count.
    """

    model: SparseEncoder
    settings: EncodeRecipe
    weights: Float32Array | None

    def encode_impacts(self, texts: Sequence[str]) -> list[ImpactRow]:
        """Impacts of documents, the highest `top_k` of each. Raises ModelError for weights that are not finite."""
        rows: list[ImpactRow] = []
        batch = 1 if self.one_by_one else _SPARSE_BATCH
        for start in range(0, len(texts), _SPARSE_BATCH):
            part = list(texts[start : start + _SPARSE_BATCH])
            weights = self.model.encode_document(
                part, batch_size=batch, convert_to_sparse_tensor=False, show_progress_bar=False
            )
            if not bool(torch.isfinite(weights).all()):
                raise ModelError(f"{self.name}: a weight is not finite.", remedy="Set sparse.dtype to float32.")
            rows += quantise_top_k(weights.float(), self.settings.top_k)
        return rows

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """True if each document has more tokens than it reads, special ones included."""
        return longer_than(self.longest, route(self.model, "document")[0], texts)


def load_sparse_model(recipe: ModelRecipe, settings: EncodeRecipe) -> SparseModel:
    """Load a SparseEncoder, a Hugging Face id or a directory, in evaluation mode.

    No code that it brings along is run. Raises ModelError when it can't be loaded, has no fast tokenizer, another
    tokenizer for queries than for documents, or weights below 0 for queries.
    """
    path, target = recipe.path, choose_device(recipe.device)
    dtype = choose_dtype(recipe.dtype, target)
    with loading(f"{path}: the SparseEncoder can't be loaded", path):
        if (kind := library_class(path)) not in (None, "SparseEncoder"):
            raise ModelError(f"{path}: is no SparseEncoder, but a {kind}.", remedy="Name it as model.path.")
        model = SparseEncoder(path, device=str(target), trust_remote_code=False, model_kwargs={"dtype": dtype})
        asked, read = (route(model, task)[0] for task in ("query", "document"))
        if asked.tokenizer.get_vocab() != read.tokenizer.get_vocab():
            raise ModelError(
                f"{path}: queries and documents have different tokenizers, so their terms are others.",
                remedy="Fetch or save the model again.",
            )
        tokenizer, content = text_tokenizer(asked.tokenizer, path, lowercase=settings.lowercase)
        size = model.encode_document(["a"], convert_to_sparse_tensor=False, show_progress_bar=False).shape[1]
        if tokenizer.vocab_size > size:
            raise ModelError(
                f"{path}: the tokenizer has {tokenizer.vocab_size} ids, but the model weighs {size} terms.",
                remedy="Use the tokenizer the model was trained with.",
            )
        weights = (
            _positive(asked.weight, tokenizer.vocab_size, path) if isinstance(asked, SparseStaticEmbedding) else None
        )
        kept = [None if weights is None else sha256(weights.tobytes()).hexdigest()]
        kept += [] if model.max_active_dims is None else [f"max_active_dims {model.max_active_dims}"]
        shared = _text_model(path, model, tokenizer, content, dtype, settings.lowercase, *kept)
        return SparseModel(**shared, model=model, settings=settings, weights=weights)


def _positive(weight: torch.Tensor, vocab_size: int, path: str) -> Float32Array:
    """Weights (V,) of a query's tokens. Those of 0 become too small to matter, as a bundle has none of 0."""
    weights: Float32Array = weight.detach().float().cpu().numpy()[:vocab_size]
    bad = np.flatnonzero(~(weights >= 0) | np.isinf(weights))
    if len(bad):
        raise ModelError(
            f"{path}: token {bad[0]} of a query weighs {weights[bad[0]]:g}, expected a number from 0 on.",
            remedy="Fetch or save the model again.",
        )
    return np.maximum(weights, _MIN_WEIGHT)
