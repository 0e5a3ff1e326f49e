"""Debaters and judges of NYU's debate project, each as an expression of Python."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lmgym.apps.migration.commands import display
from lmgym.apps.migration.nyu_entries import Settings
from lmgym.errors import InputError, shown
from lmgym.origin import names_code_or_address

LOCAL = ("llama", "llama3", "mistral")
SERVED = {"openai": "gpt-4-0125-preview", "anthropic": "claude-3-5-sonnet-20240620"}
"""model types that are sent to a company, with the model that theirs takes by default"""
SCRIPTS = {
    "random": "say_letters",
    "stub_llm": "say_letters",
    "deterministic": "say_position",
    "repetitive": "say_position",
}
RECORDED = ("offline", "human")
TYPES = {name: name for name in (*LOCAL, *SERVED, *SCRIPTS, *RECORDED, "arbitrary_attribute")}
SENTENCES = {
    "peft_base_model": "an adapter is merged first: lmgym merge ADAPTER",
    "probe_hyperparams": "a linear probe is trained and loaded by LinearProbe (docs/debate.md)",
    "nucleus": "there is no beam search, whose text is no sample, so that neither best-of-n nor training holds for it; "
    "--temperature 0 is greedy",
    "require_quote_validation": "quotes are always checked",
    "generation_params.use_generation_penalties": "a speech has no penalty on its length",
    "best_of_n": "recorded rounds keep the speeches that were chosen; BestOfNPlayer(RecordedPlayer(...), judge, n) "
    "chooses among recorded samples anew",
    "scratchpad.scratchpad_public": "the judge reads the notes, and the opponent does not",
}


@dataclass
class Agent:
    """A debater or the judge of an entry."""

    name: str
    kind: str
    model: str = ""
    """a spec; empty for a script and a recording, and where the user has to give it"""
    ask: str = ""
    """why the user has to give the model"""
    recorded: str = ""
    """where its speeches are, if they have been given before; empty if nobody says where"""
    temperature: float = 0.5
    tokens: int | None = None
    sampling: dict[str, float] = field(default_factory=dict)
    best_of: tuple[int, int, str] | None = None
    """n, opponent_n, mean or min; none of recorded speeches"""
    notes: tuple[int | None, bool] | None = None
    """tokens and whether the judge reads them"""
    prompt: str = ""
    """the name of its own prompts"""

    @property
    def is_recorded(self) -> bool:
        """True for speeches that were given before."""
        return self.kind in RECORDED

    @property
    def needs_model(self) -> bool:
        """True for a model of a folder or a server."""
        return self.kind in LOCAL or self.kind in SERVED


def read_agent(settings: Settings, lines: list[str], taken: Sequence[str] = (), is_judge: bool = False) -> Agent:
    """An agent of its settings; a line on each of them that has no equivalent.

    Raises InputError for a type unknown, and for a debater that is more than one of human, served and recorded.
    """
    kind = settings.one_of("model_settings.model_type", TYPES, "random")
    alias = settings.left.pop("model_settings.alias", "empty-model")
    agent = Agent(_own_name(str(alias), taken), kind)
    path = settings.find("model_settings.model_file_path", str)
    offline = (settings.find("model_settings.offline_file_path", str) or "").strip()
    is_human = settings.take("model_settings.is_human", False)
    served = settings.take("model_settings.served", False)
    if is_judge:
        if offline:
            lines.append(f"offline_file_path={display(offline)} of the judge: speeches of debaters alone are replayed")
    elif is_human + served + bool(offline) > 1:
        raise InputError(
            f"{shown(settings.of)}: more than one of is_human, served and offline_file_path; needed: at most one"
        )
    elif offline or is_human:  # whatever its model_type
        agent.kind = "offline" if offline else "human"
        agent.recorded = offline
    _read_model(agent, path, served)
    agent.prompt = settings.take("model_settings.override_prompt", "")
    _read_sampling(agent, settings, lines)
    _read_rest(agent, settings, lines)
    return agent


def _own_name(alias: str, taken: Sequence[str]) -> str:
    """The alias as a name here, another one than those that are taken."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", alias).strip("_") or "debater"
    number, found = 2, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def _read_model(agent: Agent, path: str | None, served: bool) -> None:
    if agent.kind in SERVED:
        model = path or SERVED[agent.kind]
        agent.ask = (
            f"model_type={agent.kind}: {agent.kind}:{display(model)}, to which the texts of the rounds are then sent"
        )
    elif agent.kind in LOCAL and served:
        agent.ask = f"served=true: vllm:URL of a server of {shown(path or agent.kind)}"
    elif agent.kind in LOCAL and (not path or names_code_or_address(path)):
        agent.ask = f"model_file_path={display(path)} is no folder: give one, or a hub id"
    elif agent.kind in LOCAL:
        agent.model = path or ""


