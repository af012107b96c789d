"""Send an image with a question.

Runs offline. For a real model: AGENT_MODEL=openai-chat:gpt-4o OPENAI_API_KEY=... python examples/images.py
"""

from __future__ import annotations

import os
import struct
import zlib

from agent import Agent, ContentPart, Message
from agent.testing import scripted_agent


def red_square(size: int = 32) -> bytes:
    """A PNG, so that the example needs no file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * size) * size
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def make_agent() -> Agent:
    model = os.environ.get("AGENT_MODEL")
    return Agent(model) if model else scripted_agent("A red square.")


def main() -> None:
    picture = ContentPart.image_data_part(red_square(), media_type="image/png")
    question = Message.user([ContentPart.text_part("What is in this picture?"), picture])
    print(make_agent().complete(question).text)


if __name__ == "__main__":
    main()
