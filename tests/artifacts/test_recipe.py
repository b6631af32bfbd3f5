import math
import os
from pathlib import Path

import pytest
import yaml

from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.recipe import GeneralTableRecipe, Recipe, read_recipe
from lightretriever.artifacts.training.recipe import TrainRecipe
from lightretriever.service.errors import SettingsError
from lightretriever.service.settings import load_settings
from tests.support.wordings import raises

CONTENT = {
    "name": "r",
    "kind": "language-model",
    "model": {"path": "m"},
    "corpus": {"path": "c", "name": "c"},
    "tasks": {"web": "Find it"},
    "default_task": "web",
    "work": "w",
    "output": "o",
}
SHIPPED = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(CONTENT))
    return tmp_path / "recipe.yaml"


def test_options_override_the_file_and_none_does_not(path: Path) -> None:
    recipe = read_recipe(path, Recipe, {"model.path": "other", "corpus.limit": 5, "model.adapter": None, "work": None})
    assert (recipe.model.path, recipe.corpus.limit, recipe.model.adapter) == ("other", 5, None)
    assert recipe.work == Path("w")
    assert recipe.index.table_dtype == "float16"


ENCODER = {"kind": "encoder"}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"encode.top_k": 0}, "encode.top_k"),
        ({"index.table_dtype": "fp8"}, "index.table_dtype"),
        ({"modle": {}}, "modle: there is no such key"),
        ({"default_task": "other"}, "other"),
        ({"tasks": {"Bad Name!": "x"}}, "Bad Name!"),
        ({"distil.learning_rate": math.inf}, "distil.learning_rate"),
        ({"index.vocabulary": "letters"}, "index.vocabulary"),
        ({"index.language": "klingon"}, "index.language"),
        ({"index.b": 1.1}, "index.b"),
        ({"index": {"dense": False, "weights": {"dense": 1, "sparse": 1}}}, "index"),
        ({"index": {"weights": [1, 1]}}, "index.weights: "),
        ({"expand": {"terms": 0}}, "terms: "),
        ({"tables": {"nobody": "table.pt"}}, "nobody"),
        ({"encode": {f"key{n}": n for n in range(1000)}}, "encode.key0"),
        ({"kind": "bert"}, "kind: Input should be 'encoder' or 'language-model' (found 'bert')"),
        ({"distil": {"vectors": "v.npy"}}, "distil.vectors are those of an encoder"),
        ({"index": {"positions": True}}, "set index.vocabulary to words"),
        ({"encode": {"top_k": 40}, "index": {"top_k": 41}}, "index.top_k is 41"),
        (ENCODER | {"model": "all-MiniLM-L6-v2"}, "(found 'all-MiniLM-L6-v2')"),
        (ENCODER | {"model.path": "m.gguf"}, "model.path is m.gguf, a language model"),
        (ENCODER | {"model.path": "causal"}, "model.path is causal, a language model"),
        (ENCODER | {"index": {"vocabulary": "tokens"}, "expand": {}}, "expand adds words"),
        (ENCODER | {"model.adapter": "a"}, "model.adapter can't be set for an encoder"),
        (ENCODER | {"encode": {"max_length": 64}}, "encode.max_length can't be set"),
        (ENCODER | {"distil": {"sentences": -1}}, "distil.sentences"),
    ],
)
def test_a_wrong_setting_names_key_value_and_remedy(
    path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], told: str
) -> None:
    monkeypatch.chdir(path.parent)
    Path("causal").mkdir()
    Path("causal", "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with raises(RecipeError, naming=told):
        read_recipe(path, Recipe, settings)


@pytest.mark.parametrize("key", ["kind", "model", "sparse", "corpus", "head", "expand", "encode", "index", "distil"])
def test_a_section_with_nothing_in_it_has_its_defaults(path: Path, key: str) -> None:
    content = yaml.safe_dump({name: value for name, value in CONTENT.items() if name != key})
    path.write_text(f"{content}{key}:\n")
    if key in ("kind", "model", "sparse", "corpus", "head"):  # whose path or queries nothing else names
        with raises(RecipeError, naming=f"recipe.yaml: {key}"):
            read_recipe(path, Recipe)
    else:
        assert getattr(read_recipe(path, Recipe), key) == type(getattr(read_recipe(path, Recipe, {key: {}}), key))()


@pytest.mark.parametrize("adapter", [None, "adapter"])
def test_a_language_model_may_have_been_saved_as_an_encoder(path: Path, tmp_path: Path, adapter: str | None) -> None:
    (tmp_path / "modules.json").write_text("[]")
    if adapter is None:
        (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    for kind in ("encoder", "language-model") if adapter is None else ("language-model",):
        found = read_recipe(path, Recipe, {"kind": kind, "model.path": str(tmp_path), "model.adapter": adapter})
        assert (found.kind, found.model.trained) == (kind, kind == "encoder")


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    "content",
    [
        BOMB,
        "a: &a [*a]",
        "a: " + "[" * 3_000 + "]" * 3_000,
        "name: r\nwork: w\nname: s",
        "a: &a {b: 1}\nc: {<<: *a}",
        "a: 2024-13-45",
        "a: 1\n" + "#" * (1 << 20),
        *("- 1", "a: [", "\udcff"),
    ],
)
def test_a_recipe_that_costs_or_loses_something_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.yaml").write_bytes(os.fsencode(content))
    with raises(RecipeError, naming="r.yaml"):
        read_recipe(tmp_path / "r.yaml", Recipe)
    with raises(SettingsError, naming="r.yaml"):
        load_settings(tmp_path / "r.yaml")


def test_a_pipe_a_folder_and_nothing_are_no_recipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "none.yaml"):
        with raises(RecipeError):
            read_recipe(tmp_path / name, Recipe)
        with raises(SettingsError):
            load_settings(tmp_path / name)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_recipe_is_valid(shipped: Path) -> None:
    if shipped.name.startswith("train-"):
        assert read_recipe(shipped, TrainRecipe).stages
    elif shipped.name.startswith("table-"):
        assert read_recipe(shipped, GeneralTableRecipe).texts
    else:
        assert read_recipe(shipped, Recipe).tasks