def _read_sampling(agent: Agent, settings: Settings, lines: list[str]) -> None:
    of = "model_settings.generation_params"
    agent.temperature = settings.take(f"{of}.temperature", 0.5)
    if not settings.take(f"{of}.do_sample", True):
        agent.temperature = 0.0
    agent.tokens = settings.find(f"{of}.max_new_tokens", int)
    if (top_p := settings.take(f"{of}.top_p", 1.0)) != 1:
        agent.sampling["top_p"] = top_p
    penalty = settings.take(f"{of}.repetition_penalty", 1.2)
    if settings.take(f"{of}.use_generation_penalties", False):
        agent.sampling["repetition_penalty"] = penalty
        lines.append(f"use_generation_penalties=true: {SENTENCES['generation_params.use_generation_penalties']}")
    if not settings.take("model_settings.nucleus", True):
        agent.temperature = 0.0
        lines.append(f"nucleus=false: {SENTENCES['nucleus']}")


def _read_rest(agent: Agent, settings: Settings, lines: list[str]) -> None:
    if (n := settings.find("best_of_n.n", int)) is not None:
        reduce = "min" if settings.take("best_of_n.maxmin", False) else "mean"
        opponent_n = settings.take("best_of_n.opponent_n", 0)
        settings.take("best_of_n.recompute", False)  # of recorded speeches
        if agent.is_recorded:
            lines.append(f"best_of_n={n}: {SENTENCES['best_of_n']}")
        else:
            agent.best_of = n, opponent_n, reduce
    used = settings.take("scratchpad.use_scratchpad", False)
    limit, public = settings.find("scratchpad.scratchpad_word_limit", int), "scratchpad.scratchpad_public"
    shown_to_all = settings.take(public, False)
    if used and limit != 0:
        agent.notes = limit, shown_to_all
        if shown_to_all:
            lines.append(f"scratchpad_public=true: {SENTENCES[public]}")
    if not settings.take("model_settings.require_quote_validation", True) and not agent.is_recorded:
        lines.append(f"require_quote_validation=false: {SENTENCES['require_quote_validation']}")
    base = settings.find("model_settings.peft_base_model", str)
    if base:
        lines.append(f"peft_base_model={display(base)}: {SENTENCES['peft_base_model']}")
    probes = [name for name in settings.left if name.startswith("model_settings.probe_hyperparams")]
    if probes:
        lines.append(f"probe_hyperparams: {SENTENCES['probe_hyperparams']}")
    for name in probes:
        settings.left.pop(name)


def as_player(agent: Agent, model: str, temperature: str, plays: bool) -> str:
    """The expression for a debater; `model` and `temperature` are expressions. One that does not play is not loaded."""
    if agent.kind == "arbitrary_attribute":
        raise InputError(
            f"debater {agent.name} has model_type=arbitrary_attribute, which is a judge's; needed: another"
        )
    if agent.is_recorded:
        player = "RecordedPlayer(recorded)"
    elif agent.kind in SCRIPTS:
        player = f"ScriptedPlayer({SCRIPTS[agent.kind]})"
    else:
        sampling = ", ".join(f"{name}={value!r}" for name, value in agent.sampling.items())
        given = f", Sampling({sampling})" if sampling else ""
        made_by = "model_player" if plays else "LazyPlayer"
        player = f"{made_by}({model}, {temperature}, config.concurrency{given})"
    if agent.best_of:
        n, opponent_n, reduce = agent.best_of
        return f'BestOfNPlayer({player}, judge, {n}, {opponent_n}, "{reduce}")'
    return player
