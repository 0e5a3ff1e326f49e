"""Parts of the stages that train a policy: its weights with adapters, and its folder with a card."""

from typing import Any

from lmgym.distributed.ranks import rank
from lmgym.models.forward.policies import PolicyModel, load_policy, save_policy
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.best import SavedModel
from lmgym.training.model_card import figures_table, policy_card
from lmgym.training.plan import TrainingPlan
from lmgym.training.reporting import show_notes
from lmgym.training.setup import adapt, round_frozen


def load_trained_policy(plan: TrainingPlan[Any], run: Run, supervisor: Supervisor | None = None) -> PolicyModel:
    """The policy with its adapters, as it is before step 1."""
    settings = plan.model
    causal = load_policy(settings.model, plan.tokenizer, settings.trust_remote_code, settings.bits)
    policy = PolicyModel(adapt(causal, plan, run, supervisor), plan.config.trainer.packed, plan.config.trainer.dropout)
    round_frozen(policy.model, plan)
    show_notes([policy.decoder.note] if policy.decoder.note else [], run)
    return policy


def saved_name(config: Any) -> str:
    """The folder to use of a policy, below its run's: `adapter`, or `model`."""
    return "adapter" if config.policy.lora_rank and not config.merge_adapter else "model"


def save_trained_policy(
    plan: TrainingPlan[Any], how: str, lines: str | None, run: Run, trainer: Any, name: SavedModel, which: str
) -> None:
    """The present policy, as `model/` and `adapter/`, or as `last/` alone. The weights are gathered on all ranks.

    The card says `how` it was trained and in a sentence, `which`, which model it is. `lines` is the file of the
    held-out rows' figures, which are written beside `model/`.
    """
    state = trainer.whole_state()
    if rank() != 0:
        return
    config, samples = plan.config, trainer.probes.get("samples")
    drawn = f"\n\nReplies to the fixed prompts (`samples/`) were drawn at {samples.settings}." if samples else ""
    figures = f"{which}\n\n{figures_table(trainer.report().metrics, trainer.before)}{drawn}"
    card = policy_card(config.name, plan.model.model, how, figures, saved_name(config) == "adapter")
    save_policy(trainer.module.model, state, run.folder, plan.tokenizer, config.merge_adapter, card, name == "last")
    if lines and name == "model":
        run.write_lines(lines, trainer.probes[""].lines())


def rows_trained_on(config: Any, loss: str) -> str:
    """The sentence of a card on a training on rows."""
    return f"""lmgym on `{config.data.dataset}` with the {loss},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}. Rows had up to
{config.data.max_length} tokens."""
