"""The benchmarks that take a minute: what an import, a call, a chunk and a codec cost."""

from __future__ import annotations

import sys

from benchmarks import calls, codecs, imports


def main() -> int:
    return max(imports.main(), calls.main(), codecs.main())


if __name__ == "__main__":
    sys.exit(main())
