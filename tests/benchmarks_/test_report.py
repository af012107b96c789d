"""The page tells what was found, in whose favour it may be."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from benchmarks import plots
from benchmarks.report import Result, behind, page, picture


def cell(contestant: str, ratio: float, row: str = "call") -> dict[str, Any]:
    spread = {"median": ratio, "low": ratio * 0.9, "high": ratio * 1.1, "count": 9}
    control = {"median": 1.0, "low": 0.98, "high": 1.02, "count": 9}
    return {"row": row, "api": "anthropic", "contestant": contestant, "ratio": spread, "control": control}


RESULT: dict[str, Any] = {
    "date": "2026-11-18T01:02:03+00:00",
    "machine": {"processor": "A processor", "cores": 2, "system": "Linux"},
    "python": "3.11.7",
    "settings": {"sessions": 3, "rounds": 5, "block_seconds": 0.05},
    "absent": {"aisuite": "no such version"},
    "versions": {"agent": {"pydantic": "2.14.3"}},
    "cells": [
        cell("agent", 0.75),
        cell("httpx2 + orjson", 0.5),
        cell("litellm", 6.25),
        cell("agent", 2.0, "first"),
        cell("langchain", 1.5, "first"),
        {"row": "call", "api": "anthropic", "contestant": "llm", "error": "WrongAnswer: 3 characters"},
    ],
}


def test_the_least_of_the_libraries_is_bold_and_the_floors_are_not() -> None:
    text = page(Result(RESULT))
    assert "| agent | **0.75** |" in text
    assert "| httpx2 + orjson | 0.50 |" in text
    assert "| *raw httpx, again* | 1.00 (0.98–1.02) |" in text


def test_the_page_says_where_we_are_behind_and_who_is_missing() -> None:
    assert list(behind(Result(RESULT))) == [
        "- 200 messages and 20 tools, first request, anthropic: agent 2.00; langchain 1.50."
    ]
    text = page(Result(RESULT))
    assert "- aisuite could not be installed: no such version" in text
    assert "- llm, one call (anthropic): WrongAnswer: 3 characters" in text
    assert "2026-11-18" in text
    assert "pydantic 2.14.3" in text


def test_a_picture_is_xml_with_a_bar_for_each() -> None:
    drawn = picture(Result(RESULT), "call")
    root = ET.fromstring(drawn)
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == 4
    assert "litellm" in drawn
    assert ET.fromstring(plots.bars("A < B", "unit", [plots.Bar("a & b", 0.01, 0.009, 300.0)])) is not None
