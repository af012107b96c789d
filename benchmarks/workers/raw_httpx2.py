"""A lower floor: httpx2, the successor of httpx, and orjson, the fastest JSON library in common use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import httpx2
from typing_extensions import override

from benchmarks.workers.raw import Raw
from benchmarks.workers.wire import Json

VERSIONS = ("httpx2", "httpcore2", "orjson")
orjson: Any = import_module("orjson")


class RawHttpx2(Raw):
    @override
    def request_options(self, body: Json) -> dict[str, Any]:
        return {"content": orjson.dumps(body)}


def contestant(api: str, base: str, variant: str) -> RawHttpx2:
    return RawHttpx2(httpx2, orjson.loads, api, base)
