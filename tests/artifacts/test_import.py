"""Corpora of tables: files that csv, pyarrow and other writers made, read by DuckDB."""

import csv
import datetime
import gzip
import json
import sys
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightretriever.artifacts.corpus.beir import Corpus, Written
from lightretriever.artifacts.corpus.tables import Columns, Dialect, table_files, write_row_corpus
from lightretriever.artifacts.errors import CorpusError
from tests.support.commands import Done, run_command

ROWS: list[dict[str, Any]] = [
    {"sku": "007", "name": "Tent", "about": 'Light.\nTwo "people".', "price": 149.5, "tags": ["a", "b"]},
    {"sku": "T-2", "name": "Kettle; für Tee", "about": "Tea, coffee.\tHot.", "price": 65, "tags": []},
]
SHOP = Columns(id="sku", title="name", text=("about",))
NUMBERS = Columns(number=("n",))
CSV = Dialect()
BARE = {"_id": "1", "title": ""}
WANTED = [
    {"_id": row["sku"], "title": row["name"], "text": row["about"], "price": row["price"], "tags": row["tags"]}
    for row in ROWS
]
PLAIN = [{name: value for name, value in row.items() if name != "tags"} for row in WANTED]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a table is to be written; the name has signs of a pattern."""
    return tmp_path / "ta[b]le*?"


def corpus(*arguments: str | Path) -> Done:
    return run_command("corpus", *arguments)


def imported(
    source: Path, columns: Columns = SHOP, dialect: Dialect = CSV, *, skip_bad: bool = False
) -> tuple[list[Any], Written]:
    """The documents that a build reads, and the counts."""
    output = source.parent / f"{source.name}.corpus.jsonl.gz"
    written = write_row_corpus(table_files(source), output, columns, dialect, skip_bad=skip_bad, overwrite=True)
    documents = [json.loads(document.raw) for document in Corpus(output)]
    assert len(documents) == written.documents
    return documents, written


def refused(source: Path, columns: Columns = SHOP) -> str:
    with pytest.raises(CorpusError) as caught:
        imported(source, columns)
    assert "\n" not in str(caught.value)
    assert ".." not in str(caught.value).replace("...", "")
    return str(caught.value)


def parquet(path: Path, rows: Any = ROWS, **options: Any) -> Path:
    pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path, **options)
    return path


def table_of(name: str, values: Any, kind: Any = None) -> pa.Table:
    """A column beside ids and texts."""
    column = pa.array(values, kind)
    numbers = [str(number) for number in range(len(column))]
    return pa.table({"_id": numbers, "text": numbers, name: column})


def test_parquet(tmp_path: Path) -> None:
    documents, written = imported(parquet(tmp_path / "no-ending", compression="zstd", row_group_size=1))
    assert documents == WANTED
    assert (written.documents, written.rows, written.texts, written.id_column) == (2, 2, 1, "sku")


@pytest.mark.parametrize("delimiter", [",", "\t", "|"])
def test_csv(path: Path, delimiter: str) -> None:
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        rows = [["sku", "name", "about", "price"], *([*row.values()][:4] for row in ROWS)]
        csv.writer(file, delimiter=delimiter).writerows(rows)
    dialect = Dialect(delimiter, quote='"' if delimiter == "\t" else None)
    assert imported(path, SHOP, dialect)[0] == [{**row, "price": str(row["price"])} for row in PLAIN]
    assert imported(path, replace(SHOP, number=("price",)), dialect)[0] == PLAIN


def test_numbers_are_not_rounded(path: Path) -> None:
    path.write_text(f"text,n\na,{2**63 - 1}\na,{-(2**63)}\n")
    assert [one["n"] for one in imported(path, NUMBERS)[0]] == [2**63 - 1, -(2**63)]


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(deadline=None)
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


def test_texts_packed_by_gzip(path: Path) -> None:
    first, second = (json.dumps(row).encode() + b"\n" for row in ROWS)
    path.write_bytes(gzip.compress(first) + gzip.compress(second))  # two members are one text
    assert imported(path)[0] == WANTED
    path.write_bytes(gzip.compress(json.dumps(ROWS).encode()))
    assert imported(path)[0] == WANTED
    for cut in (-1, -9, -1000):
        path.write_bytes(
            gzip.compress(b"text,n\n" + b"".join(b"%d,text\n" % number for number in range(299_999)))[:cut]
        )
        assert ": can't be read: " in refused(path, Columns())
    path.write_bytes(gzip.compress(b"PAR1\0\0"))
    assert "this is Parquet packed by gzip, which is not read. Unpack it by `gzip -d`" in refused(path)


def test_a_folder_of_shards_is_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in (1, 0):
        parquet(tmp_path / f"blob{number}", [{"text": f"text {number}"}])
        (folder / f"train-{number}.parquet").symlink_to(f"../blob{number}")  # as Hugging Face's cache has them
    for name in ("README.md", ".hidden.parquet"):
        (folder / name).write_text("# About")
    documents, written = imported(folder, Columns())
    assert [(one["_id"], one["text"]) for one in documents] == [("1", "text 0"), ("2", "text 1")]
    assert (written.texts, written.rows, written.id_column) == (2, 2, None)


def test_texts_are_joined_and_columns_dropped(path: Path) -> None:
    rows = [{"a": "One", "b": None, "c": b"\x89PNG", "d": None}, {"a": "", "b": "two", "c": b"", "d": 5}]
    columns = Columns(text=("a", "b"), drop=("c",))
    first, second = imported(parquet(path, rows), columns)[0]
    assert (first, second) == ({**BARE, "text": "One"}, {**BARE, "_id": "2", "text": "two", "d": 5})


UTC = datetime.UTC
EPOCH = "1970-01-01T00:00:01"
MOMENT = datetime.datetime(2024, 5, 31, 12, 30, 0, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "kind", "value"),
    [
        ([MOMENT.date()], pa.date32(), "2024-05-31"),
        ([MOMENT], pa.timestamp("us", tz="Europe/Berlin"), "2024-05-31T12:30:00.500000+00:00"),
        ([Decimal("19.90")], pa.decimal128(9, 2), 19.9),
        ([2**64 - 1], pa.uint64(), 2**64 - 1),
        ([float("nan")], None, None),
        ([0.1], pa.float32(), float(np.float32(0.1))),
        ([[0.5, None]], pa.list_(pa.float32()), [0.5, None]),
        ([3_600_000_000_001], pa.time64("ns"), "01:00:00"),
        ([[1_717_158_600_500_000_001]], pa.list_(pa.timestamp("ns")), ["2024-05-31T12:30:00.500000"]),
        ([[("k", 10**6)]], pa.map_(pa.string(), pa.timestamp("us", tz="Asia/Tokyo")), {"k": EPOCH + "+00:00"}),
    ],
)
def test_values_become_json(path: Path, values: Any, kind: Any, value: Any) -> None:
    documents, _ = imported(parquet(path, table_of("a.b", values, kind)), Columns())
    assert documents[0].get("a.b") == value


MOMENTS = [
    datetime.datetime(9999, 12, 31, 23, 59, 59),
    datetime.datetime(2024, 5, 31),
    datetime.datetime(1600, 1, 1),
    datetime.datetime(2263, 1, 1, microsecond=1),
    None,
]


@pytest.mark.parametrize("int96", [True, False])
def test_times_are_those_of_the_table_in_both_forms(path: Path, int96: bool) -> None:
    table = table_of("at", MOMENTS, pa.timestamp("us"))
    documents, _ = imported(parquet(path, table, use_deprecated_int96_timestamps=int96), Columns())
    assert [one.get("at") for one in documents] == [moment and moment.isoformat() for moment in MOMENTS]


def test_the_same_table_written_in_three_ways_is_the_same_corpus(path: Path) -> None:
    rows = [
        {"_id": f"{number}", "text": text, "code": "01067", "note": None if number % 2 else "NULL"}
        for number, text in enumerate(("a\r\nb", '"', 'x "y"', " , ", "NaN", "\\N", "é\u2028🎵", "1e5", "a\x1a", "#a"))
    ]
    written = []
    for write in ("csv", "json", "parquet"):
        if write == "csv":
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, ["_id", "text", "code", "note"]).writerows(
                    [dict(zip(rows[0], rows[0], strict=True)), *rows]
                )
        elif write == "json":
            path.write_text(json.dumps(rows))
        else:
            parquet(path, rows)
        written.append(imported(path, Columns())[0])
    assert written[0] == written[1] == written[2]
    assert len(written[0]) == len(rows)


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        (["fine", b"\x89PNG"], pa.binary(), "row 1: column \"x\": 4 bytes are no text (b'fine'…)"),
        ([float("inf")], None, "inf is no number of JSON"),
        ([Decimal("0.12345678901234567890")], None, "more digits than a number of JSON keeps"),
        ([Decimal(2**64)], None, "18446744073709551616 doesn't fit into 64 bits"),
        ([Decimal("0.1")], pa.decimal256(60, 2), 'column "x" has decimals of 60 digits'),
        ([2**63 - 1], pa.timestamp("us"), "infinite timestamp, which JSON lacks"),
        ([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8()), "Map keys must be unique"),
    ],
)
def test_values_that_json_lacks_are_named(path: Path, values: Any, kind: Any, says: str) -> None:
    message = refused(parquet(path, table_of("x", values, kind)), Columns())
    assert says in message
    assert str(path) in message
    assert imported(path, Columns(drop=("x",)))[1].documents == len(values)


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
        ([{"sku": 1, "name": "A", "about": "B"}] * 2, 'row 2: id "1" was already used in ta[b]le*?, row 1'),
        ([], "no row became a document"),
    ],
)
def test_bad_rows_are_named(path: Path, rows: list[dict[str, Any]], says: str) -> None:
    path.write_text(json.dumps(rows, indent=1))
    assert says in refused(path)


def test_columns_that_no_table_has_are_named(path: Path) -> None:
    parquet(path, pa.table({"other": pa.array([], pa.string())}))
    assert 'there is no column "sku"; there are "other"' in refused(path)
    parquet(path)
    for columns in (Columns(id="x"), Columns(title="x"), Columns(drop=("x",)), Columns(number=("x",))):
        assert 'there is no column "x"; there are "sku", "name"' in refused(path, columns)
    parquet(path, pa.table([["a"], ["b"]], ["text", "text"]))
    assert 'two columns have the name "text"' in refused(path, Columns())
    parquet(path, pa.table([["a"], [[{"x": 1}]], ["b"], ["c"]], ["text", "s", "Tag", "tag"]))
    assert 'two columns have the name "tag", apart from capitals; rename one' in refused(path, Columns())


BAD_FILES = {
    "empty": (b"", "its first line is empty"),
    "a cell too many": (b"text,n\na,1\nb,2,3\n", "line 3: Expected Number of Columns: 2 Found: 3"),
    "a large number": (b"text,n\na,1e999\n", 'row 1: column "n": inf is beyond the numbers that JSON has'),
    "no number": (b"text,n\na,1\nb,two\n", "row 2: column \"n\": 'two' is no number"),
    "unpaired quote": (b'text,n\n"a,1\nb,2\n', "line 2: Value with unterminated quote found; if quotes are signs"),
    "Windows-1252 in the header": (b"text,pr\xe9\na,1\n", "line 1: This file is not utf-8 encoded"),
    "Windows-1252": (b"text,n\nf\xfcr,1\n", "line 2: Invalid unicode"),
    "notes": (b"Some notes\n\nof mine", 'there is no column "n"; there are "Some notes"'),
    "open array": (b'[{"text": "a", "n": 1}', "can't be read: Malformed JSON"),
    "no JSON in a line": (b'{"text": "a", "n": 1}\n{"text": \n{"text": "b", "n": 2}', "row 2: not JSON"),
    "broken Parquet": (b"PAR1\x15\x04" + b"x" * 100, "can't be read: No magic bytes found at end of file"),
    "zstd behind a frame to skip": (b"\x5f\x2a\x4d\x18\x00\x00\x00\x00", "this is zstd, which is not read"),
}


@pytest.mark.parametrize(("content", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_are_named(path: Path, content: bytes, says: str) -> None:
    path.write_bytes(content)
    assert says in refused(path, NUMBERS)


def test_a_file_that_is_gone_or_not_what_it_is_called_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "gone", Columns())
    (tmp_path / "a.parquet").write_bytes(b"not what it is called")
    assert 'there is no column "text"; there are "not what it is called"' in refused(tmp_path / "a.parquet", Columns())


TENT = {**BARE, "text": "A light tent"}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ('_id, "text", n\n1, "A light tent", 5\n', {**TENT, "n": " 5"}),
        ('_id, text\n1, "A tent, light"\n', {**TENT, "text": "A tent, light"}),
        ('_id,text\r1,"A light\rtent"\r', {**TENT, "text": "A light\rtent"}),
        ('_id,text,"a\nb"\n1,A light tent,x\n', {**TENT, "a\nb": "x"}),
        ("_id,text,\n1,A light tent,\n", TENT),
        (",text\n\n0,A light tent\n", {**TENT, "column 1": "0"}),  # as pandas writes its index
        ('_id,text\n1,"x, ""A light tent"""\n', {**TENT, "text": 'x, "A light tent"'}),
        ("_id,text,note\n1,A light tent,NULL\n", {**TENT, "note": "NULL"}),
        ("_id,text,zip\n1,A light tent,01067\n", {**TENT, "zip": "01067"}),
        ("_id,text\r\n1,A light tent\r\n\x1a", TENT),
    ],
)
def test_dialects_of_csv(path: Path, content: str, wanted: dict[str, str]) -> None:
    path.write_bytes(content.encode())
    documents, written = imported(path, Columns())
    assert documents == [wanted]
    assert (written.rows, written.skipped.count) == (1, 0)


