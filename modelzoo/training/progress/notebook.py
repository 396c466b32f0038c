"""A run in a notebook: one HTML table that is drawn anew in its place, with the loss as a line and the evaluations below it."""

import sys
import time
from html import escape
from typing import Any

from modelzoo.report.svg import Curve, line_chart
from modelzoo.training.progress.progress import StepReport, time_text

__all__ = ["NotebookProgress", "is_notebook"]

EVERY_S = 0.5
SHOWN_EVALUATIONS = 10
STYLE = (
    "<style>.modelzoo{--series-1:#2a78d6;--line:#8884;font:14px sans-serif;max-width:720px}"
    ".modelzoo .grid{stroke:var(--line)}.modelzoo .tick{fill:currentColor;font-size:12px}.modelzoo .curve{fill:none;stroke-width:2}"
    ".modelzoo pre{font-family:monospace;font-size:12px;line-height:1.4;white-space:pre-wrap;margin:0 0 8px}"
    ".modelzoo .legend{list-style:none;padding:0;margin:4px 0}"
    ".modelzoo .key{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px}"
    ".modelzoo figure{margin:8px 0}.modelzoo td,.modelzoo th"
    "{padding:2px 14px 2px 0;text-align:right;font-variant-numeric:tabular-nums}</style>"
)


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook; nothing is imported for it."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and type(shell).__name__ == "ZMQInteractiveShell"


class NotebookProgress:
    """Shows a run in the output of a notebook's cell; what it says stands above the table.

    Args:
        every_s: Seconds between two drawings.
    """

    def __init__(self, every_s: float = EVERY_S) -> None:
        from IPython.display import display

        self._every_s = every_s
        self._drawn = float("-inf")
        self._notes: list[str] = []
        self._losses: list[tuple[float, float]] = []
        self._report: StepReport | None = None
        self._evaluations: list[dict[str, Any]] = []
        self._handle = display(self._page(), display_id=True)

    def note(self, text: str) -> None:
        """Show a line."""
        self._notes.append(text)
        self._draw(at_once=True)

    def step(self, report: StepReport) -> None:
        """Show a step, if it is time for one; the last one always."""
        self._report = report
        self._losses.append((report.step, report.loss))
        self._draw(at_once=report.step == report.total_steps)

    def evaluated(self, step: int, values: dict[str, float], *, is_best: bool, seconds: float) -> None:
        """Show an evaluation."""
        self._evaluations.append({"step": step, **values, "": "best" if is_best else ""})
        self._draw(at_once=True)

    def close(self) -> None:
        """Show the last state."""
        self._draw(at_once=True)

    def _draw(self, *, at_once: bool) -> None:
        if at_once or time.monotonic() - self._drawn >= self._every_s:
            self._drawn = time.monotonic()
            self._handle.update(self._page())

    def _page(self) -> Any:
        from IPython.display import HTML

        parts = [f"<pre>{escape(chr(10).join(self._notes))}</pre>"] if self._notes else []
        report = self._report
        if report is not None:
            parts.append(f'<progress value="{report.step}" max="{report.total_steps}" style="width:100%"></progress>')
            facts = {
                "step": f"{report.step} of {report.total_steps}",
                "epoch": f"{report.epoch:.2f}",
                "loss": f"{report.loss:.4f}",
                "learning rate": f"{report.lr:.2e}",
                "tokens/s": f"{report.tokens_per_s:,.0f}",
                "memory": f"{report.memory_bytes / 2**30:.2f} GiB",
                "time left": time_text(report.eta_s),
            }
            parts.append(_table([facts]))
            parts.append(line_chart([Curve(name="training loss", points=self._losses)], label="training loss over steps"))
        if self._evaluations:
            rows = [
                {key: f"{value:.4f}" if isinstance(value, float) else str(value) for key, value in row.items()}
                for row in self._evaluations
            ]
            parts.append(_table(rows[-SHOWN_EVALUATIONS:]))
        return HTML(f'{STYLE}<div class="modelzoo">{"".join(parts)}</div>')


def _table(rows: list[dict[str, str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
