"""Commands of README.md and docs/ are run as printed; those that cannot run here have flags and files that exist."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from forked_commands import ForkedCommands
from patience import PATIENCE
from printed_blocks import PAGES, ROOT, Block, copy_repository, every_block, read_blocks, run_block

from lmgym.apps.debate.commands import tournaments
from lmgym.apps.games.small_policy import untrained
from lmgym.cli.launch import launch_command
from lmgym.environments.random_walks_model import made_once
from lmgym.runs.flag_help import split_help
from lmgym.runs.flags import override
from lmgym.runs.launching import FORMS, experiments, find_experiment
from lmgym.runs.user_code import import_file

LONGEST_BLOCK = 3 * 3600.0
"""seconds after which a block hangs; one of 8 minutes took more than 30 beside five other programs on two cores"""


EXPENSIVE = ("docs/agents.md", "docs/data_formats.md", "docs/from_llamagym.md", "docs/games.md")
"""pages whose short blocks take 15 CPU seconds each, more than those of all other pages"""


def commands(block: Block) -> list[list[str]]:
    """The words of each command of a block, without here-documents and comments."""
    text = re.sub(r"<<'(\w+)'.*?^\1$", "", block.text, flags=re.DOTALL | re.MULTILINE).replace("\\\n", " ")
    lines = (line for whole in text.splitlines() for line in re.split(r" \| ", whole))
    return [without_nodes(words) for line in lines if (words := shlex.split(line, comments=True))]


def without_nodes(words: list[str]) -> list[str]:
    """A command of `lmgym launch` without its own options, which are checked: `lmgym train ...` where it has that."""
    if words[:2] != ["lmgym", "launch"] or "--help" in words:
        return words
    context = launch_command.make_context("launch", [word for word in words[2:] if word != "--dry_run"])
    rest = context.params["words"]
    return ["lmgym", *rest] if rest[0] == "train" else ["lmgym", "launch", *rest]


def experiment_of(words: list[str]) -> Path | None:
    """The experiment's file that a command trains, if it is one of this repository."""
    if words[:2] == ["lmgym", "train"] and len(words) > 3 and words[3] != "--help":
        form, first = FORMS[words[2]], words[3]
        is_named = first in experiments(form.stage) or first.endswith(".py")
        return experiments(form.stage).get(first if is_named else form.experiment, ROOT / first)
    if words[:2] == ["lmgym", "launch"]:
        return find_experiment(words[2])
    if words[:2] == ["lmgym", "debate"] and len(words) > 2 and words[2] not in ("data", "audit"):
        return tournaments().get(words[2], ROOT / words[2])
    return next(
        (ROOT / word for word in words if re.match(r"(ppo|sft|reward_models|preferences)/experiments/\w+\.py$", word)),
        None,
    )


def flags_of(words: list[str]) -> list[str]:
    return [word[2:].split("=")[0].replace("-", "_") for word in words if word.startswith("--") and word != "--help"]


def check_flags(experiment: Path, words: list[str]) -> None:
    """Reads an experiment's flags as the experiment does. Raises SystemExit for one that it does not have."""
    module = import_file(experiment, "needed: an experiment")
    if words[:2] == ["lmgym", "train"]:  # data may stand in the experiment's place, or flags
        first = 3 if words[3].startswith("-") else 4
    else:
        first = next(n for n, word in enumerate(words) if word.removesuffix(".py").endswith(experiment.stem)) + 1
    flags, _ = split_help(word for word in words[first:] if word != "$ARGS")
    if "--num_gpus" in flags:
        place = flags.index("--num_gpus")
        del flags[place : place + 2]
    override(module.CONFIG, flags)


