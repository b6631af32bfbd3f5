"""SimHash against planted duplicates and a comparison of all with all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lightretriever.artifacts.training.simhash import content, nearest, simhash

QUERIES = [
    "What is the capital of the largest province of Canada?",
    "who founded the muslim brotherhood ?",
    "real-time strategy game of ancient warfare",
    "0-dimensional biomaterials show inductive properties.",
    "搜索引擎的短文档是什么",
    "How is the flow over a flat plate affected by the viscosity of the gas?",
]
LONG = " ".join(
    f"The {noun} of the {place} was described by several {people} after the {event} of the year."
    for noun, place, people, event in zip(
        ("bridge", "harbour", "library", "cathedral", "railway"),
        ("northern town", "old capital", "island", "valley", "university"),
        ("travellers", "merchants", "painters", "engineers", "historians"),
        ("great flood", "coronation", "expedition", "long winter", "revolution"),
        strict=True,
    )
)


def distance(one: str, other: str) -> int:
    hashes = simhash([one, other])
    return int(np.bitwise_count(hashes[0] ^ hashes[1]))


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    "edit",
    [
        str,
        str.upper,
        lambda text: f"  {text.rstrip('?. ')} !!",
        lambda text: text.replace(" ", " , "),
        lambda text: text.replace("-", " "),
        lambda text: f"the {text}",
        lambda text: text.replace("What is the", "What was").replace("How is the", "Why is a"),
    ],
    ids=["exact", "upper", "punctuation", "commas", "hyphens", "the", "function-words"],
)
def test_planted_duplicates_are_found(query: str, edit: object) -> None:
    edited = edit(query)  # type: ignore[operator]
    found = nearest(simhash([edited]), simhash(QUERIES), 3)
    assert found.tolist() == [QUERIES.index(query)]


def test_word_order_and_plurals_hardly_count() -> None:
    assert distance("real-time strategy game of ancient warfare", "ancient warfare: real-time strategy game") <= 3
    assert distance("strategy games of ancient warfare", "strategy game of ancient warfare") == 0
    assert content("Glass glasses") == "glass glasse"


def test_one_changed_word_is_found_in_a_long_query_only() -> None:
    """What the default distance can't do, and by how much."""
    assert distance(LONG, LONG.replace("harbour", "lighthouse")) <= 3
    assert 3 < distance(QUERIES[0], QUERIES[0].replace("Canada", "Australia")) <= 16


def test_unrelated_queries_are_far_apart() -> None:
    hashes = simhash([*QUERIES, LONG])
    distances = np.bitwise_count(hashes[:, None] ^ hashes[None, :])[np.triu_indices(len(hashes), k=1)]
    assert distances.min() > 12
    assert nearest(hashes[:3], hashes[3:], 12).tolist() == [-1, -1, -1]


def test_texts_without_words_differ_by_their_signs() -> None:
    assert distance("???", "???") == 0
    assert distance("???", "→ ☃ →") > 3


def test_hashes_are_the_same_everywhere_and_in_any_batch() -> None:
    many = [f"{query} {number}" for number in range(1000) for query in QUERIES]
    assert simhash(many)[-1] == simhash([many[-1]])[0]
    assert simhash([]).shape == (0,)
    assert [hex(value) for value in simhash(QUERIES[:2]).tolist()] == ["0xe1631a00a65ba668", "0xc1e95a6cbfa2f17f"]


def brute_force(hashes: np.ndarray, references: np.ndarray, most: int) -> list[int]:
    found = []
    for value in hashes:
        distances = np.bitwise_count(references ^ value).astype(int)
        place = int(distances.argmin()) if len(distances) else -1
        found.append(place if place >= 0 and distances[place] <= most else -1)
    return found


@given(data=st.data(), most=st.integers(0, 20))
def test_lookup_equals_brute_force(data: st.DataObject, most: int) -> None:
    number = st.integers(0, 2**64 - 1)
    references = data.draw(st.lists(number, max_size=20))
    flips = st.lists(st.integers(0, 63), max_size=most + 2).map(lambda bits: sum(1 << bit for bit in set(bits)))
    near = st.tuples(st.sampled_from(references or [0]), flips).map(lambda pair: pair[0] ^ pair[1])
    hashes = np.array(data.draw(st.lists(st.one_of(near, number), max_size=20)), np.uint64)
    others = np.array(references, np.uint64)
    assert nearest(hashes, others, most).tolist() == brute_force(hashes, others, most)


def test_lookup_among_many_equal_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.training.simhash._COMPARED", 700)
    random = np.random.default_rng(1)
    references = random.integers(0, 2**20, size=300).astype(np.uint64)  # the upper blocks are all alike
    hashes = np.concatenate([references[:50], random.integers(0, 2**20, size=100).astype(np.uint64)])
    assert nearest(hashes, references, 3).tolist() == brute_force(hashes, references, 3)


@pytest.mark.parametrize("most", [-1, 64])
def test_impossible_distances_are_refused(most: int) -> None:
    with pytest.raises(ValueError, match=rf"distance is {most}"):
        nearest(simhash(["one"]), simhash(["two"]), most)
