"""research/models on files of the layout of a package, with tiny embeddings."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer

from research.models import static
from tests.support.tiny import tiny_documents, train_tokenizer


def test_a_text_is_the_mean_of_its_lowercased_tokens_rows(tmp_path: Path) -> None:
    package = tmp_path / "wordllama"
    for file in (static.WEIGHTS, static.TOKENIZER):
        (package / file).parent.mkdir(parents=True)
    train_tokenizer(package / static.TOKENIZER, [document.full_text for document in tiny_documents(40)])
    weights = torch.randn(450, 8, generator=torch.Generator().manual_seed(7)).half()
    save_file({"embedding.weight": weights}, package / static.WEIGHTS)
    assert static.main([str(package), str(tmp_path / "model")]) == 0
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=False)
    texts = ["plays music from the terminal", "scientific papers " * 400, "PLAYS Music FROM THE TERMINAL"]
    tokenizer = Tokenizer.from_file(str(package / static.TOKENIZER))
    rows = weights.float().numpy()
    expected = [rows[tokenizer.encode(text.lower(), add_special_tokens=False).ids].mean(axis=0) for text in texts]
    np.testing.assert_allclose(model.encode(texts, show_progress_bar=False), expected, atol=1e-6)
