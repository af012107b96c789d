"""The benchmarks that take a minute: what an import, a call and a chunk cost."""

from __future__ import annotations

import sys

from benchmarks import calls, imports


def main() -> int:
    return max(imports.main(), calls.main())


if __name__ == "__main__":
    sys.exit(main())
