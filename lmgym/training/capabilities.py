"""Tests of what a model can do besides the task that it is trained on, by lm-eval: GSM8K, IFEval and others.

lm-eval is an extra: `pip install 'lmgym[capabilities]'`. Its tasks, prompts and checkers are used as they are, by name
or from task files as its documentation describes them. The intervals are ours, over the rows of a task.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from rich.table import Table

from lmgym.config import CAPABILITIES_BATCH, CapabilitiesConfig
from lmgym.console import say
from lmgym.distributed.deepspeed_config import zero_stage
from lmgym.distributed.random_state import random_state, restore_random_state
from lmgym.distributed.ranks import all_gather_objects, raise_on_all_ranks, rank, world_size
from lmgym.errors import MOST_STEPS, InputError
from lmgym.models.forward.policies import PolicyModel
from lmgym.report.run_files import is_number
from lmgym.runs.supervisor import Supervisor
from lmgym.statistics import Estimate, mean
from lmgym.training.capability_tasks import first_line, load_tasks, quiet
from lmgym.training.probes import Report

PROBE = "capability"
"""of evaluations: their metrics are eval/capability/TASK"""
NO_MEAN = "lm-eval's figure is no mean over rows"


@dataclass(frozen=True)
class Measured:
    """Figures by task, over all ranks, and on rank 0 lm-eval's own results with a sample for each row."""

    estimates: dict[str, Estimate]
    results: dict[str, Any]


@dataclass(frozen=True)
class Suite:
    """Tasks of lm-eval, and how a model takes them."""

    tasks: Sequence[Any]
    limit: int | None = None
    """most rows of a task"""
    batch_size: int = 8
    max_new_tokens: int | None = None
    """most tokens of a reply; None: as the task says"""
    chat_template: bool = True
    quiet: bool = True
    """without lm-eval's progress bars"""
    beat: Callable[[], None] = field(default=lambda: None)
    """called at each forward of the model"""

    @torch.no_grad()
    def measure(self, model: Any, tokenizer: Any, autocast: torch.dtype | None = None) -> Measured:
        """Figures of a transformers model with whole weights; ranks share the rows. Collective.

        The model and all random states are as before. Raises InputError for a task that cannot be run on the model.
        """
        from lm_eval.evaluator import evaluate

        kept, modes = random_state(), {module: module.training for module in model.modules()}
        hook = model.register_forward_pre_hook(lambda *_: self.beat())
        try:
            with quiet(self.quiet):
                results = evaluate(
                    _shared_model(model, tokenizer, self.batch_size, autocast),
                    _ready(self.tasks, self.max_new_tokens),
                    limit=self.limit,
                    bootstrap_iters=0,
                    apply_chat_template=self.chat_template,
                    fewshot_as_multiturn=self.chat_template,
                )
        except (AssertionError, ValueError, LookupError, TypeError, AttributeError) as error:
            if not self.quiet:
                say(error=True)  # behind a progress bar
            hint = "; needed: python -m nltk.downloader punkt_tab" if "punkt_tab" in str(error) else ""
            raise InputError(f"lm-eval cannot run these tests: {first_line(error)}{hint}") from error
        finally:
            hook.remove()
            for module, mode in modes.items():
                module.training = mode
            restore_random_state(kept)
        return Measured(all_gather_objects(estimates(results) if results else {})[0], dict(results or {}))


def _shared_model(model: Any, tokenizer: Any, batch_size: int, autocast: torch.dtype | None) -> Any:
    """lm-eval's view of the model on this rank, which answers its share of the rows."""
    from lm_eval.models.huggingface import HFLM

    # HFLM ties the weights again: a head that samples may be a rounded copy of its own (ppo/weight_sync.py)
    model.tie_weights = lambda *given, **more: None
    try:
        found = HFLM(model, tokenizer=copy.deepcopy(tokenizer), batch_size=batch_size, mixed_precision_dtype=autocast)
    finally:
        del model.tie_weights
    # it takes a model that is loaded for that of the only process, and asks accelerate for the others
    found._rank, found._world_size = rank(), world_size()
    found.all_gather = lambda tensor: torch.tensor(all_gather_objects(tensor.tolist()))
    found.gather_object = lambda value, dst=0: all_gather_objects(value)
    found.barrier = lambda: None
    return found


