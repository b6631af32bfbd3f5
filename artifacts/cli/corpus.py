"""The command `corpus`: a corpus of text files, or of the rows of a table."""

from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from lightretriever.artifacts.bundle.manifest import check_outside
from lightretriever.artifacts.cli.runner import JsonOption, report_skipped, running
from lightretriever.artifacts.corpus.folder import write_text_corpus
from lightretriever.artifacts.corpus.passages import Limit
from lightretriever.artifacts.corpus.tables import Columns, Dialect, table_files, write_row_corpus
from lightretriever.artifacts.errors import CorpusError, importing

_WORDS: Final = 150
_TOKENS: Final = 512  # of a passage, where a model reads more: longer ones say too many things for one vector
_FRAME: Final = 4  # special tokens around a text, and what a whole text has more than its parts
_TABS: Final = ("tab", "\\t")
_TABLES: Final = "Name a file, or the folder that has the Parquet files in it, such as data below a clone of a dataset."


def corpus(
    source: Annotated[Path, Argument(help="Folder of .txt and .md files, or a table.", show_default=False)],
    output: Annotated[Path, Argument(help="The corpus to write: .jsonl.gz or .jsonl.", show_default=False)],
    words: Annotated[int | None, Option(min=1, help="Most words of a file's passage.", show_default="150")] = None,
    model: Annotated[str | None, Option(help="Encoder by whose tokens passages are cut, 512 at most.")] = None,
    id_column: Annotated[
        str | None, Option("--id", metavar="COLUMN", help="Column of ids.", show_default="_id, else row numbers")
    ] = None,
    title: Annotated[str | None, Option(metavar="COLUMN", help="Column of titles.", show_default="title")] = None,
    text: Annotated[
        list[str] | None, Option(metavar="COLUMN", help="Column of texts; several are joined.", show_default="text")
    ] = None,
    number: Annotated[list[str] | None, Option(metavar="COLUMN", help="Column whose texts are numbers.")] = None,
    drop: Annotated[list[str] | None, Option(metavar="COLUMN", help="Column to leave out.")] = None,
    delimiter: Annotated[
        str | None, Option(help="Sign between cells of CSV, or `tab`.", show_default="comma; in .tsv, tab")
    ] = None,
    quote: Annotated[
        str | None, Option(help="Sign around cells of CSV, or `none`.", show_default='", between tabs none')
    ] = None,
    header: Annotated[bool, Option("--header/--no-header", help="Whether CSV's first line names the columns.")] = True,
    names: Annotated[
        str | None, Option("--columns", help="Columns of CSV, by comma.", show_default="those of the header")
    ] = None,
    skip_bad: Annotated[bool, Option("--skip-bad", help="Leave bad files or rows out instead of stopping.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a corpus of a folder of text files, long ones cut into passages, or of the rows of a table: CSV, TSV,
    Parquet or JSON. Options name a table's columns; all others become fields."""
    with running("corpus", as_json=as_json) as job:
        columns = Columns(id_column, title, tuple(text or ()), tuple(drop or ()), tuple(number or ()))
        given = "\t" if delimiter in _TABS else delimiter
        dialect = Dialect(given, "" if quote == "none" else quote, header, tuple(names.split(",")) if names else ())
        if not source.exists():
            raise CorpusError(f"{source}: no folder and no file.", remedy="Name a folder of texts, or a table.")
        check_outside(output)
        if files := table_files(source):
            if (size := words or model) is not None:
                raise CorpusError(f"{size}: rows of a table are not cut.", remedy="Leave --words and --model out.")
            written = write_row_corpus(files, output, columns, dialect, skip_bad=skip_bad, overwrite=overwrite)
        else:
            if dialect != Dialect():
                raise CorpusError(f"{source}: no table, but an option of CSV is given.", remedy=_TABLES)
            if columns.named:
                raise CorpusError(f'{source}: no table, but column "{columns.named[0]}" is named.', remedy=_TABLES)
            limit = _limit(words, model)
            written = write_text_corpus(source, output, limit=limit, skip_bad=skip_bad, overwrite=overwrite)
        report_skipped(written.skipped.reasons)
        job.summary = written.summary(output)


def _limit(words: int | None, model: str | None) -> Limit:
    if model is None:
        return Limit(words or _WORDS)
    if words is not None:
        raise CorpusError(f"--words {words} beside --model.", remedy="Leave one of them out.")
    with importing("pipeline"):
        from lightretriever.artifacts.pipeline.sentence_models import load_biencoders  # slow to import
    encoder = load_biencoders(model, device="cpu")
    most = min(encoder.longest or _TOKENS, _TOKENS) - _FRAME
    return Limit(most, lambda text: len(encoder.tokenizer.encode(text)), titled=True)
