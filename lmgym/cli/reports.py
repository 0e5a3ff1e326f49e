"""`lmgym report`, `lmgym compare` and `lmgym watch`: a run's folder as a page, several side by side, and one live."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lmgym.config import Range
from lmgym.console import CONSOLE, say
from lmgym.errors import InputError
from lmgym.runs.files import run_folder, write_text
from lmgym.runs.launch import launch

if TYPE_CHECKING:
    from lmgym.report.panels import Table


@click.command()
@click.argument("run")
def report(run: str) -> None:
    """Write RUN/report.html again, for instance after a run was killed.

    RUN may also be the folder of a debate tournament, whose results.json is written again too.
    """
    from lmgym.apps.debate.tournament.files import has_transcripts
    from lmgym.report.page import REPORT, report_page
    from lmgym.runs.listing import was_killed

    def write() -> None:
        folder = Path(run)
        if has_transcripts(folder) and not (folder / "run.json").is_file():
            from lmgym.apps.debate.tournament.running import write_results

            write_results(folder)
        else:
            folder = run_folder(run)
            write_text(folder / REPORT, report_page(folder, killed=was_killed(folder)))
        say(f"written: {folder / REPORT}")

    launch(write)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN ...")
@click.option("--output", default="outputs/comparison.html", show_default=True, help="HTML file")
@click.option(
    "--ignore",
    "ignored",
    metavar="NAME,...",
    default="",
    help="settings that tell no methods apart, such as commit: runs that differ in them and in their seeds alone count "
    "as one method",
)
def compare(runs: tuple[str, ...], output: str, ignored: str) -> None:
    """Compare runs and methods: results, tests, settings that differ, and curves.

    Runs that differ in their seeds alone are one method: its figures are means with intervals over seeds, and methods
    are tested over seeds. Two runs are tested on the same held-out rows. The first RUN or its method is the baseline.
    """
    from lmgym.report.comparison import Comparison
    from lmgym.runs.listing import was_killed

    def run() -> None:
        folders = list({folder.resolve(): folder for folder in map(run_folder, runs)}.values())
        if len(folders) < 2:
            raise InputError(f"{len(folders)} run; needed: the folders of two runs or more")
        killed = {folder for folder in folders if was_killed(folder)}
        found = Comparison.of(folders, [name for word in ignored.split(",") if (name := word.strip())], killed)
        for panel in found.tables():
            show_table(panel.title, panel.table)
            if panel.about:
                say(panel.about)
            say()
        for note in found.notes():
            say(note)
        path = Path(output)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, found.page())
        say(f"with curves: {path}")

    launch(run)


def show_table(title: str, table: "Table | None") -> None:
    """Prints a table, or nothing if it is empty."""
    from rich.table import Table as RichTable

    if table is None or not table.rows:
        return
    printed = RichTable(title=title, title_justify="left")
    for column in table.columns:
        printed.add_column(column, overflow="fold")
    for row in table.rows:
        printed.add_row(*row)
    CONSOLE.print(printed)


@click.command()
@click.argument("run")
@click.option("--port", default=8000, show_default=True, help="on 127.0.0.1; 0: any that is free")
def watch(run: str, port: int) -> None:
    """Serve RUN's report on this machine; the page follows the run. Stop with Ctrl-C."""
    from lmgym.report.live import ReportServer
    from lmgym.runs.listing import was_killed

    def serve() -> None:
        Range(0, 65_535, hint="0: any that is free").check("port", port)
        folder = run_folder(run)
        try:
            server = ReportServer(folder, port, lambda: was_killed(folder))
        except OSError as error:
            raise InputError(
                f"port {port} on 127.0.0.1: {error.strerror}; needed: a free port, such as --port 0"
            ) from error
        with server:
            say(f"http://127.0.0.1:{server.server_port}/ shows {folder}; Ctrl-C stops")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                say("stopped")

    launch(serve)
