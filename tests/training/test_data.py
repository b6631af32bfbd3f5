"""Sets in BEIR layout prepared with a real Lucene, and compared with what was planted."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightretriever.artifacts.errors import CorpusError, RecipeError, ResumeError
from lightretriever.artifacts.training import data
from lightretriever.artifacts.training.data import MOST_POSITIVES, chosen, content, data_lines, data_report, write_texts
from lightretriever.artifacts.training.mixture import Example
from lightretriever.artifacts.training.recipe import ContrastiveStage, NegativesRecipe, TrainRecipe
from tests.support.wordings import raises

prepare = data.prepare
INSTRUMENTS = ("violin", "trumpet", "piano", "drum", "flute", "harp", "guitar", "cello", "oboe", "organ")
MAKERS = ("Amati", "Bach", "Cavaille", "Dowd", "Erard", "Fazioli", "Gagliano", "Hemsch", "Ibach", "Jacquot")
CORPUS = {
    f"{i}-{m}": {"title": f"{maker} {name}", "text": f"{maker} built this {name} and sold the instrument by himself"}
    for i, name in enumerate(INSTRUMENTS)
    for m, maker in enumerate(MAKERS)
}
QUERIES = {f"q{i}-{m}": f"which {i} did {m} sell" for i in INSTRUMENTS for m in MAKERS}
QRELS = {f"q{name}-{maker}": {f"{i}-{m}": 1} for i, name in enumerate(INSTRUMENTS) for m, maker in enumerate(MAKERS)}


def write_set(
    folder: Path,
    queries: dict[str, str] = QUERIES,
    corpus: dict[str, dict[str, str]] = CORPUS,
    **splits: dict[str, dict[str, int]],
) -> Path:
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, records in (("corpus", corpus), ("queries", {key: {"text": text} for key, text in queries.items()})):
        lines = [json.dumps({"_id": key, **record}) + "\n" for key, record in records.items()]
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    for split, qrels in splits.items():
        rows = [f"{query}\t{name}\t{grade}\n" for query, grades in qrels.items() for name, grade in grades.items()]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder


def recipe(work: Path, *sets: dict[str, Any], seed: int = 0, **settings: Any) -> TrainRecipe:
    content: dict[str, Any] = {"name": "test", "model": {"path": "none"}, "work": work, "output": work / "output"}
    content["data"] = {"sets": [{"instruction": "find it", **one} for one in sets], **settings}
    stage = {"kind": "contrastive", "steps": 1, "negatives": 0}
    return TrainRecipe.model_validate({**content, "seed": seed, "stages": [stage]})


@pytest.fixture
def music(tmp_path: Path) -> Path:
    """A set with a relevant document for every query."""
    return write_set(tmp_path / "music", train=QRELS)


BM25 = {"depth": 30, "count": 5, "margin": 0.95}


def test_a_set_is_read_with_its_negatives(music: Path, tmp_path: Path) -> None:
    [one] = prepare(recipe(tmp_path / "work", {"path": music}, negatives=BM25))
    assert (one.name, one.instructions, one.weight) == ("music", ("find it",), 100.0)
    assert {example.query_id: {example.positive: 1} for example in one.examples} == QRELS
    for example in one.examples:
        instrument, maker = example.positive.split("-")
        assert len(example.negatives) == 5
        # A hard negative shares the instrument or the maker; both at once has the positive alone.
        assert all(
            sum(a == b for a, b in zip(name.split("-"), (instrument, maker), strict=True)) == 1
            for name in example.negatives
        )
    assert one.documents["0-0"] == "Amati violin Amati built this violin and sold the instrument by himself"
    [report] = data_report(recipe(tmp_path / "work", {"path": music}))
    assert report["pairs"] == report["kept"] == 100
    assert report["without_negatives"] == 0


def test_titles_are_dropped_for_the_documents_and_for_bm25(tmp_path: Path) -> None:
    corpus = {
        "a": {"title": "Zither", "text": "has strings"},
        "b": {"title": "", "text": "a zither, not a harp, lute or drum"},
        "c": {"title": "Only a title", "text": ""},
    }
    train = {"q1": {"a": 1}, "q2": {"c": 1, "nowhere": 1}, "nobody": {"a": 1}}
    folder = write_set(tmp_path / "titles", {"q1": "zither", "q2": "title"}, corpus, train=train)
    whole = recipe(tmp_path / "whole", {"path": folder})
    [one] = prepare(whole)
    assert [example.positive for example in one.examples] == ["a", "c"]
    assert data_report(whole)[0]["without_text"] == 2
    [one] = prepare(recipe(tmp_path / "cut", {"path": folder, "drop_title": True}))
    assert one.documents == {"a": "has strings", "b": "a zither, not a harp, lute or drum"}


def test_decontamination_finds_what_was_planted(music: Path, tmp_path: Path) -> None:
    planted = {
        "p1": "Which VIOLIN did Amati sell?!",  # case and punctuation
        "p2": "what piano does the Cavaille sell",  # function words
        "p3": "trumpet Bach sell",  # function words dropped
        "p4": "the melting point of tungsten in vacuum",
    }
    first = write_set(tmp_path / "first", planted, test={"p4": {"0-0": 1}})  # p1 to p3 are not even judged
    second = write_set(tmp_path / "second", {"x": planted["p1"]}, test={"x": {"0-0": 1}})
    settings = recipe(tmp_path / "work", {"path": music}, decontaminate={"against": [first, second]})
    [one] = prepare(settings)
    gone = QUERIES.keys() - {example.query_id for example in one.examples}
    assert gone == {"qviolin-Amati", "qpiano-Cavaille", "qtrumpet-Bach"}
    [report] = data_report(settings)
    assert report["near_duplicates"] == 3
    heads, counts = (re.split(r"\s{2,}", line) for line in data_lines([report]))
    assert dict(zip(heads, counts, strict=True))["near duplicates"] == "3"


ASKED = [
    "What is the capital of the largest province of Canada?",
    "who founded the muslim brotherhood ?",
    "real-time strategy game of ancient warfare",
    "0-dimensional biomaterials show inductive properties.",
    "搜索引擎的短文档是什么",
    "How is the flow over a flat plate affected by the viscosity of the gas?",
]
EDITS: list[Callable[[str], str]] = [
    str.upper,
    lambda text: f"  {text.rstrip('?. ')} !!",
    lambda text: text.replace(" ", " , "),
    lambda text: text.replace("-", " "),
    lambda text: f"the {text}",
    lambda text: text.replace("What is the", "What was").replace("How is the", "Why is a"),
    lambda text: " ".join(reversed(text.replace("?", " ").split())),
]


@pytest.mark.parametrize("edit", EDITS)
def test_planted_duplicates_are_found(edit: Callable[[str], str]) -> None:
    assert [content(edit(query)) for query in ASKED] == [content(query) for query in ASKED]
    assert len({content(query) for query in ASKED}) == len(ASKED)


def test_plurals_do_not_count_and_other_words_and_signs_do() -> None:
    assert content("strategy games of ancient warfare") == content("strategy game of ancient warfare")
    assert content("Glass glasses") == "glass glasse"
    assert content(ASKED[0]) != content(ASKED[0].replace("Canada", "Australia"))
    assert content("???") == content("???") != content("→ ☃ →")
    assert content("who is it") != content("what was that")


def test_a_set_that_is_evaluated_too_is_cleaned_of_its_other_splits(tmp_path: Path) -> None:
    names = list(QUERIES)
    train, test = {name: QRELS[name] for name in names[:60]}, {name: QRELS[name] for name in names[50:]}
    queries = QUERIES | {names[70]: QUERIES[names[3]].upper()}  # a test query that is a training query, too
    folder = write_set(tmp_path / "music", queries, train=train, test=test)
    settings = recipe(tmp_path / "work", {"path": folder}, decontaminate={"against": [folder]})
    [one] = prepare(settings)
    kept = [example.query_id for example in one.examples]
    assert kept == [name for name in names[:50] if name != names[3]]


def test_relevant_documents_and_twins_are_no_negatives(tmp_path: Path) -> None:
    corpus = CORPUS | {"twin": {"title": "AMATI violin", "text": CORPUS["0-0"]["text"] + " "}}
    qrels = QRELS | {"qviolin-Amati": {"0-0": 1, "0-1": 2, "0-9": 0}, "again": {"0-2": 1}}
    queries = QUERIES | {"again": "Which violin did AMATI sell"}
    folder = write_set(tmp_path / "music", queries, corpus, train=qrels)
    [one] = prepare(recipe(tmp_path / "work", {"path": folder}, negatives=BM25 | {"count": 30, "margin": 2.0}))
    examples = {(example.query_id, example.positive): example for example in one.examples}
    keys = [("qviolin-Amati", "0-1"), ("qviolin-Amati", "0-0"), ("again", "0-2")]
    assert [key for key in examples if key[0] in ("qviolin-Amati", "again")] == keys
    for key in keys:
        negatives = examples[key].negatives
        assert not {"0-0", "0-1", "0-2", "twin"} & set(negatives)
        assert "0-9" in negatives


def test_a_query_gives_at_most_a_few_examples(tmp_path: Path) -> None:
    grades = {f"0-{m}": 1 + (m == 7) for m in range(10)}
    folder = write_set(tmp_path / "music", train={"qviolin-Amati": grades, "qpiano-Bach": {"2-1": 1}})
    settings = recipe(tmp_path / "work", {"path": folder}, negatives=BM25 | {"count": 30, "margin": 9.0})
    [one] = prepare(settings)
    assert [example.positive for example in one.examples] == ["0-7", "0-0", "0-1", "0-2", "2-1"]
    assert len(one.examples) == MOST_POSITIVES + 1
    assert not any(name.startswith("0-") for name in one.examples[0].negatives)
    [report] = data_report(settings)
    assert report["beyond_positives"] == 6
    parts = ("without_text", "beyond_positives", "near_duplicates", "not_drawn", "kept")
    assert report["pairs"] == sum(report[part] for part in parts)


def test_the_margin_leaves_out_what_may_well_be_relevant() -> None:
    example = Example("q", "Query", "good")
    hits = [("above", 12.0), ("good", 10.0), ("close", 9.6), ("at", 9.5), ("below", 9.0), ("same", 8.0), ("low", 1.0)]
    documents = {"good": "a", "above": "b", "close": "c", "at": "d", "below": "e", "same": "E ", "low": "f"}

    def picked(hits: list[tuple[str, float]], **settings: Any) -> list[str]:
        [one] = chosen([example], {"Query": hits}, documents, {"query": {"good"}}, NegativesRecipe(**settings))
        return list(one.negatives)

    assert picked(hits, margin=0.95) == ["at", "below", "low"]
    assert picked(hits, margin=0.95, count=1) == ["at"]
    assert picked(hits[:4], margin=1.5) == ["above", "close", "at"]
    assert picked(hits[:1]) == []


def test_the_limit_is_drawn_by_the_seed(music: Path, tmp_path: Path) -> None:
    drawn = {}
    for place, (seed, name) in enumerate([(1, "music"), (1, "music"), (2, "music"), (1, "other")]):
        one = {"path": music, "limit": 20, "name": name}
        [made] = prepare(recipe(tmp_path / f"work{place}", one, seed=seed))
        drawn[place] = [example.query_id for example in made.examples]
        assert drawn[place] == [name for name in QRELS if name in drawn[place]]
        assert len(drawn[place]) == 20
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != drawn[3]


def test_a_second_call_reuses_and_a_changed_setting_is_refused(music: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    left = work / "data" / "music" / "words-0a1b2c3d" / "lucene"  # by a run that was killed
    left.mkdir(parents=True)
    (left / "segments_1").touch()
    first = prepare(recipe(work, {"path": music}, negatives=BM25))
    examples = work / "data" / "music" / "examples.json"
    kept = {"plan.json", "examples.json", "report.json", "texts.sqlite"}
    assert {file.name for file in examples.parent.iterdir()} == kept
    stamp = examples.stat().st_mtime_ns
    assert prepare(recipe(work, {"path": music, "weight": 7}, seed=9, negatives=BM25))[0].examples == first[0].examples
    assert examples.stat().st_mtime_ns == stamp
    for changed in (
        recipe(work, {"path": music}, negatives=BM25 | {"margin": 0.5}),
        recipe(work, {"path": music, "limit": 5}, negatives=BM25),
        recipe(work, {"path": music}, negatives=BM25, decontaminate={"against": [music]}),
    ):
        with raises(ResumeError):
            prepare(changed)
    (examples.parent / "report.json").unlink()  # as if it had not been finished: other settings may be given
    [one] = prepare(recipe(work, {"path": music, "limit": 5}))
    assert len(one.examples) == 5
    examples.write_text(examples.read_text()[:-1])
    with raises(ResumeError, naming="examples.json"):
        prepare(recipe(work, {"path": music, "limit": 5}))
    write_set(tmp_path / "music", QUERIES | {"new": "a new query"}, train=QRELS)
    with raises(ResumeError, naming="queries"):
        prepare(recipe(work, {"path": music, "limit": 5}))


def test_bad_inputs_are_named(music: Path, tmp_path: Path) -> None:
    other_names = tmp_path / "other.jsonl"
    other_names.write_text('{"query_id": "q", "query": "violin", "pos": ["Amati"]}\n')
    cases: list[tuple[dict[str, Any], dict[str, Any], type[Exception]]] = [
        ({"path": other_names}, {}, RecipeError),
        ({"path": music, "split": "dev"}, {}, CorpusError),
        ({"path": tmp_path / "nowhere"}, {}, CorpusError),
        ({"path": music}, {"decontaminate": {"against": [tmp_path]}}, CorpusError),
    ]
    for one, settings, error in cases:
        with raises(error):
            prepare(recipe(tmp_path / "work", one, **settings))
    with raises(ValidationError, naming="data.sets.0.name"):
        recipe(tmp_path / "work", {"path": music, "name": "../up"})
    with raises(ResumeError):
        data_report(recipe(tmp_path / "none", {"path": music}))


def lines_of_authors(file: Path, **more: Any) -> Path:
    """A set as the papers' authors publish it: every fourth query, with two hard negatives, one of them relevant."""
    lines = []
    for number, (name, query) in enumerate(list(QUERIES.items())[::4]):
        (positive,) = QRELS[name]
        passages = [{"docid": key, **CORPUS[key]} for key in (positive, "9-9", "8-8")]
        line = {"query_id": number, "query": query, "positive_passages": passages[:1], "negative_passages": passages}
        lines.append(json.dumps(line | more) + "\n")
    file.write_text("".join(lines))
    return file


