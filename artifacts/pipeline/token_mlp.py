"""Query vectors without the language model: a small MLP on its embedding layer, to compare with (the paper's A2)."""

from pathlib import Path

import torch
from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.files.workdir import write_atomically
from safetensors import SafetensorError
from safetensors.torch import load_file, save

__all__ = ["TOKEN_MLP_FILE", "TokenMlp", "load_token_mlp", "save_token_mlp"]

TOKEN_MLP_FILE = "token_mlp.safetensors"
_WIDTH = 4


class TokenMlp(torch.nn.Module):
    """e(t) = W2 · gelu(W1 · layernorm(embedding(t)) + b1) + b2, of 4 H inner dimensions. (n, H) → (n, H) float32."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(hidden_size, _WIDTH * hidden_size)
        self.down = torch.nn.Linear(_WIDTH * hidden_size, hidden_size)

    def forward(self, embedded: torch.Tensor) -> torch.Tensor:
        """Token vectors of embedded tokens."""
        even = torch.nn.functional.layer_norm(embedded.float(), embedded.shape[-1:])
        vectors: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(even)))
        return vectors


def save_token_mlp(file: Path, mlp: TokenMlp) -> None:
    """Write the MLP's weights, float32."""
    write_atomically(file, save({name: tensor.contiguous().cpu() for name, tensor in mlp.state_dict().items()}))


def load_token_mlp(file: Path, hidden_size: int) -> TokenMlp:
    """Read what `save_token_mlp` wrote, frozen. Raises ModelError when it isn't there or was made for another model."""
    mlp = TokenMlp(hidden_size)
    try:
        mlp.load_state_dict(load_file(file))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"{file}: not an MLP for {hidden_size} dimensions: {error}", remedy="Fetch or train the adapter again."
        ) from error
    return mlp.requires_grad_(False)
