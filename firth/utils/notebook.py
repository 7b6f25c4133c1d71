"""Jupyter notebooks: progress bars, and objects shown as one line.

Only IPython is needed, which every notebook has; elsewhere nothing is shown.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any

SHELLS = ("ZMQInteractiveShell", "Shell")  # Jupyter's, Colab's
DELAY = 0.5  # seconds after which a stage gets a bar
INTERVAL = 0.2  # seconds between two updates


class HtmlRepr:
    """An object whose `repr` is one line, also in a notebook."""

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>"


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and type(ipython.get_ipython()).__name__ in SHELLS


@dataclass
class _Bar:
    """The progress bar of a stage; `handle` updates it once it is displayed."""

    done: float = 0.0
    begun: float = field(default_factory=time.monotonic)
    updated: float = 0.0
    handle: Any = None


_BARS: dict[str, _Bar] = {}  # of stages that have not finished


def show_progress(stage: str, done: int, total: int) -> None:
    """Show the progress of a stage that takes a while, if this is a notebook."""
    count = f"{done:,} of {total:,}" if total else f"{done:,}"
    show_bar(stage, done, total, count, delay=DELAY)


def show_bar(stage: str, done: float, total: float, text: str, delay: float = 0.0) -> None:
    """Display or update the progress bar of a stage; if `done` falls, the stage begins anew."""
    if not in_notebook():
        return
    bar = _BARS.setdefault(stage, _Bar())
    if done < bar.done:
        bar = _BARS[stage] = _Bar()
    bar.done, finished, now = done, bool(total) and done >= total, time.monotonic()
    if finished:
        del _BARS[stage]
    due = now - bar.updated >= INTERVAL and now - bar.begun >= delay
    if due or (finished and bar.handle is not None):
        _display(bar, _as_data(stage, done, total, text))
        bar.updated = now


def _display(bar: _Bar, data: dict[str, str]) -> None:
    if bar.handle is None:
        display = import_module("IPython.display").display
        bar.handle = display(data, raw=True, display_id=True)
    else:
        bar.handle.update(data, raw=True)


def _as_data(stage: str, done: float, total: float, text: str) -> dict[str, str]:
    """Return a bar as HTML, and as text for programs that show no HTML.

    >>> _as_data("counting", 1, 2, "1 of 2")["text/html"]
    '<progress value="1" max="2"></progress> counting <code>1 of 2</code>'
    """
    size = f' value="{done:g}" max="{total:g}"' if total else ""
    html = f"<progress{size}></progress> {escape(stage)} <code>{escape(text)}</code>"
    return {"text/html": html, "text/plain": f"{stage} {text}"}