def test_the_authors_own_files_are_read_as_they_are(tmp_path: Path) -> None:
    file = lines_of_authors(tmp_path / "music.jsonl")
    settings = recipe(tmp_path / "work", {"path": file, "instruction": ["find it", "look for it"]})
    [one] = prepare(settings)
    assert (one.name, one.instructions) == ("music", ("find it", "look for it"))
    assert [example.query_id for example in one.examples] == [str(number) for number in range(25)]
    for example, (name, query) in zip(one.examples, list(QUERIES.items())[::4], strict=True):
        (positive,) = QRELS[name]
        assert (example.query, example.positive) == (query, positive)
        assert list(example.negatives) == [key for key in ("9-9", "8-8") if key != positive]
    assert one.documents["9-9"] == "Jacquot organ Jacquot built this organ and sold the instrument by himself"
    assert len(one.documents) == 25 + len({"9-9", "8-8"} - {example.positive for example in one.examples})
    assert prepare(settings)[0].examples == one.examples
    unnamed: dict[str, Any] = {"query_id": "q", "query": "zither", "positive_passages": [{"text": "has strings"}]}
    unnamed["negative_passages"] = [{"text": "a drum"}]
    (tmp_path / "short.jsonl").write_text(json.dumps(unnamed) + "\n")
    [short] = prepare(recipe(tmp_path / "short", {"path": tmp_path / "short.jsonl"}))
    assert list(short.documents.values()) == ["has strings", "a drum"]


