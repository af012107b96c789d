"""The floor: httpx 0.28 and the standard library's JSON, used as their documentation shows."""

from __future__ import annotations

import json

import httpx

from benchmarks.workers.raw import Raw

VERSIONS = ("httpx", "httpcore", "h11")


def contestant(api: str, base: str, variant: str) -> Raw:
    return Raw(httpx, json.loads, api, base)
