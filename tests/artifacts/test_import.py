"""Corpora of tables: files that pyarrow, csv and zstd wrote."""

import bz2
import csv
import datetime
import gzip
import json
import lzma
import sys
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightretriever.artifacts.cli.runner import ErrorObject
from lightretriever.artifacts.corpus.beir import Corpus
from lightretriever.artifacts.corpus.columns import Columns, write_row_corpus
from lightretriever.artifacts.corpus.output import CorpusSummary
from lightretriever.artifacts.corpus.rows import table_files
from lightretriever.artifacts.errors import CorpusError
from tests.support.commands import Done, run_command
from tests.support.wordings import raises

ROWS: list[dict[str, Any]] = [
    {"sku": "007", "name": "Tent", "about": 'Light.\nTwo "people".', "price": 149.5, "tags": ["a", "b"]},
    {"sku": "T-2", "name": "Kettle; für Tee", "about": "Tea, coffee.\tHot.", "price": 65, "tags": []},
]
SHOP = Columns(id="sku", title="name", text=("about",))
WANTED = [
    {"_id": row["sku"], "title": row["name"], "text": row["about"], "price": row["price"], "tags": row["tags"]}
    for row in ROWS
]
PLAIN = [{name: value for name, value in row.items() if name != "tags"} for row in WANTED]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a table is to be written."""
    return tmp_path / "table"


@pytest.fixture
def no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user may have pyarrow alone."""
    monkeypatch.setitem(sys.modules, "pandas", None)


def corpus(*arguments: str | Path) -> Done:
    return run_command("corpus", *arguments)


def imported(source: Path, columns: Columns = SHOP, *, skip_bad: bool = False) -> tuple[list[Any], CorpusSummary]:
    """The documents that a build reads, and the counts."""
    output = source.parent / f"{source.name}.corpus.jsonl.gz"
    found = table_files(source)
    assert found is not None
    written = write_row_corpus(source, found[0], output, columns, skip_bad=skip_bad, overwrite=True)
    documents = [json.loads(document.raw) for document in Corpus(output)]
    assert len(documents) == written.documents
    return documents, written


def refused(source: Path, columns: Columns = SHOP) -> str:
    with pytest.raises(CorpusError) as caught:
        imported(source, columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def parquet(path: Path, rows: Any = ROWS, **options: Any) -> Path:
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path, **options)
    return path


def stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return path


def table_of(name: str, values: Any, kind: Any = None) -> pa.Table:
    """A column beside ids and texts."""
    column = pa.array(values, kind)
    numbers = [str(number) for number in range(len(column))]
    return pa.table({"_id": numbers, "text": numbers, name: column})


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_parquet(tmp_path: Path, compression: str) -> None:
    documents, written = imported(parquet(tmp_path / "no-ending", compression=compression, row_group_size=1))
    assert documents == WANTED
    assert (written.documents, written.rows, written.texts, written.numbered) == (2, 2, 1, False)


