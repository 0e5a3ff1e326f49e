"""Scorers named on the command line: `--scorers name=PATH,name=PATH`. Errors of form are found before torch loads.

    FOLDER, owner/name            a trained scorer; PATH#softmax[1] says how its outputs become one score (scorers.py),
                                  PATH#mean-2std how those of an ensemble's members do (combinations.py)
    FILE.py:FUNCTION, FILE.py     a function, in a form of function_forms.py
    judge:MODEL, compare:MODEL    a model that grades, or compares, by its spec (llm_judge.py, docs/judges.md)
    FILE.yaml, FILE.yaml#MODEL    a model that judges by a rubric; JSON too (rubrics.py)
    http://HOST:PORT#NAME         a scorer behind `lmgym serve rewards`
    world:SEED                    the hidden utility of a simulated world

Schemes such as world: and http: are functions of the entry points `lmgym.scorers`, which any package may add. A PATH
gives the name where that is left out.
"""

import itertools
import math
import os
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lmgym.errors import MOST_SCORE, InputError, one_line, shown, shown_path
from lmgym.runs.user_code import call_user_code

if TYPE_CHECKING:
    import torch

    from lmgym.scoring.function_forms import Given
    from lmgym.scoring.judge_settings import JudgeConfig
    from lmgym.scoring.protocol import Scorer

Precision = Literal["auto", "bf16", "fp32"]
SCHEMES = "lmgym.scorers"
"""the group of entry points, each a function that loads the scorer of a path such as NAME:REST"""
SCHEME = re.compile("([a-z][a-z0-9_]+):.*")
FUNCTION = re.compile(r"(.+\.py)(?::(\w*))?")
RUBRIC = re.compile(r"(.+\.(?:ya?ml|json))(?:#.*)?")
JUDGE = re.compile("(?:judge|compare):(.*)")
ADDRESS = re.compile("https?://([^#]*)(?:#(.+))?")
SEVERAL = re.compile("vllm:https?://[^#]*$")
UNTOLD = ("", "model", "checkpoints")
"""folders of every run, which are left out of a scorer's name"""
INSIDE_A_RUN = re.compile(r"best|last|\d+|checkpoint-\d+")
"""folders that are named together with the run they are in"""


def read_names(words: str, flag: str = "--scorers") -> dict[str, str]:
    """Paths or hub ids by name: of `a=PATH,PATH`, the second is named after its folder.

    Raises InputError, naming `flag`, for an empty path or name, and for a name that is given twice.
    """
    pairs = [_named(part.strip()) for part in _parts(words) if part.strip()]
    if not pairs or not all(path and name != "" for name, path in pairs):
        raise InputError(f"{flag} {shown(words)}: needed [name=]PATH,[name=]PATH; a PATH may be a hub id")
    given = [name for name, _ in pairs if name is not None]
    if twice := {name for name in given if given.count(name) > 1}:
        raise InputError(f"{flag} names {one_line(', '.join(sorted(twice)))} twice; needed: distinct names")
    named: dict[str, str] = {}
    for name, path in pairs:
        named[unused_name(name_of(path), [*given, *named]) if name is None else name] = path
    return named


def _parts(words: str) -> list[str]:
    """The words between commas, but for commas between the addresses of vllm:URL,URL."""
    parts: list[str] = []
    for part in words.split(","):
        if parts and ADDRESS.fullmatch(part.strip()) and SEVERAL.search(parts[-1]):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts


def _named(part: str) -> tuple[str | None, str]:
    """(name, path) of `name=PATH`; the name of a PATH, which may contain `=` behind a slash, is None."""
    name, equals, path = part.partition("=")
    return (name.strip(), path.strip()) if equals and "/" not in name else (None, part)


def name_of(path: str) -> str:
    """The name of a folder or hub id: of outputs/short/model it is short, of outputs/short/2/model short_2.

    That of a served model (lmgym/generation/model_specs.py) is the model's, or follows from its first address; a judge
    has that of its model, a rubric and a function their own.
    """
    from lmgym.models.sources import SERVED

    if match := JUDGE.fullmatch(path):
        return name_of(match[1])
    folder, _, rest = path.partition("#")
    if (match := FUNCTION.fullmatch(path)) and not os.path.isdir(path):
        folder = match[2] or match[1].rpartition(".")[0]
    elif not os.path.exists(path) and (match := RUBRIC.fullmatch(path)):
        folder = match[1].rpartition(".")[0]
    elif match := ADDRESS.fullmatch(path):
        folder = match[2] or match[1].rstrip("/")
    elif SERVED.match(path):
        folder = rest or path.partition(":")[2].split(",")[0].rstrip("/").removesuffix("/v1")
    parts = os.path.abspath(folder).split(os.sep) if os.path.exists(folder) else folder.split("/")
    parts = [part for part in parts if part not in UNTOLD] or [folder]
    first = next((i for i in reversed(range(len(parts))) if not INSIDE_A_RUN.fullmatch(parts[i])), 0)
    return re.sub(r"[^A-Za-z0-9_.]+", "_", "_".join(parts[first:])).strip("_.") or "scorer"