TWO = {"1": "a", "2": "b"}
TABS = Dialect("\t")


@pytest.mark.parametrize(
    ("content", "dialect", "wanted"),
    [
        # Between tabs, a quote is a sign as others, unless it is asked for.
        ('_id\ttext\n1\t"To be or not\n2\tto be"\n', TABS, {"1": '"To be or not', "2": 'to be"'}),
        ('_id\ttext\n1\tscreen 24"\n2\t"\n', TABS, {"1": 'screen 24"', "2": '"'}),
        ('_id\ttext\n1\t"a\tb"\n', Dialect("\t", '"'), {"1": "a\tb"}),
        ("_id,text\n1,'a, b'\n2,it's\n", Dialect(quote="'"), {"1": "a, b", "2": "it's"}),
        ('_id,text\n1,"a\n2,b"\n', Dialect(quote=""), {"1": '"a', "2": 'b"'}),
        ("_id~text\n1~a,a,a\n2~b\n", Dialect("~"), {"1": "a,a,a", "2": "b"}),
        ("1\ta\n2\tb\n", Dialect("\t", header=False, columns=("_id", "text")), TWO),
        ("\ufeff1,a\n2,b\n", Dialect(header=False, columns=("_id", "text")), TWO),
        ("text,text\n1,a\n2,b\n", Dialect(columns=("_id", "text")), TWO),
    ],
)
def test_the_dialect_may_be_given(path: Path, content: str, dialect: Dialect, wanted: dict[str, str]) -> None:
    path.write_bytes(content.encode())
    assert {one["_id"]: one["text"] for one in imported(path, Columns(), dialect)[0]} == wanted
    if dialect == TABS:
        path, dialect = path.with_name("table.tsv"), CSV
    path.write_bytes(gzip.compress(content.encode()))
    assert {one["_id"]: one["text"] for one in imported(path, Columns(), dialect)[0]} == wanted