@pytest.mark.parametrize("name", ["negatives.tsv", "negatives.jsonl"])
def test_hard_negatives_come_from_a_file(music: Path, tmp_path: Path, name: str) -> None:
    """Without those that are relevant, have a relevant one's text, come twice or aren't there."""
    file, wanted = tmp_path / name, ["0-0", "5-5", "nowhere", "5-5", "7-7"]
    if name.endswith("tsv"):
        file.write_text("".join(f"qviolin-Amati\t{key}\t0.7\n" for key in wanted))
    else:
        passages = [{"docid": key, "text": "not read"} for key in wanted]
        file.write_text(json.dumps({"query_id": "qviolin-Amati", "negative_passages": passages}) + "\n")
    settings = recipe(tmp_path / "work", {"path": music, "negatives": file})
    [one] = prepare(settings)
    given = {example.query_id: example.negatives for example in one.examples if example.negatives}
    assert given == {"qviolin-Amati": ("5-5", "7-7")}
    assert data_report(settings)[0]["without_negatives"] == 99


@pytest.mark.parametrize("lines", ["", "qviolin-Amatis\t5-5\n", "qviolin-Amati\tnowhere\n"])
def test_a_file_of_negatives_that_are_none_of_the_set_is_named(music: Path, tmp_path: Path, lines: str) -> None:
    (tmp_path / "negatives.tsv").write_text(lines)
    settings = recipe(tmp_path / "work", {"path": music, "negatives": tmp_path / "negatives.tsv"})
    prepare(settings)  # no stage wants any
    stage = ContrastiveStage(kind="contrastive", steps=1, negatives=2)
    with raises(CorpusError, naming="negatives.tsv"):
        prepare(settings.model_copy(update={"stages": [stage], "work": tmp_path / "other"}))


