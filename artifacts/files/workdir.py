"""Work directories, where the stages of a build keep finished work, so that a stopped build can go on."""

import fcntl
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.atomic import PARTIAL, new_file, writing


@contextmanager
def work_lock(work: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a work directory for this process, or `shared` with others that share it. A process that has it alone
    removes what killed ones left half written. Raises ResumeError while another process holds it, and DiskError where
    it can't be made."""
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / ".lock").open("w")
    with lock as file:
        with writing(work):
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ResumeError(
                    f"{work}: another run is using this work directory.", remedy="Wait for it, or use another --work."
                ) from error
        for leftover in () if shared else work.rglob(PARTIAL.format("*", "[0-9a-f]" * 32)):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        yield


def check_plan(
    file: Path,
    plan: dict[str, Any],
    *,
    growing: str | None = None,
    renewed: Collection[str] = (),
    made: Iterable[Path] = (),
) -> None:
    """Begin a job by writing its plan, or go on with one that was begun with the same plan. `plan` names every input
    and setting that changes the output. The list under the key `growing` may have got longer since, or shorter at its
    end. Where nothing but keys of `renewed` differ, the files `made` of the earlier ones are removed, and the job
    begins again. Raises ResumeError that names each other difference."""
    begun = read_json(file) if file.is_file() else plan
    keys = {key for key in begun.keys() | plan.keys() if begun.get(key) != plan.get(key)}
    if growing in keys:
        pairs = zip(begun.get(growing) or [], plan.get(growing) or [], strict=False)
        keys -= set() if any(old != new for old, new in pairs) else {growing}
    if keys and keys <= set(renewed):
        for path in made:
            path.unlink(missing_ok=True)
    elif keys:
        raise ResumeError(
            f"{file}: this work directory was begun with other inputs ({_differences(begun, plan, keys)}).",
            remedy=f"Use the same inputs or another work directory, or delete {file.parent}, which is made again.",
        )
    if begun is plan or begun != plan:
        write_atomically(file, json.dumps(plan, indent=1, sort_keys=True).encode() + b"\n")


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], keys: Iterable[str], within: str = "") -> str:
    """Name the differences under some keys; of two dictionaries, the keys that differ, and of two lists the places."""
    named = list[str]()
    for key in sorted(keys):
        parts: list[Any] = [before.get(key), now.get(key)]
        if all(isinstance(part, list) for part in parts):
            parts = [{str(index): item for index, item in enumerate(part)} for part in parts]
        one, two = parts
        if isinstance(one, dict) and isinstance(two, dict):
            inner = [name for name in one.keys() | two.keys() if one.get(name) != two.get(name)]
            named.append(_differences(one, two, inner, f"{within}{key}."))
        else:
            named.append(f"{within}{key}: {one!r} there, {two!r} now")
    return "; ".join(named)


def check_same(path: Path, before: Mapping[str, Any], now: Mapping[str, Any], stage: str) -> None:
    """Raise ResumeError where an input or setting that there is `now` was another one when the `stage` of a build made
    what is at `path`; it names each difference."""
    if keys := [key for key in now if before.get(key) != now[key]]:
        raise ResumeError(
            f"{path}: was made of other inputs ({_differences(before, now, keys)}).",
            remedy=f"Run `lightretriever build --from {stage}` with this recipe.",
        )


def check_made(file: Path, now: Mapping[str, Any], stage: str) -> dict[str, Any]:
    """Read the plan of what the `stage` of a build made. Raises ResumeError where it is missing, or as `check_same`."""
    plan = read_json(file, stage=stage)
    check_same(file.parent, plan, now, stage)
    return plan


def read_json(file: Path, *, stage: str | None = None) -> dict[str, Any]:
    """Read a JSON object of a work directory, which the `stage` of a build makes. Raises ResumeError when it is missing
    or damaged."""
    if stage is not None and not file.is_file():
        raise ResumeError(f"{file}: not there.", remedy=f"Run `lightretriever build --from {stage}` with this recipe.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("expected a JSON object")
    except (OSError, ValueError) as error:
        remedy = "Delete it and run the stage that makes it again."
        raise ResumeError(f"{file}: can't be read: {error}.", remedy=remedy) from error
    return content


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file as `new_file` does. Raises DiskError."""
    with new_file(path) as file:
        file.write(content)