def test_arrow_files_and_streams(tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(tmp_path / "file"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert imported(tmp_path / "file")[0] == WANTED
    assert imported(stream(tmp_path / "stream", table))[0] == WANTED


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv(path: Path, delimiter: str, encoding: str) -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        rows = [["sku", "name", "about", "price"], *([*row.values()][:4] for row in ROWS)]
        csv.writer(file, delimiter=delimiter).writerows(rows)
    texts = [{**row, "price": str(row["price"])} for row in PLAIN]
    assert imported(path)[0] == texts
    assert imported(path, Columns(id="sku", title="name", text=("about",), number=("price",)))[0] == PLAIN


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5))
def test_what_csv_writes_is_read(rows: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "other"), *((f"x{text}", other) for text, other in rows)])
        documents, _ = imported(path, Columns())
    assert [(one["text"], one.get("other", "")) for one in documents] == [(f"x{text}", other) for text, other in rows]
    assert [one["_id"] for one in documents] == [str(number) for number in range(1, len(rows) + 1)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("array", [True, False])
def test_json(path: Path, indent: int | None, array: bool) -> None:
    text = json.dumps(ROWS, indent=indent) if array else "\n".join(json.dumps(row, indent=indent) for row in ROWS)
    path.write_text(f"\ufeff{text}\n")
    assert imported(path)[0] == WANTED


def test_a_json_array_is_read_piece_by_piece(tmp_path: Path) -> None:
    rows = [{"_id": str(number), "text": "ü" * (number * 997 % 300_000 + 1)} for number in range(40)]
    path = tmp_path / "large.json"
    path.write_text(json.dumps(rows, ensure_ascii=False))
    assert imported(path, Columns())[0] == [{"title": "", **row} for row in rows]


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as file:
        file.write(content)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_packed_texts(tmp_path: Path, pack: Any) -> None:
    first, second = (json.dumps(row).encode() + b"\n" for row in ROWS)
    path = tmp_path / "shop"
    path.write_bytes(pack(first) + pack(second))  # two frames are one text
    assert imported(path)[0] == WANTED
    path.write_bytes(pack(json.dumps(ROWS).encode()))
    assert imported(path)[0] == WANTED
    path.write_bytes(pack(b"sku,name,about\n1,A,B\n"))
    assert imported(path)[0] == [{"_id": "1", "title": "A", "text": "B"}]
    path.write_bytes(pack(b"".join(json.dumps({"sku": number}).encode() for number in range(9_999)))[:-9])
    assert "shop: can't be read: " in refused(path) or "column" in refused(path)
    path.write_bytes(pack(b"PAR1\0\0"))
    assert "this is Parquet packed by" in refused(path)


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for number, row in enumerate(ROWS):
        stream(folder / f"data-{number:05}-of-00002.arrow", pa.Table.from_pylist([row]))
    stream(folder / "cache-0123456789abcdef.arrow", pa.Table.from_pylist([{"cached": 1}]))
    (folder / "dataset_info.json").write_text("{}")
    files = [{"filename": f"data-{number:05}-of-00002.arrow"} for number in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "0", "_split": "train"}))
    documents, written = imported(folder)
    assert (documents, written.texts) == (WANTED, 2)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with raises(CorpusError):
        table_files(tmp_path)


def test_a_folder_of_shards_is_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in (1, 0):
        parquet(tmp_path / f"blob{number}", [{"text": f"text {number}"}])
        (folder / f"train-{number}.parquet").symlink_to(f"../blob{number}")  # as Hugging Face's cache has them
    (folder / "README.md").write_text("# About")
    found = table_files(folder)
    assert found == ([folder / "train-0.parquet", folder / "train-1.parquet"], 1)
    documents, written = imported(folder, Columns())
    assert [(one["_id"], one["text"]) for one in documents] == [("1", "text 0"), ("2", "text 1")]
    assert written.numbered