@pytest.mark.parametrize("own", [False, True])
def test_pairs_whose_positive_is_not_among_the_first_are_left_out(tmp_path: Path, own: bool) -> None:
    """Also of a set with a file of hard negatives."""
    far = {"qviolin-Amati": {"5-5": 1}, "qpiano-Bach": {"2-1": 1}}
    one_set = {"path": write_set(tmp_path / "music", train=far)}
    if own:
        (tmp_path / "negatives.tsv").write_text("qpiano-Bach\t7-7\n")
        one_set["negatives"] = tmp_path / "negatives.tsv"
    kept = {}
    for top in (None, 10):
        settings = recipe(tmp_path / f"work{top}", one_set, negatives=BM25 | {"depth": 100, "top": top})
        [one] = prepare(settings)
        assert (one.examples[-1].negatives == ("7-7",)) == own
        kept[top] = [example.query_id for example in one.examples]
        [report] = data_report(settings)
        assert report["inconsistent"] == 2 - len(one.examples)
        assert report["pairs"] == report["kept"] + report["inconsistent"]
    assert kept == {None: ["qviolin-Amati", "qpiano-Bach"], 10: ["qpiano-Bach"]}


@pytest.mark.parametrize(
    "line",
    [
        '{"query_id": "q", "query": " ", "positive_passages": [{"docid": "d", "text": "t"}]}',
        '{"query_id": "0", "query": "twice", "positive_passages": [{"docid": "d", "text": "t"}]}',
        '{"query_id": "q", "query": "other text", "positive_passages": [{"docid": "9-9", "text": "another"}]}',
        '{"query": "no id"}',
        '{"query_id": "q", "query": "x", "positive_passages": [{"docid": "d"}]}',
        '{"query_id": "q", "query": "x", "positive_passages": null}',
        "no JSON",
    ],
)
def test_bad_lines_of_authors_are_named(tmp_path: Path, line: str) -> None:
    file = lines_of_authors(tmp_path / "music.jsonl")
    file.write_text(file.read_text() + line + "\n")
    with raises(CorpusError, naming=f"{file}, line 26: "):
        prepare(recipe(tmp_path / "work", {"path": file}))


def test_texts_are_mapped_from_disk_and_written_once(tmp_path: Path) -> None:
    texts = {f"doc {number}": "é" * (number % 7) + str(number) for number in range(500)} | {"": "", "ü": "naïve"}
    written = write_texts(tmp_path / "texts.sqlite", texts.items())
    assert dict(written) == texts
    assert list(written) == list(texts)
    assert len(written) == len(texts)
    assert "nobody" not in written
    with pytest.raises(KeyError):
        written["nobody"]
    assert dict(write_texts(tmp_path / "texts.sqlite", iter([("other", "text")]))) == texts  # not read again
    assert dict(write_texts(tmp_path / "none.sqlite", iter([]))) == {}
