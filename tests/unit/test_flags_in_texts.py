"""Flags that texts name: each is of some command, and in a message of a stage it is that stage's."""

import ast

import pytest
from flag_words import (
    FLAG,
    Node,
    definitions,
    flags_in,
    flags_of_commands,
    flags_of_stage,
    modules,
    reached,
)

from lmgym.apps.audit.agree.agree_command import AgreeConfig
from lmgym.apps.audit.attack_command import AttackConfig
from lmgym.apps.audit.audit_command import AuditConfig
from lmgym.apps.debate.audit.command import AuditConfig as JudgeAuditConfig
from lmgym.apps.debate.commands import tournaments
from lmgym.apps.debate.training.command import data
from lmgym.apps.playpen.commands import clem, playpen
from lmgym.runs.fields import flag_types
from lmgym.runs.launch import STAGES
from lmgym.runs.user_code import import_file

OF_OTHERS = frozenset(word for words in (  # torchrun's, srun's, a container's, trackio's
    "local_rank nproc_per_node nnodes node_rank master_addr master_port rdzv_backend rdzv_endpoint world_info",
    "nodes ntasks nodelist signal requeue parsable ipc gpus project",
) for word in words.split())  # fmt: skip


def own_flags(code: ast.AST) -> set[str]:
    """Settings that code is given or reads, by their name."""
    names = {one.arg for one in ast.walk(code) if isinstance(one, ast.arg)}
    names |= {one.attr for one in ast.walk(code) if isinstance(one, ast.Attribute)}
    calls = [one for one in ast.walk(code) if isinstance(one, ast.Call) and ast.unparse(one.func) == "getattr"]
    return names | {ast.literal_eval(one.args[1]) for one in calls if isinstance(one.args[1], ast.Constant)}


def strange(stage: str, node: Node) -> list[str]:
    """Flags in messages of a function that the stage has not, and that are no setting which the function knows."""
    code = definitions(node[0])[node[1]]
    if isinstance(code, ast.Assign | ast.AnnAssign):
        return []
    every = frozenset[str]().union(*map(flags_of_stage, STAGES))
    found = [(flag, text) for flag, text in flags_in(code) if text != f"--{flag}" and "lmgym " not in text]
    own = flags_of_stage(stage) | own_flags(code)
    return [f"{'.'.join(node)}: --{flag} in {text!r}" for flag, text in found if flag in every - own]


@pytest.mark.parametrize("stage", STAGES)
def test_a_message_of_a_stage_names_flags_of_that_stage(stage: str) -> None:
    found = reached(stage)
    assert ("lmgym.data.splitting", "split_by_unit") in found, "it reaches shared code"
    assert [line for node in sorted(found) for line in strange(stage, node)] == []


def test_every_flag_in_a_text_is_of_some_command() -> None:
    of_debates = [import_file(path, "needed").CONFIG for path in tournaments().values()]
    configs = [AgreeConfig(), AuditConfig(), AttackConfig(), JudgeAuditConfig(), *of_debates]
    known = {name for config in configs for name in flag_types(config)}.union(*map(flags_of_stage, STAGES), OF_OTHERS)
    known |= (
        {name for command in (data, playpen, clem) for name in flags_of_commands(command)}
        | flags_of_commands()
        | OF_OTHERS
    )
    found = {
        (module, flag): text
        for module, tree in modules().items()
        if ".other_names" not in module and ".migration" not in module
        for flag, text in flags_in(tree)
        # the words of another program's command are a list, each a text of its own
        if not text.startswith(f"--{flag}") or " " in text
    }
    assert {key: text for key, text in found.items() if key[1] not in known} == {}
    assert FLAG.findall("give --eval_size 3, or --no-deps of pip") == ["eval_size"]