def test_a_tilde_is_the_home_directory_in_every_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    values = {"model.path": "~/a + ~/b", "corpus.path": "~/c", "work": "~/w", "output": "~/o"}
    recipe = read_recipe(path, Recipe, {**values, "index.queries": "~/q", "tasks": {"web": "~/ is the home directory"}})
    assert recipe.model.path == "/home/someone/a + /home/someone/b"
    assert recipe.corpus.path == "/home/someone/c"
    assert [recipe.work, recipe.output, recipe.index.queries] == [Path("/home/someone", name) for name in "woq"]
    assert recipe.tasks == {"web": "~/ is the home directory"}
    assert read_recipe(path, Recipe, {"work": "~no-such-user/w"}).work == Path("~no-such-user/w")


@pytest.mark.parametrize("work", ["o", "o/work", "./x/../o/work"])
def test_a_work_directory_inside_the_output_is_refused(path: Path, work: str) -> None:
    with raises(RecipeError, naming="recipe.yaml"):
        read_recipe(path, Recipe, {"work": work})
    assert read_recipe(path, Recipe, {"work": "w", "output": "w/o"}).output == Path("w/o")


def test_a_folder_has_its_name_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop" / "inner").mkdir(parents=True)
    for place, corpus in (("shop", "."), ("shop", "./"), ("shop/inner", ".."), (".", "shop/"), (".", "shop/inner/..")):
        monkeypatch.chdir(tmp_path / place)
        (tmp_path / "r.yaml").write_text(
            yaml.safe_dump({"kind": "encoder", "model": {"path": "m"}, "corpus": {"path": corpus}})
        )
        assert read_recipe(tmp_path / "r.yaml", Recipe).work == Path("runs/shop/work")
