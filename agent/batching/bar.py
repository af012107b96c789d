"""A progress bar on the terminal, with what it costs and when it ends. It needs rich, of the extra `cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from ..errors import ConfigurationError
from .values import BatchProgress, clock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Bar:
    """Shows a batch on standard error; call it with each progress."""

    def __init__(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        except ImportError:
            raise ConfigurationError(
                "A progress bar needs rich, which this Python does not have.",
                field="progress",
                fix='Install it with pip install "agent-llm-router[cli]", or pass on_progress=.',
            ) from None

        class Quiet(Console):
            @override
            def on_broken_pipe(self) -> None:
                """Rich would end the program, and with it answers that are paid for."""
                self.quiet = True

        self._shown: Progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[about]}"),
            console=Quiet(stderr=True),
            refresh_per_second=5,
            expand=True,
        )
        self._task: TaskID | None = None

    def open(self, progress: BatchProgress) -> None:
        self._task = self._shown.add_task("", total=progress.total, completed=progress.earlier, about="")
        self._shown.start()

    def __call__(self, progress: BatchProgress) -> None:
        if self._task is not None:
            self._shown.update(
                self._task, completed=progress.earlier + progress.done, total=progress.total, about=about(progress)
            )

    def close(self) -> None:
        self._shown.stop()


def about(progress: BatchProgress) -> str:
    """What there is to say beside a bar."""
    said = [f"${progress.cost:.4f}" + ("+?" if progress.unpriced else "")]
    if progress.failed:
        said.insert(0, f"{progress.failed} failed")
    if progress.eta is not None:
        said.append(f"{clock(progress.eta)} left" if progress.left else f"{clock(progress.elapsed)}")
    return " · ".join(said)