@pytest.mark.parametrize("name", ["state.json", "dataset_dict.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"_data_files": 1}', '{"splits": []}'])
def test_a_folder_of_texts_remains_one(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "a.md").write_text("text")
    assert table_files(tmp_path) is None


def test_texts_are_joined_and_columns_dropped(path: Path) -> None:
    rows = [{"a": "One", "b": None, "c": b"\x89PNG", "d": None}, {"a": "", "b": "two", "c": b"", "d": 5}]
    columns = Columns(text=("a", "b"), drop=("c",))
    documents, written = imported(parquet(path, rows), columns)
    assert documents == [{"_id": "1", "title": "", "text": "One"}, {"_id": "2", "title": "", "text": "two", "d": 5}]
    assert written.dropped == ["c"]


UTC = datetime.UTC
EPOCH = "1970-01-01T00:00:01"
MOMENT = datetime.datetime(2024, 5, 31, 12, 30, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "kind", "found"),
    [
        ([MOMENT.date()], pa.date32(), "2024-05-31"),
        ([MOMENT], pa.timestamp("ns", tz="Europe/Berlin"), "2024-05-31T12:30:00.500000+00:00"),
        ([MOMENT.replace(tzinfo=None)], pa.timestamp("ms"), "2024-05-31T12:30:00.500000"),
        ([1_717_158_600_500_000_001], pa.timestamp("ns"), "2024-05-31T12:30:00.500000"),
        ([Decimal("19.90")], pa.decimal128(9, 2), 19.9),
        ([Decimal("20.00")], pa.decimal128(9, 2), 20),
        ([2**64 - 1], pa.uint64(), 2**64 - 1),
        ([True], None, True),
        ([float("nan")], None, None),
        ([None], pa.string(), None),
        (pa.array(["a", "b", "a"]).dictionary_encode(), None, "a"),
        ([["a", None]], pa.large_list(pa.large_string()), ["a", None]),
        ([{"a": {"b": [1]}}], None, {"a": {"b": [1]}}),
        ([[("k", MOMENT.date())]], pa.map_(pa.string(), pa.date32()), {"k": "2024-05-31"}),
        ([0.1], pa.float32(), 0.1),
        ([1e20], pa.float32(), 1e20),
        ([0.1], pa.float64(), 0.1),
        (np.array([12.99], np.float16), pa.float16(), 12.99),
        ([[0.1, None]], pa.list_(pa.float32()), [0.1, None]),
        ([[0.1]], pa.list_(pa.float32(), 1), [0.1]),
        ([{"a": [{"b": 0.1}]}], pa.struct({"a": pa.list_(pa.struct({"b": pa.float32()}))}), {"a": [{"b": 0.1}]}),
        ([[("k", 0.1)]], pa.map_(pa.string(), pa.float32()), {"k": 0.1}),
        (pa.array([0.1], pa.float32()).dictionary_encode(), None, 0.1),
        ([3_600_000_000_001], pa.time64("ns"), "01:00:00"),
        ([[1_717_158_600_500_000_001]], pa.list_(pa.timestamp("ns")), ["2024-05-31T12:30:00.500000"]),
        ([{"a": [3_600_000_000_001]}], pa.struct({"a": pa.list_(pa.time64("ns"))}), {"a": ["01:00:00"]}),
        ([[("k", 10**9 + 1)]], pa.map_(pa.string(), pa.timestamp("ns", tz="Asia/Tokyo")), {"k": EPOCH + "+00:00"}),
    ],
)
def test_values_become_json(path: Path, values: Any, kind: Any, found: Any, no_pandas: None) -> None:
    documents, _ = imported(parquet(path, table_of("a.b", values, kind)), Columns())
    assert documents[0].get("a.b") == found


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        (["fine", b"\x89PNG"], pa.binary(), r"row 1: column \"x\": 4 bytes are no text (b'fine'…)"),
        ([{"bytes": b"\x89PNG"}], None, "4 bytes are no text"),
        ([float("inf")], None, "inf is no number of JSON"),
        ([Decimal("0.12345678901234567890")], None, "more digits than a number of JSON keeps"),
        ([1], pa.duration("ns"), "timedelta has no form in JSON"),
        ([10**18], pa.timestamp("us"), 'row 1: column "x": '),
        ([[(1, 2)]], pa.map_(pa.int8(), pa.int8()), "a key must be a text, found 1"),
        ([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8()), "row 1: column"),
    ],
)
def test_values_that_json_lacks_are_named(path: Path, tmp_path: Path, values: Any, kind: Any, says: str) -> None:
    message = refused(parquet(path, table_of("x", values, kind)), Columns())
    assert says.replace('\\"', '"') in message
    assert f"{tmp_path}/table, row " in message
    assert imported(tmp_path / "table", Columns(drop=("x",)))[1].documents == len(values)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"sku": "1", "name": "A"}], 'there is no column "about"; there are "sku", "name"'),
        ([{"sku": None, "name": "A", "about": "B"}], 'row 1: column "sku" is null, where the id is expected'),
        ([{"sku": 1.0, "name": "A", "about": "B"}], 'column "sku": an id must be a text or a whole number, found 1.0'),
        ([{"sku": "1", "name": None, "about": None}], 'column "about" is null, where a text is expected'),
        ([{"sku": "1", "name": "A", "about": 149}], 'column "about" must hold texts, found 149'),
        ([{"sku": "1", "name": ["A"], "about": "B"}], "column \"name\" must hold texts, found ['A']"),
        ([{"sku": "1", "name": "", "about": " "}], 'document "1" is empty'),
        ([{"sku": "1", "name": "A", "about": "B", "text": "C"}], 'column "text" has the name of what another'),
        ([{"sku": "x" * 513, "name": "A", "about": "B"}], '"_id" must be at most 512 bytes'),
        ([{"sku": 1, "name": "A", "about": "B"}] * 2, 'row 2: id "1" was already used in table, row 1'),
        ([], "there is no column"),
    ],
)
@pytest.mark.parametrize("kind", ["parquet", "json"])
def test_bad_rows_are_named(path: Path, rows: list[dict[str, Any]], says: str, kind: str) -> None:
    if kind == "parquet":
        parquet(path, rows)
    else:
        path.write_text(json.dumps(rows, indent=1))
        says = says if rows else "no row became a document"
    assert says in refused(path)


