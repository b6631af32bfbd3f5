"""research/models on files of the layouts of its packages, with tiny embeddings."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from research.models import granite, static
from tests.support.tiny import tiny_documents, train_tokenizer

HIDDEN, INNER, POSITIONS, GROUP = 64, 128, 20, 64
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "Ġa", "Ġb"]


def eight_bits(values: npt.NDArray[np.float32]) -> tuple[bytes, npt.NDArray[np.float32]]:
    """A matrix as int8 with a scale for each 64 values, and as it is to be read."""
    blocks = values.reshape(-1, GROUP)
    scales = (np.abs(blocks).max(axis=1) / 127).astype("<f4")
    whole = np.rint(blocks / scales[:, None]).astype(np.int8)
    return whole.tobytes() + scales.tobytes(), (whole * scales[:, None]).reshape(values.shape)


def tokenizer() -> bytes:
    found = Tokenizer(models.BPE({piece: number for number, piece in enumerate(PIECES)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.add_special_tokens([AddedToken(piece, special=True) for piece in PIECES[:5]])
    found.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return found.to_str().encode()


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, dict[str, npt.NDArray[np.float32]]]:
    """The file, and its tensors as they are to be read."""
    random, listed, content, read = np.random.default_rng(5), [], b"", {}
    shapes: dict[str, tuple[int, ...]] = {
        "word_emb": (len(PIECES), HIDDEN),
        "pos_emb": (POSITIONS, HIDDEN),
        "type_emb": (2, HIDDEN),
    }
    shapes |= {f"emb_ln.{letter}": (HIDDEN,) for letter in "wb"}
    matrices = (("qkv", 3 * HIDDEN, HIDDEN), ("ao", HIDDEN, HIDDEN), ("f1", INNER, HIDDEN), ("f2", HIDDEN, INNER))
    for name, out, width in matrices:
        shapes |= {f"l0.{name}.w": (out, width), f"l0.{name}.b": (out,)}
    shapes |= {f"l0.{norm}.{letter}": (HIDDEN,) for norm in ("aln", "fln") for letter in "wb"}
    for name, shape in shapes.items():
        values = random.normal(size=shape).astype("<f4")
        packed = name == "word_emb" or (name.startswith("l0") and len(shape) == 2)
        part, read[name] = eight_bits(values) if packed else (values.tobytes(), values)
        kind, group = ("i8", GROUP) if packed else ("f32", 0)
        listed.append({"name": name, "dtype": kind, "shape": shape, "len": len(part), "group": group})
        content += part
    sizes: dict[str, float] = {"hidden": HIDDEN, "layers": 1, "heads": 4, "intermediate": INNER, "vocab": len(PIECES)}
    sizes |= {"max_positions": POSITIONS, "type_vocab": 2, "layer_norm_eps": 1e-12}
    text = tokenizer()
    header = {"meta": {"max_length": 16}, "arch": sizes, "tokenizer_len": len(text), "tensors": listed}
    head = json.dumps(header).encode()
    file = tmp_path / "tiny.hmsemb"
    file.write_bytes(b"HMSEMB01" + struct.pack("<Q", len(head)) + head + text + content)
    return file, read


def test_weights_tokens_and_pooling_are_those_of_the_file(
    written: tuple[Path, dict[str, npt.NDArray[np.float32]]], tmp_path: Path
) -> None:
    file, read = written
    assert granite.main([str(file), str(tmp_path / "model")]) == 0
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=False)
    reads: Any = model[0]
    weights = {name: tensor.detach().numpy() for name, tensor in reads.auto_model.state_dict().items()}
    np.testing.assert_allclose(weights["embeddings.word_embeddings.weight"], read["word_emb"], atol=1e-6)
    layer = "encoder.layer.0."
    for number, name in enumerate(("query", "key", "value")):
        found = weights[f"{layer}attention.self.{name}.weight"]
        np.testing.assert_allclose(found, read["l0.qkv.w"][number * HIDDEN : (number + 1) * HIDDEN], atol=1e-6)
    np.testing.assert_allclose(weights[f"{layer}output.dense.weight"], read["l0.f2.w"], atol=1e-6)
    np.testing.assert_allclose(weights[f"{layer}output.LayerNorm.bias"], read["l0.fln.b"], atol=1e-6)
    assert reads.tokenizer("ab")["input_ids"] == [0, 5, 6, 2]
    assert model.max_seq_length == 16
    (vector,) = model.encode(["ab"], show_progress_bar=False)
    state = model[0](model.tokenize(["ab"]))["token_embeddings"][0, 0].detach().numpy()
    np.testing.assert_allclose(vector, state / np.linalg.norm(state), atol=1e-5)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "wordllama"
    for file in (static.WEIGHTS, static.TOKENIZER):
        (folder / file).parent.mkdir(parents=True)
    train_tokenizer(folder / static.TOKENIZER, [document.full_text for document in tiny_documents(40)])
    rows = torch.randn(450, 8, generator=torch.Generator().manual_seed(7)).half()
    save_file({"embedding.weight": rows}, folder / static.WEIGHTS)
    return folder


def test_a_text_is_the_mean_of_its_lowercased_tokens_rows(package: Path, tmp_path: Path) -> None:
    assert static.main([str(package), str(tmp_path / "model")]) == 0
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=False)
    texts = ["plays music from the terminal", "scientific papers " * 400, "PLAYS Music FROM THE TERMINAL"]
    tokenizer = Tokenizer.from_file(str(package / static.TOKENIZER))
    rows = torch.randn(450, 8, generator=torch.Generator().manual_seed(7)).half().float().numpy()
    expected = [rows[tokenizer.encode(text.lower(), add_special_tokens=False).ids].mean(axis=0) for text in texts]
    np.testing.assert_allclose(model.encode(texts, show_progress_bar=False), expected, atol=1e-6)
