"""Damaged models: whatever is wrong in a folder, loading it succeeds or ends in one line that names file and remedy."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from lightretriever.artifacts.errors import ModelError
from lightretriever.artifacts.pipeline.sentence_models import load_biencoder
from tests.support import models
from tests.support.biencoder import save_biencoder
from tests.support.models import save_model

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries, for strange values
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut": lambda content: content[: len(content) // 2],
    "pointer": lambda content: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "list": lambda content: b"[1]",
    "text": lambda content: b"\x00\xffno file of this kind",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("damaged")
    model = save_model(place / "model", "llama")
    wanted = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), wanted).save_pretrained(str(place / "adapter"))
    (place / "adapter" / "lightretriever.json").write_text(
        json.dumps({"centre_head": False, "layers": 2, "pooling": "end", "bos_token": None, "projection": True})
    )
    save_file({"weight": torch.ones(8, models.SHAPE["hidden_size"])}, place / "adapter" / "projection.safetensors")
    return {"model": model, "adapter": place / "adapter", "bi-encoder": save_biencoder(place / "bi")}


def outcome(folders: dict[str, Path], damaged: str) -> str:
    """What a build says that reads a folder first; nothing where it succeeds. No other error than ModelError is one."""
    told = None
    try:
        if damaged == "bi-encoder":
            load_biencoder(str(folders["bi-encoder"]), device="cpu").encode_queries(["music player"])
        else:
            adapter = str(folders["adapter"]) if damaged == "adapter" else None
            models.load(folders["model"], adapter=adapter).document_ids(["music"], 20)
    except ModelError as error:
        told = error
    assert told is None or (told.remedy and "\n" not in told.message)
    return str(told or "")


@pytest.mark.parametrize("damaged", ["model", "adapter", "bi-encoder"])
def test_damaged_files_end_in_one_line(folders: dict[str, Path], damaged: str) -> None:
    assert outcome(folders, damaged) == ""
    for file in sorted(folders[damaged].rglob("*")):
        if file.is_dir() or file.suffix == ".md":
            continue
        content = file.read_bytes()
        for name, damage in DAMAGES.items():
            file.write_bytes(damage(content))
            told = outcome(folders, damaged)
            if name in ("empty", "pointer") and told:
                assert file.name in told, (name, told)
        file.unlink()
        outcome(folders, damaged)
        file.write_bytes(content)


def test_a_pickle_is_no_model(folders: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(folders["model"], tmp_path / "model"))
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": test_a_pickle_is_no_model}))
    told = outcome({"model": place}, "model")
    assert told.startswith(f"{place}: the model can't be loaded: UnpicklingError: ")


@pytest.mark.parametrize("name", ["empty", "pointer", "text"])
def test_a_gguf_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(DAMAGES[name](b""))
    assert "tiny.gguf: the model can't be loaded" in outcome({"model": file}, "model")
    for length in range(4, 24, 3):  # cut in its header
        file.write_bytes((b"GGUF" + b"\x03\0\0\0" + b"\x01" * 16)[:length])
        assert "tiny.gguf: the model can't be loaded" in outcome({"model": file}, "model")
