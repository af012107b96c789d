"""Engine for local models: loads a model on first use, and generates one response at a time.

Requests are queued: parallel generation is not faster on one thread, and makes results depend on other requests, so
that a seed would no longer be reproducible. The output is buffered, so a slow reader does not block other requests.

The engine is native code with its own threads. A forked child must not touch an inherited engine, and the interpreter
must not exit during a callback.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from .. import errors
from . import weights
from .weights import LocalModel, verify_weights

_ROOM = 512
"""Larger than `struct sigaction` on any system."""


@contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM afterwards, where the system supports it."""
    try:
        import ctypes

        sigaction = ctypes.CDLL(None).sigaction
    except (ImportError, AttributeError, OSError, TypeError):
        yield
        return
    handlers = {number: ctypes.create_string_buffer(_ROOM) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, action in handlers.items():
        sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in handlers.items():
            sigaction(int(number), action, None)


_PORTION = 32
"""Prompt tokens per batch; generation can be stopped between batches. Larger batches are hardly faster."""
_STEP = 256
"""The context size must be a multiple of this."""
_PATIENCE = 30.0
"""Maximum seconds to wait for the engine at exit."""
_LONGEST_ADDRESS = 100


class Generation:
    """A response that is being generated: an iterable of JSON chunks."""

    __slots__ = ("_pieces", "body", "ended", "stopped")

    def __init__(self, body: bytes) -> None:
        self.body: bytes = body
        self.stopped: bool = False
        self.ended: threading.Event = threading.Event()
        """Set when the engine is finished with it."""
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the JSON chunks; ends early after `stop`."""
        while (piece := self._pieces.get()) is not None:
            yield piece

    def stop(self) -> None:
        """Stop the generation. Thread-safe."""
        self.stopped = True
        self._pieces.put(None)

    def take(self, piece: bytes) -> bool:
        """Callback of the engine, which ignores exceptions. Returns whether to stop."""
        self._pieces.put(piece)
        return self.stopped

    def end(self) -> None:
        self._pieces.put(None)
        self.ended.set()


class Engine:
    """A loaded model and its worker thread."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model
        module = weights.load_engine()
        self._server: Any = _load_server(module, model, verify_weights(model))
        self._waiting: SimpleQueue[Generation | None] = SimpleQueue()
        self._current: Generation | None = None
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"agent-local-{model.name}")
        self._thread.start()

    def submit(self, body: bytes) -> Generation | None:
        """Queue a request; None if the engine has just been closed."""
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
                except Exception as error:  # the engine rejects the request
                    complaint = {"code": 400, "message": str(error), "type": "invalid_request_error"}
                    generation.take(json.dumps({"error": complaint}).encode())
            generation.end()
            self._current = None

    def close(self) -> None:
        """Stop the current generation and free the memory."""
        with self._closing:
            self._closed = True
            self._waiting.put(None)
        if (current := self._current) is not None:
            current.stop()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive():  # freeing memory in use by native code would crash the process
            self.leave()
        self._server = None

    def leave(self) -> None:
        """Leak the engine: freeing it would wait for its threads, which are busy or in another process."""
        if self._server is not None:
            import ctypes

            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._server))