def test_options_of_csv_reach_it(path: Path, tmp_path: Path) -> None:
    path.write_text("1~'A light~tent'~x\n")
    options = ("--no-header", "--columns", "_id,text,note", "--delimiter", "~", "--quote", "'")
    output = tmp_path / "corpus.jsonl"
    assert corpus(path, output, *options).returncode == 0
    assert json.loads(output.read_text()) == {**TENT, "text": "A light~tent", "note": "x"}
    path.write_text('1\tA\n2\t"B\n')
    done = corpus(path, output, "--overwrite")
    assert 'there is no column "text"; there are "1\tA". See --id, --title and --text, and --delimiter' in done.stderr
    done = corpus(path, output, "--no-header", "--delimiter", "tab", "--columns", "a,b,c", "--overwrite")
    assert "3 columns are named, but its first line has 2 cells" in done.stderr
    path.write_text("text\nA\n")
    for option, sign in (("--delimiter", ";;"), ("--delimiter", '"'), ("--quote", "''")):
        assert ": can't be read: " in corpus(path, output, option, sign, "--overwrite").stderr


def test_the_command_counts_what_it_leaves_out(tmp_path: Path) -> None:
    path, output = tmp_path / "shop.csv", tmp_path / "corpus.jsonl"
    path.write_bytes(b"sku,about\n1,a\n2\n,b\n3,c,d\n4,f\xfcr\n\n5,e\n")
    done = corpus(path, output, "--id", "sku", "--text", "about")
    assert done.returncode == 2
    assert done.stderr.startswith(f'error: {path}, row 2: column "sku" is null, where the id is expected.')
    assert not output.exists()
    done = corpus(path, output, "--id", "sku", "--text", "about", "--skip-bad", "--json")
    summary = json.loads(done.stdout)
    assert (summary["documents"], summary["rows"], summary["skipped"]) == (2, 6, 4)
    assert summary["skipped_files"] == [
        f'{path}, row 2: column "sku" is null, where the id is expected',
        f"{path}, line 3: Expected Number of Columns: 2 Found: 1",
        f"{path}, line 5: Expected Number of Columns: 2 Found: 3",
        f"{path}, line 6: Invalid unicode (byte sequence mismatch) detected. This file is not utf-8 encoded",
    ]
    assert [json.loads(line)["_id"] for line in output.read_text().splitlines()] == ["1", "5"]


def test_without_duckdb_the_extra_is_named(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"PAR1\x15\x04")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = corpus(path, tmp_path / "corpus.jsonl")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'lightretriever-search[import]'" in done.stderr


def test_an_object_of_json_may_leave_a_text_out(path: Path) -> None:
    rows = [
        {"title": "Tent"},
        {"title": "Pole", "text": None},
        {"title": "Peg", "text": ""},
        {"more": "x", "text": "A lamp"},
    ]
    path.write_text(json.dumps(rows))
    documents, _ = imported(path, Columns(text=("text", "more")))
    expected = [("Tent", ""), ("Pole", ""), ("Peg", ""), ("", "A lamp\n\nx")]
    assert [(one["title"], one["text"]) for one in documents] == expected
    path.write_text('{"title": "Tent", "body": "A light tent"}\n{"title": "Stove"}')
    assert 'there is no column "text"; there are "title", "body"' in refused(path, Columns())
    path.write_text('{"title": "Tent", "text": "x"}\n{"title": " "}')
    assert 'row 2: there is no column "text"; there are "title"' in refused(path, Columns())