def test_a_row_beyond_the_bounds_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.documents.strict_json.MAX_DOCUMENT_BYTES", 80)
    parquet(path, [{"text": "short"}, {"text": "x" * 80}])
    assert "table, row 2: a line has at most 80 bytes" in refused(path, Columns())
    assert imported(path, Columns(), skip_bad=True)[1].documents == 1
    path.write_text("text,n\na,1\n" + "a" * 100 + ",2\n")
    assert "line 3: a line has at most 80 bytes" in refused(path, Columns())


def test_columns_that_no_table_has_are_named(path: Path) -> None:
    parquet(path)
    for columns in (Columns(id="x"), Columns(title="x"), Columns(drop=("x",)), Columns(number=("x",))):
        assert 'there is no column "x"; there are "sku", "name"' in refused(path, columns)
    path.write_text('{"text": "a"}\n{"text": "b"}')
    assert 'there is no column "x"; there are "text"' in refused(path, Columns(title="x"))
    parquet(path, pa.table([["a"], ["b"]], ["text", "text"]))
    assert 'two columns have the name "text"' in refused(path, Columns())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"text,n\na,1\nb\n", "line 3: 1 cells, where the header has 2"),
        (b"text,n\na,1e999\n", 'line 2: column "n": inf is beyond the numbers that JSON has'),
        (b"sep=;\ntext;n\na;1\nb\n", "line 4: 1 cells, where the header has 2"),
        (b"sep=;\n", "it has no line but the one that names the delimiter"),
        (b"text,n\na,1\nb,two\n", "line 3: column \"n\": 'two' is no number"),
        (b'text,n\n"a,1\nb,2\n', "line 2: unexpected end of data; are all quotes in pairs?"),
        (b'text,n\n"a"b,1\n', "line 2: ',' expected after"),
        (b"text,n\nf\xfcr,1\n", "line 2: not UTF-8 (byte 0xfc); convert it, as by `iconv"),
        (b"Some notes\n\nof mine", 'there is no column "n"; there are "Some notes"'),
        (b'[{"text": "a", "n": 1}', "behind row 1: not JSON"),
        (b'[{"text": "a", "n": 1}] x', "something stands behind the end of the array"),
        (b'[{"text": "a", "n": 1, "n": 2}]', 'row 1: the key "n" stands twice'),
        (b'{"text": "a", "n": 1}\n\n{"text": NaN}', "line 3: not JSON: NaN"),
        (b'{"text": "a\\ud800", "n": 1}', "line 1: a lone surrogate"),
        (b"PAR1\x15\x04" + b"x" * 100, "can't be read: Parquet magic bytes not found"),
        (b"ARROW1\0\0" + b"x" * 100, "can't be read: "),
        (b"\xff\xff\xff\xff\x08\x01\0\0" + b"x" * 100, "can't be read: "),
        (b"PK\x03\x04", "this is zip, which is not read. Unpack it by `unzip`"),
    ],
)
def test_bad_files_are_named(path: Path, tmp_path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    message = refused(path, Columns(number=("n",)))
    assert says in message
    assert ".." not in message.replace("...", "")
    assert "No such file" in refused(tmp_path / "gone", Columns())


def test_the_command_counts_what_it_leaves_out(tmp_path: Path) -> None:
    path = parquet(tmp_path / "shop.parquet", [*ROWS, {"about": "no id"}])
    output = tmp_path / "corpus.jsonl"
    mapping = ("--id", "sku", "--title", "name", "--text", "about", "--drop", "tags", "--overwrite")
    done = corpus(path, output, *mapping)
    assert done.returncode == 2
    assert done.stderr.startswith(f'error: {path}, row 3: column "sku" is null, where the id is expected.')
    assert not output.exists()
    done = corpus(path, output, *mapping, "--skip-bad", "--json")
    summary = CorpusSummary.model_validate_json(done.stdout)
    assert (summary.documents, summary.rows, summary.skipped, summary.dropped) == (2, 3, 1, ["tags"])
    assert summary.skipped_files == [f'{path}, row 3: column "sku" is null, where the id is expected']
    assert [json.loads(line) for line in output.read_text().splitlines()] == PLAIN
    done = corpus(path, output, "--text", "about", "--overwrite")
    assert "3 documents of 3 rows in 1 file, " in done.stdout
    assert "ids: the numbers of the rows" in done.stdout


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    done = corpus(tmp_path, tmp_path / "corpus.jsonl", "--text", "about", "--json")
    assert 'no table, but column "about" is named' in ErrorObject.model_validate_json(done.stdout).error.message
    done = corpus(parquet(tmp_path / "shop.parquet"), tmp_path / "corpus.jsonl", "--words", "100")
    assert "rows of a table are not cut" in done.stderr


@pytest.mark.parametrize("content", [b"PAR1\x15\x04", b"ARROW1\0\0", zstd(b"{}")])
def test_without_pyarrow_the_extra_is_named(
    path: Path, tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(content)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = corpus(path, tmp_path / "corpus.jsonl")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'lightretriever-search[import]'" in done.stderr


def test_whole_numbers_of_19_digits_are_kept(path: Path) -> None:
    path.write_text("text,n\na,9223372036854775807\na,-9223372036854775808\n")
    assert [one["n"] for one in imported(path, Columns(number=("n",)))[0]] == [2**63 - 1, -(2**63)]


def test_a_saved_dataset_whose_state_names_no_file_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"_data_files": ["x.arrow"]}')
    with raises(CorpusError, naming="state.json"):
        table_files(tmp_path)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.RunEndEncodedArray.from_arrays([1], pa.array([0.1], pa.float32())), 0.1),
        (pa.RunEndEncodedArray.from_arrays([1], pa.array([10**9 + 1], pa.timestamp("ns"))), EPOCH),
        (pa.array([[0.1]], pa.list_view(pa.float32())), [0.1]),
        (pa.array([[0.1]], pa.large_list_view(pa.float16())), [0.1]),
        (pa.array([[10**9 + 1, None]], pa.list_view(pa.timestamp("ns"))), [EPOCH, None]),
        (pa.array([[[10**9 + 1]], None], pa.large_list_view(pa.list_view(pa.time64("ns")))), [["00:00:01"]]),
        (pa.array([None, [10**9 + 1]], pa.list_view(pa.timestamp("ns"))), None),
    ],
    ids=lambda one: str(one.type) if isinstance(one, pa.Array) else "",
)
def test_layouts_that_arrow_files_alone_have(path: Path, column: Any, found: Any, no_pandas: None) -> None:
    documents, _ = imported(stream(path, pa.table({"text": ["a"] * len(column), "x": column})), Columns())
    assert documents[0].get("x") == found