def _ready(tasks: Sequence[Any], max_new_tokens: int | None) -> Any:
    """The tasks by name, with the settings that lm-eval gives them before it evaluates."""
    from lm_eval.defaults import DEFAULT_OTHER_SEED
    from lm_eval.tasks import TaskManager

    found = TaskManager(include_defaults=False).load(list(tasks))
    for task in found["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config("num_fewshot", 0)
        if max_new_tokens is not None and task.OUTPUT_TYPE == "generate_until":
            task.set_config("generation_kwargs", {"max_gen_toks": max_new_tokens}, update=True)
        task.set_fewshot_seed(DEFAULT_OTHER_SEED)
    return found


def estimates(results: Mapping[str, Any]) -> dict[str, Estimate]:
    """Each metric of each task that was asked for, of a group's tasks together, with its interval over rows.

    A metric that is no mean over rows has lm-eval's value and no interval.
    """
    members = results["group_subtasks"]
    parts = {name for group in members.values() for name in group}
    found: dict[str, Estimate] = {}
    for name, values in (results["results"] | results.get("groups", {})).items():
        keys = [tuple(key.split(",", 1)) for key, value in values.items() if "," in key and is_number(value)]
        keys = [key for key in keys if not key[0].endswith("_stderr")]
        several = [len({key[place] for key in keys}) > 1 for place in (0, 1)]
        for key in keys if name not in parts else []:
            label = ".".join([name, *(part for part, differs in zip(key, several, strict=True) if differs)])
            samples = {task: results["samples"][task] for task in _leaves(name, members)}
            found[label] = _estimate(float(values[",".join(key)]), *_values(samples, *key))
    return found


def _leaves(name: str, members: Mapping[str, Sequence[str]]) -> list[str]:
    """The tasks of a group; a task itself."""
    return [leaf for part in members[name] for leaf in _leaves(part, members)] if name in members else [name]


def _values(samples: Mapping[str, Sequence[Mapping]], metric: str, kept: str) -> tuple[list[Any], list[str]]:
    """Values of a metric through a filter, and the row of each: a row may have several, as instructions of IFEval."""
    values: list[Any] = []
    rows: list[str] = []
    for task, own in samples.items():
        for sample in own:
            if sample["filter"] == kept and metric in sample:
                of_row = sample[metric] if isinstance(sample[metric], list) else [sample[metric]]
                values += of_row
                rows += [f"{task} {sample['doc_id']}"] * len(of_row)
    return values, rows


def _estimate(value: float, values: Sequence[Any], rows: Sequence[str]) -> Estimate:
    """The mean of a metric's values with its interval, if that is lm-eval's value; else the value alone."""
    if values and all(isinstance(one, bool | int | float | np.number) for one in values):
        numbers = np.asarray(values, dtype=np.float64)
        found = mean(numbers, rows, (0, 1) if np.isin(numbers, (0, 1)).all() else None)
        if found.value is not None and np.isclose(found.value, value):
            return found
    return Estimate(value, None, None, len(set(rows)), len(rows), NO_MEAN)


def figures_table(found: Mapping[str, Estimate], title: str | None = None) -> Table:
    """A table of figures with their intervals."""
    table = Table(title=title, title_justify="left")
    table.add_column("task")
    table.add_column("value (95% interval)", justify="right")
    table.add_column("rows", justify="right")
    for label, one in found.items():
        table.add_row(label, f"{one:.3f}", f"{one.units:,}")
    return table


def check_capabilities(settings: CapabilitiesConfig, deepspeed: dict | None) -> list[Any]:
    """The tasks of a run's settings; none if it tests no capabilities. Collective.

    Raises InputError as `load_tasks` does, under ZeRO-3, and for fewer rows than ranks.
    """
    if settings.capabilities is None:
        return []
    if zero_stage(deepspeed) == 3:
        raise InputError(
            "--capabilities under ZeRO-3, whose ranks have parts of each weight; needed: --deepspeed zero2, or after "
            "the run lmgym eval OUTPUT --suite TASKS"
        )
    suite, limit = settings.capabilities, settings.capabilities_limit
    tasks = raise_on_all_ranks(lambda: load_tasks(suite, settings.capabilities_data))
    for name, task in _ready(tasks, None)["tasks"].items():
        if (rows := min(limit or MOST_STEPS, len(task.eval_docs))) < world_size():
            raise InputError(f"{name} has {rows} rows for {world_size()} ranks; needed: one each or more")
    return tasks


def suite_of_run(tasks: Sequence[Any], settings: CapabilitiesConfig, supervisor: Supervisor | None) -> Suite | None:
    """The tests of a run, during which its supervisor sees progress; None without any."""
    if not tasks:
        return None
    doing = supervisor and (lambda: supervisor.heartbeat("tests of capabilities"))
    limit = settings.capabilities_limit or None
    return Suite(tasks, limit, CAPABILITIES_BATCH, beat=doing or (lambda: None))


def report_of(found: Mapping[str, Estimate]) -> Report:
    """The figures and their intervals as metrics."""
    own = [Report.of(label, one, "row") for label, one in found.items()]
    return Report(
        {name: value for one in own for name, value in one.metrics.items()},
        {name: why for one in own for name, why in one.undefined.items()},
        tuple(dict.fromkeys(note for one in own for note in one.notes)),
    )


class CapabilityProbe:
    """Tests at each evaluation of a stage that runs Hugging Face's Trainer."""

    loss = ""

    def __init__(self, suite: Suite, policy: PolicyModel, tokenizer: Any) -> None:
        self.suite, self.policy, self.tokenizer = suite, policy, tokenizer
        self.report = Report({}, {})
        self.shown: dict[str, str] = {}

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Figures by task. Collective."""
        found = self.suite.measure(self.policy.causal, self.tokenizer).estimates
        self.report, self.shown = report_of(found), {label: label for label in found}
        return self.report.metrics


def capability_probe(
    tasks: Sequence[Any],
    settings: CapabilitiesConfig,
    policy: PolicyModel,
    tokenizer: Any,
    supervisor: Supervisor | None,
) -> dict[str, CapabilityProbe]:
    """The probe of a run's tests by its name; empty without any."""
    suite = suite_of_run(tasks, settings, supervisor)
    return {PROBE: CapabilityProbe(suite, policy, tokenizer)} if suite else {}
