"""A sentence-transformers bi-encoder: the teacher of a distilled token table, and what reads the documents."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.errors import BundleError, ModelError
from lightretriever.artifacts.pipeline.model import ModelDtype, choose_device, choose_dtype
from lightretriever.artifacts.pipeline.weights import LOAD_ERRORS, fingerprint, local_folder
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

__all__ = ["BiEncoder", "load_biencoder"]

_BATCH = 64


@dataclass(frozen=True)
class BiEncoder:
    """A bi-encoder ready to encode, with its own pooling, longest length and prompts.

    `tokenizer` is its tokenizer without special tokens, as a bundle will use it. `fingerprint` stands for weights,
    tokenizer, modules, prompts, number type and lowercasing.
    """

    model: SentenceTransformer
    tokenizer: TextTokenizer
    tokenizer_json: bytes
    name: str
    fingerprint: str

    @property
    def hidden_size(self) -> int:
        """H, the dimension of its vectors."""
        return int(self.model.get_embedding_dimension() or 0)

    @property
    def vocab_size(self) -> int:
        """V: the tokenizer's highest id + 1."""
        return self.tokenizer.vocab_size

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.model.device

    @property
    def longest(self) -> int | None:
        """How many tokens of a text it reads at most, special tokens included; None: all."""
        longest = self.model.max_seq_length
        return None if longest is None or math.isinf(longest) else int(longest)

    def count_cut(self, texts: Sequence[npt.NDArray[np.int32]]) -> int:
        """How many texts, given as token ids (n,) without special tokens, are longer than it reads."""
        if self.longest is None:
            return 0
        room = self.longest - self.model.tokenizer.num_special_tokens_to_add()
        return sum(len(ids) > room for ids in texts)

    def query_prompt(self, instruction: str) -> str:
        """What stands before a query: `instruction`, or where that is empty, the encoder's own query prompt, if any."""
        return instruction or self.model.prompts.get("query") or ""

    def encode_queries(self, texts: Sequence[str], instruction: str = "") -> npt.NDArray[np.float32]:
        """Vectors of queries by the whole encoder, (n, H) float32, L2-normalised. Raises ModelError (not finite)."""
        prompt = self.query_prompt(instruction)
        options: dict[str, Any] = {"prompt": prompt} if prompt else {}
        return self._unit(
            self.model.encode_query(
                list(texts), batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False, **options
            )
        )

    def encode_documents(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Vectors of documents, (n, H) float32, L2-normalised. Raises ModelError when one is not finite."""
        return self._unit(
            self.model.encode_document(
                list(texts), batch_size=_BATCH, normalize_embeddings=True, show_progress_bar=False
            )
        )

    def token_states(self, instruction: str = "", *, batch: int = 512) -> npt.NDArray[np.float32]:
        """What the encoder makes of each token by itself, behind the query prompt: (V, H) float32.

        Ids that the model has no embedding for (special tokens no text contains) get a row of zeros.
        """
        if isinstance(self.model[0], StaticEmbedding):  # its rows are what it makes of each token
            return self._finite(self.model[0].embedding.weight.detach().float().cpu().numpy()[: self.vocab_size])
        before, after = self._frame(self.query_prompt(instruction))
        transformer: Any = self.model[0]
        embedded = min(self.vocab_size, len(transformer.auto_model.get_input_embeddings().weight))
        rows = np.zeros((self.vocab_size, self.hidden_size), dtype=np.float32)
        with torch.inference_mode(), ProgressBar("token states", total=embedded, unit="tokens") as progress:
            for start in range(0, embedded, batch):
                framed = [[*before, token, *after] for token in range(start, min(start + batch, embedded))]
                ids = torch.tensor(framed, device=self.device)
                features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                rows[start : start + len(framed)] = self.model(features)["sentence_embedding"].float().cpu().numpy()
                progress.advance(len(framed))
        return self._finite(rows)

    def check_tokens(self, texts: Sequence[str]) -> None:
        """Raise ModelError for a text whose tokens for a query differ from those the encoder itself reads.

        Texts that hold the spelling of a special token are left out: only the encoder takes that for one.
        """
        static = isinstance(self.model.tokenizer, Tokenizer)
        special = _special_tokens(self.model.tokenizer)
        for text in texts:
            lowered = text.lower() if self.tokenizer.lowercase else text
            if any(token in lowered for token in special):
                continue
            theirs = (
                self.model.tokenizer.encode(lowered, add_special_tokens=False).ids
                if static
                else self.model.tokenizer(lowered, add_special_tokens=False, truncation=False, verbose=False)[
                    "input_ids"
                ]
            )
            ours = self.tokenizer.encode(text).tolist()
            if ours != list(theirs):
                place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
                raise ModelError(
                    f"{self.name}: the text {text[:80]!r} has, from token {place} on, the tokens "
                    f"{ours[place : place + 10]} in tokenizer.json, but {list(theirs)[place : place + 10]} for the "
                    "encoder.",
                    remedy="Save the encoder's tokenizer as a fast one (save_pretrained) and use that directory.",
                )

    def _frame(self, prompt: str) -> tuple[list[int], list[int]]:
        """The token ids before and after the text of a query, seen in a query of one letter."""
        probe = f"{prompt.rstrip()} a".strip()
        whole = list(self.model.tokenizer(probe, truncation=False)["input_ids"])
        inner = list(self.model.tokenizer(probe, add_special_tokens=False, truncation=False)["input_ids"])
        ends = [end for end in range(len(inner), len(whole) + 1) if whole[end - len(inner) : end] == inner]
        if not inner or not ends:
            raise ModelError(f"{self.name}: special tokens stand inside the text {probe!r}: {whole}.")
        return whole[: ends[0] - 1], whole[ends[0] :]

    def _unit(self, vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        rows = self._finite(np.asarray(vectors, dtype=np.float32))
        norms = np.linalg.norm(rows, axis=1, keepdims=True)  # of bfloat16 only nearly 1
        unit: npt.NDArray[np.float32] = rows / np.maximum(norms, 1e-12)
        return unit

    def _finite(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if not np.isfinite(rows).all():
            raise ModelError(f"{self.name}: a vector is not finite.", remedy="Set model.dtype to float32.")
        return rows


def load_biencoder(path: str, *, dtype: ModelDtype = "auto", device: str = "auto", lowercase: bool = True) -> BiEncoder:
    """Load a sentence-transformers model, a Hugging Face id or a directory, in evaluation mode.

    No code that it brings along is run. `dtype` "auto" is bfloat16 on CUDA and float32 on a CPU. Raises ModelError
    when it can't be loaded or has no fast tokenizer.
    """
    target = choose_device(device)
    weights = choose_dtype(dtype, target)
    try:
        model = SentenceTransformer(
            path, device=str(target), trust_remote_code=False, model_kwargs={"dtype": weights}
        ).eval()
    except LOAD_ERRORS as error:
        raise ModelError(
            f"{path}: the bi-encoder can't be loaded: {error}",
            remedy="Give a sentence-transformers directory or a Hugging Face id.",
        ) from error
    model.requires_grad_(False)
    # Static embeddings have the fast tokenizer alone.
    theirs: Any = model.tokenizer
    backend = theirs if isinstance(theirs, Tokenizer) else getattr(theirs, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(
            f"{path}: this bi-encoder has no fast tokenizer ({type(model.tokenizer).__name__}).",
            remedy="Convert it to a tokenizer.json first; the query path runs on it.",
        )
    content = backend.to_str(pretty=True).encode()
    try:
        tokenizer = TextTokenizer.from_bytes(content, name=f"{path}: tokenizer", lowercase=lowercase)
    except BundleError as error:
        raise ModelError(error.message) from error
    settings = (tokenizer.sha256, model.max_seq_length, json.dumps(model.prompts, sort_keys=True), weights, lowercase)
    identity = fingerprint(_folders(local_folder(path)), *settings)
    return BiEncoder(model, tokenizer, content, Path(path).name, identity)


def _folders(folder: Path) -> list[Path]:
    """The folder of the model and those of its modules (pooling, dense layers, …)."""
    listed = folder / "modules.json"
    modules = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    return list(dict.fromkeys([folder, *(folder / module["path"] for module in modules)]))


def _special_tokens(tokenizer: Any) -> list[str]:
    if isinstance(tokenizer, Tokenizer):
        return [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return [str(token) for token in tokenizer.all_special_tokens]