PANDAS = "__index_level_0__"


def test_an_index_of_texts_that_pandas_kept_has_the_ids(path: Path, tmp_path: Path) -> None:
    parquet(path, [{"text": "a", PANDAS: "doc-a"}, {"text": "b", PANDAS: "doc-b"}])
    documents, written = imported(path, Columns())
    assert documents == [{"_id": "doc-a", "title": "", "text": "a"}, {"_id": "doc-b", "title": "", "text": "b"}]
    assert (written.numbered, written.id_column, written.dropped) == (False, PANDAS, [])
    done = corpus(path, tmp_path / "corpus.jsonl")
    assert f'ids: column "{PANDAS}"' in done.stdout


@pytest.mark.parametrize("ids", [{"_id": "x"}, {}])
def test_an_index_of_numbers_is_no_field(path: Path, ids: dict[str, str]) -> None:
    parquet(path, [{**ids, "text": "a", PANDAS: 7}])
    documents, written = imported(path, Columns())
    assert documents == [{"_id": ids.get("_id", "1"), "title": "", "text": "a"}]
    assert written.dropped == [PANDAS]
    assert imported(path, Columns(id=PANDAS, drop=tuple(ids)))[0][0]["_id"] == "7"


def test_two_index_levels_are_no_ids(path: Path) -> None:
    parquet(path, [{"text": "a", PANDAS: "x", "__index_level_1__": "y"}])
    documents, written = imported(path, Columns())
    assert documents == [{"_id": "1", "title": "", "text": "a"}]
    assert written.dropped == [PANDAS, "__index_level_1__"]


