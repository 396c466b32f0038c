"""What is known of a run, read from its folder alone: summaries, pictures, pages and cards. Imports no torch."""

from modelzoo.report.html_report import report_html, write_report
from modelzoo.report.picture import draw_runs
from modelzoo.report.run_files import RunFiles, is_run, read_records, read_run
from modelzoo.report.sparkline import sparkline
from modelzoo.report.summary import RunSummary, find_runs, state_of, summarize

__all__ = [
    "RunFiles",
    "RunSummary",
    "draw_runs",
    "find_runs",
    "is_run",
    "read_records",
    "read_run",
    "report_html",
    "sparkline",
    "state_of",
    "summarize",
    "write_report",
]