def _load_server(module: Any, model: LocalModel, path: Path) -> Any:
    """Load a model.

    The engine insists on an HTTP server, so it gets a socket in a private folder that is deleted at once, and a random
    API key.
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
        server.handle_metrics()  # an engine without any request would deadlock when it is freed
        return server
    except RuntimeError as error:
        raise errors.ConfigurationError(
            f"The engine cannot load {path}: it is damaged, unsupported, or too large for this machine ({error}).",
            field="model",
            fix="Download it again, or use another model.",
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parameters(module: Any, model: LocalModel, path: Path) -> Any:
    """Return the engine's parameters. Changes can affect rounding, and so the output for a seed."""
    params = module.CommonParams()
    params.model.path = str(path)
    is_set = isinstance(params.model_alias, set)  # depends on the engine version
    params.model_alias = {model.name} if is_set else model.name
    params.n_ctx = -(-model.context // _STEP) * _STEP  # the engine aborts unless it is a multiple
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = _PORTION
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = model.threads
    params.n_threads_http = 1
    params.cache_ram_mib = 0
    params.fit_params = params.warmup = params.webui = params.endpoint_slots = False
    params.endpoint_metrics = True
    params.verbosity = -1  # no logs on standard error
    if model.compact:
        params.cache_type_k, params.cache_type_v = module.ggml_type.GGML_TYPE_Q8_0, module.ggml_type.GGML_TYPE_Q4_0
        params.flash_attn_type = module.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    return params


# Registry of loaded engines


_engines: dict[LocalModel, Engine] = {}
_lock = threading.Lock()
_ending = False


def engine_for(model: LocalModel) -> Engine:
    """Return the engine of a model, loading it if necessary."""
    found = _engines.get(model)
    if found is None:
        with _lock:
            found = _engines.get(model)
            if found is None:
                if _ending:
                    raise errors.ConfigurationError(
                        "The interpreter is shutting down.", field="model", fix="Make calls before the program exits."
                    )
                found = _engines[model] = Engine(model)
    return found


def start_generation(model: LocalModel, body: bytes) -> Generation:
    """Start generating a response."""
    while (generation := engine_for(model).submit(body)) is None:
        pass  # unloaded in the meantime: load it again
    return generation


def unload() -> None:
    """Unload all local models and free their memory. Running generations end."""
    with _lock:
        engines = list(_engines.values())
        _engines.clear()
    for engine in engines:
        engine.close()
    if engines:
        gc.collect()  # engines are part of reference cycles


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
    """Whether a chunk reports prompt progress. In text, the quotes would be escaped."""
    return b'"prompt_progress":' in piece


def is_error(piece: bytes) -> bool:
    return piece.startswith(b'{"error":')


def read_error_status(piece: bytes) -> int:
    code = json.loads(piece)["error"].get("code")
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def read_prompt_tokens(piece: bytes) -> int | None:
    """Return the number of prompt tokens from the first chunk or error, if present."""
    chunk = json.loads(piece)
    if is_error(piece):
        count = chunk["error"].get("n_prompt_tokens")
    else:
        count = (chunk.get("prompt_progress") or {}).get("total")
    return count if isinstance(count, int) else None


def add_usage_details(piece: bytes) -> bytes:
    """Add cached tokens and the zero cost to the last chunk, in the fields of Chat Completions."""
    chunk: dict[str, Any] = json.loads(piece)
    usage: dict[str, Any] = chunk.get("usage") or {}
    cached = (chunk.get("timings") or {}).get("cache_n") or 0
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    usage["cost"] = 0
    chunk["usage"] = usage
    return json.dumps(chunk).encode()


_NO_END = b"now finding less tool calls"


def is_truncation(piece: bytes) -> bool:
    """Whether the engine reports that max_tokens was reached within a tool call."""
    return is_error(piece) and _NO_END in piece


def encode_truncation(last: bytes, prompt_tokens: int, limit: int) -> bytes:
    """Return the last chunk of a truncated response, which the engine does not send for tool calls.

    Args:
        last: The previous chunk, which holds the response id.
        prompt_tokens: Number of prompt tokens.
        limit: `max_tokens`, the number of generated tokens.
    """
    chunk: dict[str, Any] = json.loads(last)
    chunk["choices"] = [{"finish_reason": "length", "index": 0, "delta": {}}]
    usage = {"completion_tokens": limit, "prompt_tokens": prompt_tokens, "total_tokens": limit + prompt_tokens}
    return json.dumps({**chunk, "usage": usage}, separators=(",", ":")).encode()


# Request bodies: Chat Completions with engine-specific settings, always streamed

_FORM = {
    # Small models tend to emit blank lines between JSON values until they reach the token limit.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # Ignore unsupported keywords instead of the whole schema; the output is validated anyway.
    "lenient": True,
    "coerce_one_of": True,
}
_LARGEST = 2**53 - 1
"""Default bound of numbers, because small models may not end them; the limit of safe JSON integers."""
_FINEST = 1e-6
"""Default precision of numbers."""
_LEFT_ALONE = frozenset(("enum", "const", "default", "examples", "allOf", "not", "if", "then", "else"))
"""Keywords whose values are not transformed: they hold no schemas, or schemas valid only together."""
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))
"""Keywords whose values map names to schemas."""
_OPEN = frozenset(("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"))
"""Keywords that define further properties of an object."""
_MOST_TOKENS = 2**31 - 1
_SEEDS = 2**32 - 1
"""Number of seeds; the engine uses the next number for a random seed."""
_MIROSTATS = (None, 0, 1, 2)