TENT = {"_id": "1", "title": "", "text": "A light tent"}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("sep=;\r\n_id;text;price\r\n1;A light tent;12,50\r\n", {**TENT, "price": "12,50"}),
        ('"sep=;"\n_id;text;a,b,c,d\n1;A light tent;x\n', {**TENT, "a,b,c,d": "x"}),
        ("\ufeffSEP=|\n_id|text\n1|A light tent\n", TENT),
        ("_id;text;Price (net, gross, or none)\n1;A light tent;5\n", {**TENT, "Price (net, gross, or none)": "5"}),
        ('_id\ttext\t"1,000 items, net, gross"\n1\tA light tent\t5\n', {**TENT, "1,000 items, net, gross": "5"}),
        ("_id,text,a;b;c;d\n1,A light tent,x\n", {**TENT, "a;b;c;d": "x"}),
        ('_id, "text", n\n1, "A light tent", 5\n', {**TENT, "n": "5"}),
        ('_id, text\n1, "A tent, light"\n', {**TENT, "text": "A tent, light"}),
        ("_id;text\r1;A light tent", TENT),
        ('_id,text\r1,"A light\rtent"\r', {**TENT, "text": "A light\ntent"}),
        ("_id,text,\n1,A light tent,\n", TENT),
        (",text\n\n0,A light tent\n", {**TENT, "column 1": "0"}),  # as pandas writes its index
        ("text\nA light tent, for two\n", {**TENT, "text": "A light tent, for two"}),
        ('text\n"A light tent; for two"\n', {**TENT, "text": "A light tent; for two"}),
        ("_id,text\n1, A light tent\n", {**TENT, "text": " A light tent"}),
        ('_id,text\n1,"x, ""A light tent"""\n', {**TENT, "text": 'x, "A light tent"'}),
    ],
)
def test_dialects_of_csv(path: Path, content: str, wanted: dict[str, str]) -> None:
    path.write_bytes(content.encode())
    assert imported(path, Columns())[0] == [wanted]


