"""Several bi-encoders that read the same text, their vectors side by side: the cosine of two texts is the mean of their
cosines.

    v = (v_1, …, v_n) / √n,  so that  v(q) · v(d) = Σ_j v_j(q) · v_j(d) / n

Queries have the tokens of the first one. Its table has rows for all of them, fitted to the joint vectors, so that a
query costs no more tokens than with one encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.biencoder import BiEncoder, load_biencoder
from lightretriever.artifacts.pipeline.encoder import Encoded, Encoder, StatesOf
from lightretriever.artifacts.pipeline.model import ModelDtype
from lightretriever.artifacts.pipeline.recipe import BESIDE
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["JointEncoder", "load_biencoders"]


@dataclass(frozen=True)
class JointEncoder(Encoder):
    """Bi-encoders `members`, in order. `tokenizer` and `longest` are the first one's."""

    members: tuple[BiEncoder, ...]

    def encode_documents(self, texts: Sequence[str], *, progress: ProgressBar | None = None) -> Encoded:
        """Vectors of documents, (n, H). Raises ModelError for one that is not finite."""
        first, *others = self.members
        parts = [first.encode_documents(texts, progress=progress), *(one.encode_documents(texts) for one in others)]
        return Encoded(_joined([part.dense for part in parts]))

    def encode_queries(
        self, texts: Sequence[str], instruction: str = "", *, progress: ProgressBar | None = None
    ) -> Encoded:
        """Vectors of whole queries, (n, H), each encoder's behind its own prompt where `instruction` is empty. Raises
        ModelError for one that is not finite."""
        first, *others = self.members
        parts = [first.encode_queries(texts, instruction, progress=progress)]
        parts += [one.encode_queries(texts, instruction) for one in others]
        return Encoded(_joined([part.dense for part in parts]))

    def are_cut(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text is longer than one of them reads."""
        return [any(cut) for cut in zip(*(one.are_cut(texts) for one in self.members), strict=True)]

    def token_states(self, instruction: str = "") -> StatesOf:
        """The first one reads a token, the others its letters as a query: ids (n,) → states (n, H)."""
        first, *others = self.members
        states_of = first.token_states(instruction)

        def joint(tokens: torch.Tensor) -> torch.Tensor:
            letters = [self.tokenizer.spelt(one) for one in tokens.numpy().astype(np.int32)[:, None]]
            parts = [torch.nn.functional.normalize(states_of(tokens).float(), dim=1).cpu().numpy()]
            parts += [one.encode_queries(letters, instruction).dense for one in others]
            return torch.from_numpy(_joined(parts))

        return joint

    def check_tokens(self, texts: Sequence[str]) -> None:
        """Raise ModelError for a text whose tokens are not those that the first one reads."""
        self.members[0].check_tokens(texts)


def load_biencoders(
    path: str, *, dtype: ModelDtype = "auto", device: str = "auto", lowercase: bool = True
) -> BiEncoder | JointEncoder:
    """Load the sentence-transformers model at `path`, or those of several paths joined by " + ", see `load_biencoder`.
    Raises ModelError."""
    paths = [one.strip() for one in path.split(BESIDE)]
    if not all(paths):
        raise ModelError(
            f"{path!r} names no encoder beside a plus sign.", remedy="Give the path of a folder on each side of it."
        )
    members = tuple(load_biencoder(one, dtype=dtype, device=device, lowercase=lowercase) for one in paths)
    if len(members) == 1:
        return members[0]
    shared = ("tokenizer", "tokenizer_json", "device", "embedded", "longest")
    return JointEncoder(
        name=BESIDE.join(one.name for one in members),
        fingerprint=sha256(" ".join(one.fingerprint for one in members).encode()).hexdigest(),
        **{name: getattr(members[0], name) for name in shared},
        hidden_size=sum(one.hidden_size for one in members),
        members=members,
    )


def _joined(parts: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Vectors (n, H_j) of length 1, side by side, (n, Σ H_j) of length 1."""
    found: npt.NDArray[np.float32] = np.concatenate(parts, axis=1) / np.float32(np.sqrt(len(parts)))
    return found
