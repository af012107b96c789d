"""Tools that do what no tool should do: they raise, report without end, and touch what is not theirs."""

from __future__ import annotations

import asyncio
import decimal
import os
import re
import sys
import threading
import time
from typing import Any, NoReturn

from pydantic import BaseModel
from typing_extensions import override

from agent import ToolContext, errors
from agent.tools import AgentToolResult, ToolError
from tests.loop.tables import HUGE, LATE, Table, released

TABLE = Table()
fails, returns = TABLE.fails, TABLE.returns


# It raises


class Broken(Exception):
    """An exception that cannot even say what is wrong."""

    @override
    def __str__(self) -> str:
        raise ValueError("nothing can be said about it")


class Exits(Exception):
    @override
    def __str__(self) -> str:
        raise SystemExit(3)


class NotText(Exception):
    @override
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Mutters(Exception):
    """An exception that takes for ever to say what is wrong."""

    @override
    def __str__(self) -> str:
        released.wait()
        return "too late"


class Doom(BaseException):
    """A direct subclass of BaseException."""


@fails("ValueError: no good")
def raises_an_error() -> NoReturn:
    raise ValueError("no good")


@fails("KeyError: 'missing'")
def raises_a_key_error() -> NoReturn:
    raise KeyError("missing")


@fails("Broken")
def raises_what_cannot_be_told() -> NoReturn:
    raise Broken


@fails("Exits")
def raises_what_exits_when_it_is_told() -> NoReturn:
    raise Exits


@fails("NotText")
def raises_what_is_not_text() -> NoReturn:
    raise NotText


@fails(LATE)
def raises_what_takes_for_ever_to_tell() -> NoReturn:
    raise Mutters


@fails("ExceptionGroup: several (2 sub-exceptions); ValueError: one; KeyError: 'two'")
def raises_a_group() -> NoReturn:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


@fails("The tool failed with BaseExceptionGroup.")
def raises_a_group_of_the_worst() -> NoReturn:
    raise BaseExceptionGroup("several", [Doom(), SystemExit(1)])


@fails("StopIteration: 1")
def raises_stop_iteration() -> NoReturn:
    raise StopIteration(1)


@fails("RuntimeError: coroutine raised StopIteration")
async def raises_stop_iteration_async() -> NoReturn:
    raise StopIteration(1)


@fails("StopAsyncIteration")
async def raises_stop_async_iteration() -> NoReturn:
    raise StopAsyncIteration


@fails("The tool failed with GeneratorExit.")
def raises_generator_exit() -> NoReturn:
    raise GeneratorExit


@fails("The tool failed with GeneratorExit.")
async def raises_generator_exit_async() -> NoReturn:
    raise GeneratorExit


@fails("The tool failed with CancelledError.")
def raises_cancelled() -> NoReturn:
    raise asyncio.CancelledError


@fails("The tool failed with CancelledError.")
async def raises_cancelled_async() -> NoReturn:
    raise asyncio.CancelledError("I was not")


@fails("The tool failed with CancelledError.")
async def cancels_itself_and_says_so() -> str:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


@fails("The tool tried to exit the program.")
def exits() -> NoReturn:
    sys.exit(3)


@fails("The tool tried to exit the program.")
async def exits_async() -> NoReturn:
    raise SystemExit("bye")


@fails("The tool failed with Doom.")
def raises_no_exception() -> NoReturn:
    raise Doom


@fails("The tool failed with Doom.")
async def raises_no_exception_async() -> NoReturn:
    await asyncio.sleep(0)
    raise Doom


@fails(re.compile("RecursionError: maximum recursion depth exceeded.*"))
def recurses() -> Any:
    return recurses()


@fails("MemoryError")
def raises_a_memory_error() -> NoReturn:
    raise MemoryError


@fails("FileNotFoundError: [Errno 2] No such file or directory: 'secrets.txt'")
def raises_with_a_path() -> NoReturn:
    open("/srv/someone/private/secrets.txt")  # noqa: SIM115
    raise AssertionError


@fails("OSError: cannot read secrets.txt, nor 'my keys.txt', nor plan.doc, nor x.py; see https://example.com/a/b")
def raises_with_many_paths() -> NoReturn:
    raise OSError(
        "cannot read /etc/app/secrets.txt, nor '/srv/some body/my keys.txt', nor C:\\Users\\me\\plan.doc, "
        "nor file:///srv/x.py; see https://example.com/a/b"
    )


