"""The benchmarks that take a minute: what an import, a call, a chunk, a codec and a router cost."""

from __future__ import annotations

import sys

from benchmarks import calls, codecs, imports, routing


def main() -> int:
    return max(imports.main(), calls.main(), codecs.main(), routing.main())


if __name__ == "__main__":
    sys.exit(main())
