"""report.html: one file per run that needs no network, written at each evaluation and at the end of a run.

Why Vega-Lite: a chart is a JSON object, so that writing a report takes milliseconds, and the browser draws it as SVG in
its own width and in light or dark colours, with tooltips. Its bundle has 0.9 MB (Bokeh's 1.3 MB, Plotly's 4.8 MB).
Twelve charts took 0.3 s in matplotlib and 0.6 s in Bokeh on a core on which a whole report now takes 7 to 25 ms.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from lmgym.aids import aid
from lmgym.report import costs, curves, facts, held_out, samples
from lmgym.report.key_figures import NONE_YET
from lmgym.report.panels import Panel, Section, figure
from lmgym.report.run_files import RunFiles

REPORT = "report.html"
PACKAGE = "vl-convert-python"
# the bundle is made by a JavaScript engine, which belongs in no training process
COMMAND = "import sys, vl_convert; open(sys.argv[1], 'w', encoding='utf-8').write(vl_convert.javascript_bundle())"
SECONDS = 60


def report_page(folder: Path, live: bool = False, killed: bool = False) -> str:
    """The report of a run's folder as HTML. A `live` page reloads itself when its server has a newer one; `killed` is
    that of `RunFiles`.
    """
    run = RunFiles(folder, killed=killed)
    record = run.record
    sections = run_sections(run)
    kind, words = facts.outcome(record)
    return render(
        title=samples.shown(record.get("name") or folder.resolve().name),
        badge={"kind": kind, "words": words},
        lead=facts.ending(run),
        cards=facts.cards(run),
        sections=sections,
        live=live,
    )


def run_sections(run: RunFiles) -> list[Section]:
    """The parts of a run's report, those without content left out."""
    sections = [
        _section("optimisation", "Over-optimisation", run, curves.over_optimisation),
        _section("curves", "Curves", run, curves.curves),
        _section("held_out", "Held-out evaluation", run, held_out.held_out, samples.score_distributions, curves.probes),
        _section("replies", "Replies", run, samples.replies),
        _section("episodes", "Episodes, turn by turn", run, samples.conversations),
        _section("data", "Data", run, facts.data),
        _section("run", "What was run", run, costs.phases, facts.launches, facts.settings, facts.metric_table),
    ]
    # after the others, which find what cannot be read
    sections.insert(0, _section("notes", "Warnings and notes", run, facts.notes))
    return [section for section in sections if section.panels]


def _section(id: str, title: str, run: RunFiles, *makes: Callable[[RunFiles], Sequence[Panel]]) -> Section:
    return Section(id, title, [panel for make in makes for panel in _panels(title, run, make)])


@aid("{0} in report.html", list)
def _panels(title: str, run: RunFiles, make: Callable[[RunFiles], Sequence[Panel]]) -> Sequence[Panel]:
    return make(run)


def render(
    title: str,
    badge: Mapping[str, str],
    lead: Sequence[str],
    cards: Sequence[Any],
    sections: Sequence[Section],
    live: bool = False,
    style: str = "",
    script: str = "",
) -> str:
    """A page of sections. All text is escaped by the template; charts, episodes and viewers travel as JSON.

    `style` and `script` are added to the page's own; a script finds its panel's content in `viewers-json`.
    """
    panels = [panel for section in sections for panel in section.panels]
    charts = {
        panel.id: panel.chart | {"usermeta": panel.chart.get("usermeta", {}) | {"terms": dict(panel.terms)}}
        for panel in panels
        if panel.chart
    }
    episodes = {panel.id: panel.episodes for panel in panels if panel.episodes}
    viewers = {panel.id: panel.viewer for panel in panels if panel.viewer}
    return _template().render(
        title=title,
        badge=badge,
        lead=lead,
        cards=cards,
        sections=sections,
        live=live,
        charts=_script_json(charts),
        episodes=_script_json(episodes),
        viewers=_script_json(viewers),
        vega=vega_bundle() if charts else "",
        style=_asset("page.css") + style,
        script=_asset("page.js") + script,
        figure=figure,
        none_yet=NONE_YET,
    )


def vega_bundle() -> str:
    """The JavaScript of charts, which defines `vegaEmbed`; empty if the package is missing or cannot make it."""
    try:
        cached = _cache_folder() / f"vega-{version(PACKAGE)}.js"
        if not cached.is_file():
            cached.parent.mkdir(parents=True, exist_ok=True)
            temporary = cached.with_name(f".{cached.name}.{os.getpid()}")
            subprocess.run([sys.executable, "-c", COMMAND, temporary], check=True, capture_output=True, timeout=SECONDS)
            os.replace(temporary, cached)
        return cached.read_text(encoding="utf-8")
    except (PackageNotFoundError, OSError, subprocess.SubprocessError):
        return ""


def _cache_folder() -> Path:
    """~/.cache/lmgym, or a folder of this user under the temporary folder if home cannot be written."""
    given = os.environ.get("XDG_CACHE_HOME")
    home = Path(given) if given else Path.home() / ".cache"
    for parent in (home, home.parent):
        if parent.is_dir():
            if os.access(parent, os.W_OK):
                return home / "lmgym"
            break
    return Path(tempfile.gettempdir()) / f"lmgym-{os.getuid()}"


def _script_json(content: Any) -> str:
    """JSON that cannot end the script element it is in."""
    text = json.dumps(content, allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_asset("page.html"))


@cache
def _asset(name: str) -> str:
    return files("lmgym.report").joinpath(name).read_text(encoding="utf-8")