@fails("RuntimeError: while asking: ValueError: bad luck")
def raises_with_a_traceback_in_its_words() -> NoReturn:
    raise RuntimeError(
        'while asking: Traceback (most recent call last):\n  File "/srv/app/main.py", line 3, in main\n    ask()\n'
        "ValueError: bad luck"
    )


@fails("TypeError: cannot use <object object>")
def raises_with_an_address() -> NoReturn:
    raise TypeError(f"cannot use {object()}")


@fails(re.compile("ValueError: x{1900,2000}"))
def raises_ten_megabytes() -> NoReturn:
    raise ValueError("x" * 10_000_000)


@fails("ValueError: half ? a character, and  nothing")
def raises_what_cannot_be_encoded() -> NoReturn:
    raise ValueError("half \ud800 a character, and \0 nothing")


@fails("There is no such city.")
def raises_with_words_for_the_model() -> NoReturn:
    raise ToolError("There is no such city.")


@fails("The tool failed.")
def raises_without_a_word() -> NoReturn:
    raise ToolError


@fails("ValidationError: a: Input should be a valid integer, unable to parse string as an integer")
def raises_a_validation_error() -> NoReturn:
    class Model(BaseModel):
        a: int

    Model.model_validate({"a": "secret"})
    raise AssertionError


@fails("RateLimitError: slow down [retry_after=60.0]")
def raises_an_error_of_ours() -> NoReturn:
    raise errors.RateLimitError("slow down", retry_after=60.0)


@fails("ValueError: once more", retries=2)
def raises_again_and_again() -> NoReturn:
    raise ValueError("once more")


@fails("ValueError: outer")
def raises_a_chain() -> NoReturn:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


# It reports too much


@returns("done")
def reports_thousands_of_times(context: ToolContext[Any]) -> str:
    for number in range(5_000):
        context.report(f"{number}")
    return "done"


@fails(LATE)
def reports_without_end(context: ToolContext[Any]) -> None:
    while not released.is_set():
        context.report("still here")


@fails(LATE)
async def reports_without_end_async(context: ToolContext[Any]) -> None:
    while True:
        context.report("still here")
        await asyncio.sleep(0)


@returns("done")
def reports_what_cannot_be_written(context: ToolContext[Any]) -> str:
    circle: list[Any] = []
    circle.append(circle)
    for odd in (object(), circle, float("nan"), b"\xff", Broken(), None, AgentToolResult([], object())):
        context.report(odd)
    return "done"


@returns("done")
def reports_a_huge_text(context: ToolContext[Any]) -> str:
    context.report("x" * HUGE)
    return "done"


@returns("done")
def reports_after_its_end(context: ToolContext[Any]) -> str:
    def later() -> None:
        for _ in range(50):
            time.sleep(0.002)
            context.report("too late")

    threading.Thread(target=later, daemon=True).start()
    return "done"


@returns("done")
def reports_from_many_threads(context: ToolContext[Any]) -> str:
    threads = [threading.Thread(target=context.report, args=(str(number),)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "done"


# It touches what is not its own


@returns("changed")
def changes_its_context(context: ToolContext[Any]) -> str:
    for name in ("call_id", "tool_name", "run_id"):
        setattr(context, name, "evil")
    for name in ("arguments", "signal", "report", "recall", "account", "nesting", "deps", "deadline", "turn"):
        setattr(context, name, None)
    return "changed"


@returns("stopped")
def gives_itself_up(context: ToolContext[Any]) -> str:
    context.signal.set()
    return "stopped"


@returns(re.compile("(TypeError|AttributeError|ok)+"))
def changes_the_conversation(context: ToolContext[Any]) -> str:
    seen = ""
    for act in (
        lambda: context.messages.clear(),  # type: ignore[attr-defined]
        lambda: context.arguments.update(x=1),  # type: ignore[attr-defined]
        lambda: setattr(context.messages[0], "content", "x"),
    ):
        try:
            act()
        except (TypeError, AttributeError, ValueError) as error:
            seen += "TypeError" if isinstance(error, ValueError) else type(error).__name__
        else:
            seen += "ok"
    return seen


@returns("noise")
def makes_noise() -> str:
    for stream in (1, 2):
        os.write(stream, b"")
    print("noise", end="")
    sys.stderr.write("noise")
    return "noise"


@returns("done")
def changes_the_settings_of_its_thread() -> str:
    context = decimal.getcontext()
    context.prec = 3
    threading.current_thread().name = "evil"
    return "done"
