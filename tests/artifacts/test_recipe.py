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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encode.top_k", 0),
        ("index.table_dtype", "fp8"),
        ("modle", {}),
        ("default_task", "other"),
        ("tasks", {"Bad Name!": "x"}),
        ("distil.learning_rate", math.inf),
        ("index.vocabulary", "letters"),
        ("index.language", "klingon"),
        ("index.b", 1.1),
        ("index", {"dense": False, "weights": {"dense": 1, "sparse": 1}}),
        ("expand", {"terms": 0}),
        ("tables", {"nobody": "table.pt"}),
        ("encode", {f"key{n}": n for n in range(1000)}),
    ],
)
def test_a_wrong_setting_names_key_value_and_remedy(path: Path, key: str, value: object) -> None:
    with raises(RecipeError, naming="recipe.yaml"):
        read_recipe(path, Recipe, {key: value})


@pytest.mark.parametrize("key", ["model", "sparse", "corpus", "head", "expand", "encode", "index", "distil"])
def test_a_section_with_nothing_in_it_has_its_defaults(path: Path, key: str) -> None:
    content = yaml.safe_dump({name: value for name, value in CONTENT.items() if name != key})
    path.write_text(f"{content}{key}:\n")
    if key in ("model", "sparse", "corpus", "head"):  # whose path or queries nothing else names
        with raises(RecipeError, naming=f"recipe.yaml: {key}."):
            read_recipe(path, Recipe)
    else:
        assert getattr(read_recipe(path, Recipe), key) == type(getattr(read_recipe(path, Recipe, {key: {}}), key))()


CORPUS = "corpus: {path: c.jsonl}\n"
MODEL = "model: {path: m}\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("kind: encoder\nmodel: all-MiniLM-L6-v2\ncorpus: c.jsonl\n", "(found 'all-MiniLM-L6-v2')"),
        (f"kind: encoder\nmodle: {{path: x}}\n{CORPUS}", "modle: there is no such key"),
        (f"kind: encoder\n{MODEL}{CORPUS}index: {{weights: [1, 1]}}\n", "index.weights: "),
        (f"{MODEL}{CORPUS}", "kind: Field required"),
        (f"kind: encoder\nmodel: {{path: m.gguf}}\n{CORPUS}", "model.path is m.gguf, a language model"),
        (f"kind: encoder\nmodel: {{path: causal}}\n{CORPUS}", "model.path is causal, a language model"),
        (f"kind: bert\n{MODEL}{CORPUS}", "kind: Input should be 'encoder' or 'language-model' (found 'bert')"),
        (
            f"kind: language-model\n{MODEL}{CORPUS}distil: {{vectors: v.npy}}\n",
            "distil.vectors are those of an encoder",
        ),
        (f"kind: language-model\n{MODEL}{CORPUS}index: {{positions: true}}\n", "set index.vocabulary to words"),
        (f"kind: language-model\n{MODEL}{CORPUS}encode: {{top_k: 40}}\nindex: {{top_k: 41}}\n", "index.top_k is 41"),
        (f"kind: encoder\n{MODEL}{CORPUS}index: {{vocabulary: tokens}}\nexpand: {{}}\n", "expand adds words"),
        (f"kind: encoder\nmodel: {{path: m, adapter: a}}\n{CORPUS}", "model.adapter can't be set for an encoder"),
        (f"kind: encoder\n{MODEL}{CORPUS}encode: {{max_length: 64}}\n", "encode.max_length can't be set"),
        (f"kind: encoder\n{MODEL}{CORPUS}distil: {{sentences: -1}}\n", "distil.sentences"),
    ],
)
def test_a_recipe_that_is_nearly_right_is_told_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("causal").mkdir()
    Path("causal", "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    Path("recipe.yaml").write_text(content)
    with raises(RecipeError, naming=told):
        read_recipe(Path("recipe.yaml"), Recipe)


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