def test_lines_that_end_at_cr_are_read_piece_by_piece(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.corpus.rows._PIECE", 7)
    path.write_bytes(b"text\r" + b"".join(b"text %d\r" % number for number in range(500)))
    assert [one["text"] for one in imported(path, Columns())[0]] == [f"text {number}" for number in range(500)]


@pytest.mark.parametrize(("sign", "given"), [("~", "~"), ("\t", "tab"), ("\t", "\\t"), (";", ";")])
def test_the_delimiter_may_be_given(path: Path, tmp_path: Path, sign: str, given: str) -> None:
    path.write_text(f"_id{sign}text{sign}a,b,c,d\n1{sign}A light tent{sign}a,b,c,d\n")
    output = tmp_path / "corpus.jsonl"
    assert corpus(path, output, "--delimiter", given).returncode == 0
    assert json.loads(output.read_text()) == {**TENT, "a,b,c,d": "a,b,c,d"}


@pytest.mark.parametrize("given", ["", ";;", '"', "\n"])
def test_what_is_no_delimiter_is_refused(path: Path, tmp_path: Path, given: str) -> None:
    path.write_text("text\na\n")
    done = corpus(path, tmp_path / "corpus.jsonl", "--delimiter", given)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"--delimiter {given!r}: one sign is expected" in done.stderr
    (tmp_path / "folder").mkdir()
    done = corpus(tmp_path / "folder", tmp_path / "corpus.jsonl", "--delimiter", ";")
    assert "folder is no table" in done.stderr


@pytest.mark.parametrize("text", ["", None])
def test_a_row_with_a_title_alone_is_a_document(path: Path, text: str | None) -> None:
    path.write_text(json.dumps([{"title": "Tent", "text": text}, {"title": "Stove", "text": "A gas stove"}]))
    documents, written = imported(path, Columns(), skip_bad=True)
    assert documents[0] == {"_id": "1", "title": "Tent", "text": ""}
    assert (len(documents), written.skipped) == (2, 0)


def test_an_object_of_json_may_leave_a_text_out(path: Path) -> None:
    path.write_text('{"title": "Tent"}\n{"title": "Stove", "text": "A gas stove"}\n{"more": "x", "text": "A lamp"}')
    documents, _ = imported(path, Columns(text=("text", "more")))
    expected = [("Tent", ""), ("Stove", "A gas stove"), ("", "A lamp\n\nx")]
    assert [(one["title"], one["text"]) for one in documents] == expected
    path.write_text('{"title": "Tent", "body": "A light tent"}\n{"title": "Stove"}')
    assert 'there is no column "text"; there are "title", "body"' in refused(path, Columns())
    path.write_text('{"title": "Tent", "text": "x"}\n{"title": " "}')
    assert 'line 2: there is no column "text"; there are "title"' in refused(path, Columns())


def test_folders_named_by_a_column_are_read(tmp_path: Path) -> None:
    source = tmp_path / "data"
    for year, name in (("2023", "a%20b"), ("2024", "__HIVE_DEFAULT_PARTITION__")):
        folder = source / f"year={year}" / f"kind={name}"
        folder.mkdir(parents=True)
        parquet(folder / "part-0.parquet", [{"text": f"of {year}"}])
        (folder / "_SUCCESS").write_text("")
    documents, written = imported(source, Columns(number=("year",)))
    assert documents == [
        {"_id": "1", "title": "", "text": "of 2023", "year": 2023, "kind": "a b"},
        {"_id": "2", "title": "", "text": "of 2024", "year": 2024},
    ]
    assert (written.texts, table_files(source)) == (2, (sorted(source.rglob("*.parquet")), 2))
    assert [one["_id"] for one in imported(source, Columns(id="year", drop=("kind",)))[0]] == ["2023", "2024"]
    parquet(source / "year=2024" / "kind=__HIVE_DEFAULT_PARTITION__" / "part-0.parquet", [{"text": "a", "year": 2023}])
    first = 'id "2023" was already used in year=2023/kind=a%20b/part-0.parquet, row 1'
    assert first in refused(source, Columns(id="year", drop=("kind",)))
    parquet(source / "year=2023" / "kind=a%20b" / "part-0.parquet", [{"text": "a", "year": 1999}])
    assert imported(source, Columns())[0][0]["year"] == 1999


@pytest.mark.parametrize("content", [b"not what it is called", b"\x15\x04\0\0" * 50, b"_id,text\n1,a\n"])
@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
def test_a_broken_table_of_columns_is_no_csv(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / f"table{ending}"
    path.write_bytes(content)
    assert f"can't be read: it is called {ending}, but doesn't begin as such a file. Mend it" in refused(path)