def encode_request(body: Mapping[str, Any], settings: Mapping[str, Any]) -> bytes:
    """Encode a request."""
    request: dict[str, Any] = {
        **settings,
        **body,
        "messages": [_repair_calls(message) for message in body["messages"]],
    }
    request.update(stream=True, stream_options={"include_usage": True}, return_progress=True)
    if "cache_prompt" not in request:
        # A cached prompt was computed in other batches and rounded differently, so results would not be reproducible.
        request["cache_prompt"] = request.get("seed") is None and request.get("temperature") != 0
    if isinstance(seed := request.get("seed"), int):
        request["seed"] = seed % _SEEDS
    if isinstance(limit := request.get("max_tokens"), int):
        request["max_tokens"] = min(limit, _MOST_TOKENS)
    if request.get("mirostat") not in _MIROSTATS:  # the engine would crash
        raise errors.ConfigurationError("Invalid mirostat.", field="extra", fix="Use 0, 1 or 2.")
    form = request.get("response_format")
    if form == {"type": "json_object"}:  # the engine would allow any value
        form = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    named = form.get("json_schema") if isinstance(form, dict) else None
    if isinstance(named, dict) and isinstance(schema := named.get("schema"), dict):
        schema = {"x-guidance": _FORM, **_bound_schema(schema)}
        request["response_format"] = {"type": "json_schema", "json_schema": {**named, "schema": schema}}
    return json.dumps(request).encode()


def _repair_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Replace invalid call arguments with JSON, because the engine rejects the request otherwise."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_repair_arguments(call) for call in message["tool_calls"]]}


def _repair_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not function:
        return call
    try:
        json.loads(function["arguments"])
    except ValueError:
        return {**call, "function": {**function, "arguments": json.dumps({"unreadable": function["arguments"]})}}
    return call


def _bound_schema(schema: Any) -> Any:
    """Bound every number, and close objects that do not declare further properties."""
    if isinstance(schema, list):
        return [_bound_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    ended: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            ended[name] = {key: _bound_schema(item) for key, item in value.items()}
        else:
            ended[name] = value if name in _LEFT_ALONE else _bound_schema(value)
    kinds = ended.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if ("integer" in kinds or "number" in kinds) and not ended.keys() & {"enum", "const"}:
        _bound_number(ended, whole="number" not in kinds)
    if "object" in kinds and "properties" in ended and not ended.keys() & _OPEN:
        ended["additionalProperties"] = False
    return ended


def _bound_number(schema: dict[str, Any], *, whole: bool) -> None:
    """Add default bounds if they leave a valid range."""
    lower = schema.get("minimum", schema.get("exclusiveMinimum"))
    upper = schema.get("maximum", schema.get("exclusiveMaximum"))
    if upper is None and (lower is None or lower < _LARGEST):
        schema["maximum"] = _LARGEST
    if lower is None and (upper is None or upper > -_LARGEST):
        schema["minimum"] = -_LARGEST
    fine = any(bound is not None and round(bound, 6) != bound for bound in (lower, upper))
    if not whole and not fine and "multipleOf" not in schema:
        schema["multipleOf"] = _FINEST


def encode_count_request(body: Mapping[str, Any]) -> bytes:
    """Encode a token count request: it is stopped after the count, before the prompt is read."""
    request: dict[str, Any] = {**body, "messages": [_repair_calls(message) for message in body["messages"]]}
    request.update(stream=True, return_progress=True, cache_prompt=False, max_tokens=1)
    request.pop("response_format", None)
    return json.dumps(request).encode()
