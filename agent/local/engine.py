"""Runs a model in this process: loaded once, when it is first asked, and shared by all who ask.

One answer is written at a time, and the others wait in the order in which they came. Side by side they would not be
done any sooner on one thread, and numbers would be rounded differently depending on who else is being answered: the
same seed would no longer write the same text. An answer is written ahead of whoever reads it, so nobody waits for
somebody who waits.

The engine is native code with threads of its own. A child process has none of them, and must leave alone what it
inherits; and the interpreter must not end while the engine calls back into it.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .. import errors
from . import weights
from .weights import LocalModel, verify_weights

_ROOM = 512
"""More bytes than any system's `struct sigaction` has."""


@contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Afterwards SIGINT and SIGTERM are handled as before. Where there is no such call, nothing is done."""
    try:
        import ctypes

        sigaction = ctypes.CDLL(None).sigaction
    except (ImportError, AttributeError, OSError, TypeError):
        yield
        return
    kept = {number: ctypes.create_string_buffer(_ROOM) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in kept.items():
        sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            sigaction(int(number), action, None)


_PORTION = 32
"""Tokens of a prompt that are read in one go; between two, an answer can be stopped. More would hardly be faster."""
_STEP = 256
"""The engine remembers so many tokens, or a multiple."""
_PATIENCE = 30.0
"""Seconds that the end of the program waits for the engine to come to rest. It takes a fraction of one."""
_LONGEST_ADDRESS = 100


class Generation:
    """One answer, piece by piece as it is written."""

    __slots__ = ("_pieces", "body", "ended", "stopped")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.stopped = False
        self.ended = threading.Event()
        """Set when the engine is free of it."""
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()

    def __iter__(self) -> Iterator[bytes]:
        """Its pieces, each a JSON object. It just ends when it is stopped."""
        while (piece := self._pieces.get()) is not None:
            yield piece

    def stop(self) -> None:
        """Nobody wants the rest. From any thread."""
        self.stopped = True
        self._pieces.put(None)

    def take(self, piece: bytes) -> bool:
        """Called by the engine, which passes over anything raised here. Whether to stop."""
        self._pieces.put(piece)
        return self.stopped

    def end(self) -> None:
        self._pieces.put(None)
        self.ended.set()


class Engine:
    """One loaded model, and the thread that asks it."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        module = weights.load_engine()
        self._server: Any = _loaded(module, model, verify_weights(model))
        self._waiting: SimpleQueue[Generation | None] = SimpleQueue()
        self._current: Generation | None = None
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"agent-local-{model.name}")
        self._thread.start()

    def begin(self, body: bytes) -> Generation | None:
        """Have an encoded body answered. None if the engine was closed in this moment: nobody would answer."""
        generation = Generation(body)
        with self._closing:
            if self._closed:
                return None
            self._waiting.put(generation)
        return generation

    def _work(self) -> None:
        while (generation := self._waiting.get()) is not None:
            self._current = generation
            if not generation.stopped and not self._closed:
                try:
                    self._server.handle_chat_completions(generation.body, generation.take)
                except Exception as error:  # what the engine refuses; trying again would not help
                    complaint = {"code": 400, "message": str(error), "type": "invalid_request_error"}
                    generation.take(json.dumps({"error": complaint}).encode())
            generation.end()
            self._current = None

    def close(self) -> None:
        """Stop what it writes, and free its memory."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        if (current := self._current) is not None:
            current.stop()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():  # still in native code: freeing what that uses would end the process
            self.leave()
        self._server = None

    def leave(self) -> None:
        """Never free it: its threads are in another process, or busy, and freeing it waits for them."""
        if self._server is not None:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))


def _loaded(module: Any, model: LocalModel, path: Path) -> Any:
    """A running engine.

    It insists on serving its model over HTTP, too. So it is given a socket in a private folder, which is gone before
    anybody is answered, and a key that nobody knows.
    """
    params = parameters(module, model, path)
    params.api_keys = [secrets.token_urlsafe(32)]
    folder = tempfile.mkdtemp(prefix="agent-local-")
    try:
        address = os.path.join(folder, "unused.sock")
        if sys.platform != "win32" and len(address) < _LONGEST_ADDRESS:
            params.hostname = address
        with preserve_signal_handlers():
            server = module.Server(params)
        server.handle_metrics()  # the first that it does: one that is freed before would wait for itself forever
        return server
    except RuntimeError as error:
        raise errors.ConfigurationError(
            f"The engine cannot load {path}: it is damaged, of a kind that it does not know, or too large for this "
            f"machine ({error}).",
            field="model",
            fix="Download it again, or name another.",
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parameters(module: Any, model: LocalModel, path: Path) -> Any:
    """How the engine runs this model. Much of it decides how numbers are rounded, and so what a seed writes."""
    params = module.CommonParams()
    params.model.path = str(path)
    params.model_alias = _alias(params.model_alias, model.name)
    params.n_ctx = -(-model.context // _STEP) * _STEP  # it reserves that much in any case, and dies if it is told less
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = _PORTION
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = model.threads
    params.n_threads_http = 1
    params.cache_ram_mib = 0
    params.fit_params = params.warmup = params.webui = params.endpoint_slots = False
    params.endpoint_metrics = True
    params.verbosity = -1  # it would write to our standard error
    if model.compact:
        params.cache_type_k, params.cache_type_v = module.ggml_type.GGML_TYPE_Q8_0, module.ggml_type.GGML_TYPE_Q4_0
        params.flash_attn_type = module.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    return params


def _alias(kind: Any, name: str) -> Any:
    """The name that answers carry; how the engine wants it has changed."""
    return {name} if isinstance(kind, set) else name


# The engines of this process


_engines: dict[LocalModel, Engine] = {}
_lock = threading.Lock()
_ending = False


def engine_for(model: LocalModel) -> Engine:
    """The engine that runs this model, loaded now if it is not yet."""
    found = _engines.get(model)
    if found is None:
        with _lock:
            found = _engines.get(model)
            if found is None:
                if _ending:
                    raise errors.ConfigurationError("The program is ending.", field="model", fix="Ask earlier.")
                found = _engines[model] = Engine(model)
    return found


def begin(model: LocalModel, body: bytes) -> Generation:
    """Have an encoded body answered by this model."""
    while (generation := engine_for(model).begin(body)) is None:
        pass  # somebody has unloaded it just now: load it again
    return generation


def unload() -> None:
    """Free the memory of all local models. Answers that are being written end; the next request loads again."""
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close()
    if engines:
        gc.collect()  # an engine that has answered is part of a cycle, and would keep its memory until somebody looks


def _at_exit() -> None:
    global _ending
    _ending = True
    unload()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for engine in _engines.values():
        engine.leave()
    _engines.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def is_progress(piece: bytes) -> bool:
    """Whether a piece tells how far the prompt has been read. Within a text, the quotes would be escaped."""
    return b'"prompt_progress":' in piece


def is_error(piece: bytes) -> bool:
    return piece.startswith(b'{"error":')


def error_status(piece: bytes) -> int:
    code = json.loads(piece)["error"].get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def read_prompt_tokens(piece: bytes) -> int | None:
    """The prompt's tokens, as the first piece of an answer tells them; also of a prompt that is too long."""
    told = json.loads(piece)
    if is_error(piece):
        count = told["error"].get("n_prompt_tokens")
    else:
        count = (told.get("prompt_progress") or {}).get("total")
    return count if isinstance(count, int) else None


def add_usage_details(piece: bytes) -> bytes:
    """The last piece with what the engine tells of its cache, where others tell it; and that it was free."""
    told: dict[str, Any] = json.loads(piece)
    usage: dict[str, Any] = told.get("usage") or {}
    cached = (told.get("timings") or {}).get("cache_n") or 0
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    usage["cost"] = 0
    told["usage"] = usage
    return json.dumps(told).encode()


_NO_END = b"now finding less tool calls"


def is_truncation(piece: bytes) -> bool:
    """Whether a piece says, in the engine's words, that the limit came before the end of a call."""
    return is_error(piece) and _NO_END in piece


def encode_truncation(last: bytes, prompt_tokens: int, limit: int) -> bytes:
    """The end of an answer that is cut off, as the engine tells it of all but calls.

    Args:
        last: The piece before, which knows whose answer it is.
        prompt_tokens: What was read.
        limit: What could be written, and so was.
    """
    told: dict[str, Any] = json.loads(last)
    told["choices"] = [{"finish_reason": "length", "index": 0, "delta": {}}]
    usage = {"completion_tokens": limit, "prompt_tokens": prompt_tokens, "total_tokens": limit + prompt_tokens}
    return json.dumps({**told, "usage": usage}, separators=(",", ":")).encode()