@pytest.mark.parametrize("page", PAGES)
def test_flags_and_experiments_of_printed_commands_exist(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a run in the output folder of a command would be in its way
    for block in read_blocks(page):
        for words in commands(block):
            experiment = experiment_of(words)
            if experiment is not None and not experiment.exists():
                assert f"cat > {experiment.relative_to(ROOT)}" in (ROOT / page).read_text(), f"{block}: {experiment}"
            elif experiment is not None:
                check_flags(experiment, words)


@pytest.mark.parametrize("page", PAGES)
def test_flags_of_printed_lmgym_commands_exist(page: str) -> None:
    from lmgym.cli.main import main

    for block in read_blocks(page):
        for words in commands(block):
            if words[0] != "lmgym" or words[1].startswith("-"):
                continue
            command = main.commands[words[1]]
            if isinstance(command, click.Group):
                # a file, as `lmgym playpen trainer.py`, is run
                command = command.commands["run" if words[2].endswith(".py") else words[2]]
            if any(parameter.type is click.UNPROCESSED for parameter in command.params):  # read by others
                continue
            known = {name.lstrip("-").replace("-", "_") for p in command.params for name in p.opts}
            own = words[: words.index("--")] if "--" in words else words  # what follows is for a trainer of the user's
            assert set(flags_of(own)) <= known, f"{block}: {words}"


def test_the_quickstart_has_the_commands_of_the_readme() -> None:
    """Both would otherwise train into the same folders, and the second would be refused."""
    quick, readme = (
        {block.text for block in read_blocks(page) if block.is_long} for page in ("docs/index.md", "README.md")
    )
    assert quick <= readme


def run_short_blocks(folder: Path, expensive: bool, forked: ForkedCommands | None) -> int:
    """The number of blocks, which all ran; `run_block` fails where a command does."""
    short = [block for block in every_block() if block.can_run and not block.is_long]
    short = [block for block in short if (block.page in EXPENSIVE) == expensive]
    copy_repository(folder)
    for block in short:
        run_block(block, folder, Path(sys.executable).parent, PATIENCE, forked)
    return len(short)


def plant_untrained_start(folder: Path) -> None:
    """Makes the start of the example's negotiation: its words, but no steps of imitation, which take 17 CPU seconds."""
    names: dict[str, Any] = {"__name__": "negotiation"}
    exec((ROOT / "examples/environments/negotiation.py").read_text(), names)
    names["imitate"] = untrained
    made_once(folder / names["CONFIG"].policy.model, names["start"])


def test_short_blocks_run_as_printed(tmp_path: Path) -> None:
    plant_untrained_start(tmp_path)
    with ForkedCommands() as forked:
        assert run_short_blocks(tmp_path, False, forked)


@pytest.mark.slow  # the same commands, where each process imports its libraries anew: 110 CPU seconds
@pytest.mark.parametrize("expensive", [False, True])
def test_short_blocks_run_as_printed_in_processes_that_python_starts(expensive: bool, tmp_path: Path) -> None:
    assert run_short_blocks(tmp_path, expensive, None)


@pytest.mark.slow
@pytest.mark.timeout(0)  # each block has its own
@pytest.mark.real
def test_every_block_runs_as_printed_in_a_fresh_environment(real_model: Path, tmp_path: Path) -> None:
    copy_repository(tmp_path)
    for block in every_block():
        if block.can_run and "make test" not in block.text:
            run_block(block, tmp_path, tmp_path / ".venv/bin", LONGEST_BLOCK)
    for results in (
        "outputs/policy/model",
        "outputs/new_scorer/model",
        "outputs/killed/model",
        "outputs/two_ranks/model",
    ):
        assert (tmp_path / results / "config.json").is_file(), results


def test_readme_fits_on_two_hundred_lines_of_a_hundred_and_twenty_characters() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    assert max(map(len, lines)) <= 120


def pages_behind(page: str) -> set[str]:
    """The pages that a page links to."""
    found = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text())}
    paths = {((ROOT / page).parent / link).resolve() for link in found if link.endswith(".md")}
    return {str(path.relative_to(ROOT)) for path in paths}


def test_the_navigation_has_all_pages_once() -> None:
    assert sorted(PAGES[1:]) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))


def test_every_page_is_linked_from_the_readme_or_the_quickstart() -> None:
    assert set(PAGES) <= pages_behind("README.md") | pages_behind("docs/index.md") | {"README.md"}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}; found {sorted(anchors(target))}"