def unused_name(name: str, used: Collection[str]) -> str:
    """The name, or with the first number from 2 on that makes it none of `used`."""
    numbered = (f"{name}_{i}" for i in itertools.count(2))
    return next(one for one in itertools.chain([name], numbered) if one not in used)


def compares(path: str) -> bool:
    """True of a judge that compares the replies to one prompt, by its spec; its rubric is read where there is one."""
    from lmgym.scoring.rubrics import read_spec

    if not (JUDGE.fullmatch(path) or RUBRIC.fullmatch(path)):
        return False
    try:
        return read_spec(path).compare
    except InputError:  # which is said where it loads
        return False


def load_scorers(words: str, given: "Given | None" = None) -> dict[str, "Scorer"]:
    """Scorers by name, on the GPU if there is one. Raises InputError for one that does not load."""
    return {name: load_scorer(path, given=given) for name, path in read_names(words).items()}


def load_scorer(
    path: str, precision: Precision = "auto", asking: "JudgeConfig | None" = None, given: "Given | None" = None
) -> "Scorer":
    """The scorer of a path, on the GPU if it has weights and there is one.

    `asking`: how a judge's model is asked, in place of its rubric's. `given`: what the command has for a function
    beside prompts and replies; None: nothing.
    """
    from importlib import metadata

    if JUDGE.fullmatch(path) or RUBRIC.fullmatch(path):
        from lmgym.scoring.rubrics import load_judge

        return load_judge(path, asking)
    if match := FUNCTION.fullmatch(path):
        from lmgym.scoring.function_scorers import NOTHING, load_function

        return load_function(match[1], match[2] or "", given or NOTHING)
    if (match := SCHEME.fullmatch(path)) and (found := metadata.entry_points(group=SCHEMES, name=match[1])):
        load: Any = next(iter(found)).load()
        return call_user_code(path, lambda: load(path))
    return _load_folder(path, precision)


def _load_folder(path: str, precision: Precision) -> "Scorer":
    """A trained scorer, or an ensemble of them."""
    from lmgym.models.sources import SERVED
    from lmgym.scoring.folders import is_ensemble, refuse_untrained

    if SERVED.match(path):
        raise InputError(f"{shown(path)} is a served model; needed: judge:{one_line(path, 120)}, which grades replies")
    folder, sign, reduce = (path, "", "") if os.path.exists(path) else path.partition("#")
    if not is_ensemble(folder):
        refuse_untrained(folder)

    import torch  # which takes seconds

    from lmgym.scoring.combinations import NEEDED, is_combination
    from lmgym.scoring.ensembles import load_ensemble
    from lmgym.scoring.scorers import REDUCTIONS, HFScorer

    if sign and not (reduce in REDUCTIONS or is_combination(reduce)):
        needed = f"{', '.join(REDUCTIONS)}, or of several heads or members {NEEDED}"
        raise InputError(f"{shown(reduce)} behind the scorer {shown_path(folder)}#; needed: {needed}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = weights_dtype(precision, device)
    if is_ensemble(folder):
        return load_ensemble(folder, reduce or None, device, dtype)
    return HFScorer.load(folder, reduce or None, device=device, dtype=dtype)


def weights_dtype(precision: Precision, device: str) -> "torch.dtype":
    """The dtype of a scorer's weights: with auto bf16 on a GPU, for half of the memory, and fp32 on a CPU."""
    import torch

    in_bf16 = precision == "bf16" or (precision == "auto" and device == "cuda")
    return torch.bfloat16 if in_bf16 else torch.float32


def load_on_main_rank(words: str | None) -> dict[str, "Scorer"]:
    """The scorers on rank 0, none on other ranks; not sharded, even under ZeRO-3. Collective."""
    from lmgym.distributed.deepspeed_engine import without_sharded_load
    from lmgym.distributed.ranks import raise_on_all_ranks, rank

    with without_sharded_load():
        return raise_on_all_ranks(lambda: load_scorers(words) if rank() == 0 and words is not None else {})


class Weights(NamedTuple):
    """Weights by name, at the end of a run, and at its beginning those of which they differ there."""

    last: dict[str, float]
    first: dict[str, float]


def read_weights(weights: str | None, names: Collection[str]) -> Weights:
    """From `name=NUMBER` or `name=FIRST:LAST`, comma-separated; 1 by default. Raises InputError for what is none."""
    given: dict[str, list[float]] = {}
    for part in filter(str.strip, (weights or "").split(",")):
        name, _, number = part.partition("=")
        try:
            numbers = [float(one) for one in number.split(":")]
        except ValueError:
            numbers = [math.nan]
        if len(numbers) > 2 or not all(abs(one) <= MOST_SCORE for one in numbers):
            needed = f"name=NUMBER or name=FIRST:LAST, comma-separated, each at most {MOST_SCORE:,.0f} in size"
            raise InputError(f"--weights {shown(weights)}: found {shown(number)}; needed: {needed}")
        given[name.strip()] = numbers
    if unknown := given.keys() - set(names):
        raise InputError(f"--weights names {one_line(', '.join(sorted(unknown)))}; the scorers are {', '.join(names)}")
    first = {name: numbers[0] for name, numbers in given.items() if numbers[0] != numbers[-1]}
    return Weights({name: given.get(name, [1.0])[-1] for name in names}, first)
