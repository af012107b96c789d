"""Download the libraries of the graph viewer, and check their digests.

    python scripts/vendor_viewer.py           # fetch with npm and write agent/graph/viewer_assets
    python scripts/vendor_viewer.py --check   # compare the files that are there with the digests; needs no network

cytoscape draws, dagre arranges. To move to another version, change it here, run with --print, look at what changed, and
enter the digests; NOTICE names the versions, too.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

TARGET = Path(__file__).parent.parent / "agent" / "graph" / "viewer_assets"


class File(NamedTuple):
    path: str
    """Inside the package's archive."""
    name: str
    """In our folder."""
    sha256: str


class Package(NamedTuple):
    name: str
    version: str
    sha256: str
    files: tuple[File, ...]


PACKAGES = (
    Package(
        "cytoscape",
        "3.34.4",
        "0d02363d99d805ce8d91fdecab7b2a8cb91ee280d67f309ce44c161d117b4679",
        (
            File(
                "package/dist/cytoscape.min.js",
                "cytoscape.min.js",
                "081591ab735b2b6a3b31a3c60f8f3a3e2fee8c92939e0c7820ad1208571b6cd8",
            ),
            File(
                "package/LICENSE",
                "LICENSE-cytoscape.txt",
                "eb319c6e6f233607f71e8e2f450391751883cfc0eeb3ca7ef574c13d1d9c2203",
            ),
        ),
    ),
    Package(
        "@dagrejs/dagre",
        "3.1.1",
        "6db2c35cf4c52cd1cd3a87c3a97c7c5fa559deaf4e452f67aab4008e00ca28c4",
        (
            File(
                "package/dist/dagre.min.js",
                "dagre.min.js",
                "3152d214941a5df3a3d4c079dfa338c3cd7a6c0d4c1b4c3a2fdb6bba6f6facf9",
            ),
            File(
                "package/LICENSE",
                "LICENSE-dagre.txt",
                "6a349742a6cb219d5a2fc8d0844f6d89a6efc62e20c664450d884fc7ff2d6015",
            ),
        ),
    ),
)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wrong_files(folder: Path = TARGET) -> list[str]:
    """Names of files that are missing or differ from what was pinned."""
    files = [file for package in PACKAGES for file in package.files]
    return [
        file.name
        for file in files
        if not (folder / file.name).is_file() or digest((folder / file.name).read_bytes()) != file.sha256
    ]


def fetch(package: Package, *, trusting: bool) -> dict[str, bytes]:
    """The package's files, by our names. `trusting` prints digests in place of checking them."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        [archive] = Path(folder).glob("*.tgz")
        _expect(f"{package.name}@{package.version}", archive.read_bytes(), package.sha256, trusting)
        contents: dict[str, bytes] = {}
        with tarfile.open(archive) as tar:
            for file in package.files:
                member = tar.extractfile(file.path)
                if member is None:
                    raise SystemExit(f"{package.name} {package.version} has no file {file.path}")
                contents[file.name] = member.read()
                _expect(file.name, contents[file.name], file.sha256, trusting)
    return contents


def _expect(name: str, content: bytes, expected: str, trusting: bool) -> None:
    found = digest(content)
    if trusting:
        print(f"{found}  {name}")
    elif found != expected:
        raise SystemExit(f"{name} has the digest {found}, expected {expected or 'none yet'}: nothing was written")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fetch the libraries of the graph viewer.")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="compare the files that are there; fetch nothing")
    choice.add_argument("--print", action="store_true", help="print digests of what npm has; write nothing")
    options = parser.parse_args()
    if options.check:
        if wrong := wrong_files():
            sys.exit(f"not as pinned: {', '.join(wrong)}")
        return
    contents = {
        name: content for package in PACKAGES for name, content in fetch(package, trusting=options.print).items()
    }
    if not options.print:
        for name, content in contents.items():
            (TARGET / name).write_bytes(content)


if __name__ == "__main__":
    main()
