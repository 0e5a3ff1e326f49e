"""Output of a reward model's run: rows as the model sees them, the table of figures, the model's folder."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from lmgym.aids import aid
from lmgym.console import CONSOLE
from lmgym.data.truncation import describe_truncation
from lmgym.distributed.ranks import rank
from lmgym.errors import InputError
from lmgym.models.classifiers import DecoderClassifier
from lmgym.models.loading import load_config
from lmgym.models.saving import save_classifier, unwrap_adapters
from lmgym.runs.run import Run
from lmgym.templates import PROBE
from lmgym.text import Conversation, Replies, Turn, render, tokenize_texts
from lmgym.training.best import SavedModel
from lmgym.training.model_card import figures_table, model_card
from lmgym.training.reporting import show_text
from lmgym.turn_ends import END_OF_TURN
from reward_models.config import RewardModelConfig
from reward_models.probes import HeldOut, PairProbe
from reward_models.tasks import Task

QUANTILES = 101  # of the scores of held-out replies that a scorer is saved with
MEANINGS = {
    "logit": "the head's one output",
    "softmax[1]": "the probability of class 1, `softmax(logits)[:, 1]`",
    "mean_sigmoid": "the mean of the labels' probabilities, `sigmoid(logits).mean(-1)`",
    "mean": "the mean of the heads, each less its mean over held-out replies (`means` in scorer.json)",
}
READINGS = {
    "logit": "`logits[:, 0]`",
    "softmax[1]": "`logits.softmax(-1)[:, 1]`",
    "mean_sigmoid": "`logits.sigmoid().mean(-1)`",
    "mean": "`(logits - means).mean(-1)`",
}


def show_rows(task: Task, tokenizer, examples: Sequence[Any]) -> None:
    """Prints examples as the model will see them, with their token counts."""
    for example in examples:
        prefix, suffixes = example.replies.prefix, example.replies.suffixes
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(example.replies.dropped_turns, example.replies.shortened)
        cut = f", {lost}" if lost else ""
        if len(suffixes) == 1:  # nothing is shared
            title = f"{task.suffixes(example)[0]}, {len(prefix) + len(suffixes[0])} tokens{cut}"
            show_text(title, tokenizer.decode(prefix + suffixes[0]))
            continue
        title = f"shared, {len(prefix)} tokens{cut}"
        show_text(title, tokenizer.decode(prefix))
        for name, suffix in zip(task.suffixes(example), suffixes, strict=True):
            title = f"{name}, {len(suffix)} more = {len(prefix) + len(suffix)} tokens"
            show_text(title, tokenizer.decode(suffix))


def save_results(
    config: RewardModelConfig, task: Task, tokenizer, run: Run, trainer, name: SavedModel, which: str
) -> None:
    """The present model as a folder of this name, and of `model` the scores too. The weights are gathered on all ranks.

    `which` says in a sentence which model it is.
    """
    state = trainer.whole_state()
    if rank() != 0:
        return
    held_out: HeldOut = trainer.probes[""]
    scores = held_out.scores
    scorer = {
        "reduce": task.reduce,
        "max_length": config.data.max_length,
        "reads": END_OF_TURN,
        "loss": task.loss,
        "moments": [float(scores.mean()), max(float(scores.std()), 1e-6)],
        "quantiles": np.quantile(scores, np.linspace(0, 1, QUANTILES)).tolist(),
    }
    if isinstance(held_out, PairProbe):
        scorer |= {"temperature": held_out.report.metrics.get("temperature")}
        scorer |= {"means": held_out.means} if held_out.means else {}
    model = trainer.module.model
    known = not isinstance(unwrap_adapters(model), DecoderClassifier)
    figures = f"{which}\n\n{figures_table(trainer.report().metrics, trainer.before)}"
    card = scorer_card(config, task, figures, known)
    save_classifier(model, state, run.folder / name, tokenizer, scorer, card)
    if name == "model":
        run.write_lines("scores.jsonl", held_out.lines())


@aid("the scorer's model card", str)
def scorer_card(config: RewardModelConfig, task: Task, figures: str, known: bool = True) -> str:
    """The model card of a scorer. `known`: transformers has a class for classifiers of the family."""
    description = f"""A reward model: one number a reply, higher is better. The number is {MEANINGS[task.reduce]}.
Trained with lmgym from `{config.scorer.model}` on `{config.data.dataset}` with the {task.loss},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}.

```python
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

scorer = HFScorer.load("path/to/this/folder")
scorer.score([Conversation((Turn("user", "Hello!"),))], ["Hi, how are you?"])
```

{_class(config, known)} with `num_labels={task.outputs}`: render a chat with the
tokenizer's own chat template, tokenize it with `add_special_tokens=False` (encoders: True), and read
{READINGS[task.reduce]}. Texts longer than {config.data.max_length} tokens lost their oldest turns."""
    tags, base = ["reward-model", "lmgym"], config.scorer.model
    return model_card(config.name, "text-classification", tags, description, figures, base)


def _class(config: RewardModelConfig, known: bool) -> str:
    if known:
        return "It is an ordinary `AutoModelForSequenceClassification`"
    family = load_config(config.scorer.model, config.scorer.trust_remote_code).model_type
    return (
        f"transformers has no class for classifiers of `{family}`; `lmgym.models.loading.load_classifier` loads this\n"
        "folder: a trunk (`AutoModel`) and a linear `score` on its last token,"
    )


def reply_texts(tokenizer, replies: Replies) -> tuple[str, list[str]]:
    """The prompt and the replies as text, without special tokens.

    Replies are stored by the tokens that they do not share, but may begin alike, and a single one shares all but its
    last. They begin behind the last of the template's own words between prompt and reply; where these are not found,
    all that is shared is the prompt.
    """
    wholes = [tokenizer.decode(replies.prefix + suffix) for suffix in replies.suffixes]
    shared = len(tokenizer.decode(replies.prefix) if len(wholes) > 1 else wholes[0])
    between = _between(tokenizer)
    found = [match for match in between.finditer(wholes[0]) if match.start() < shared] if between else []
    start = (found[-1].start(), found[-1].end()) if found else (shared, shared) if len(wholes) > 1 else (0, 0)
    special = re.compile("|".join(map(re.escape, _special_tokens(tokenizer))) or r"(?!)")
    prompt, *texts = (special.sub("", text) for text in (wholes[0][: start[0]], *(text[start[1] :] for text in wholes)))
    return prompt.strip(), [text.strip() for text in texts]


def _special_tokens(tokenizer) -> list[str]:
    """The longest first."""
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    return sorted({*added, *tokenizer.all_special_tokens} - {""}, key=len, reverse=True)


def _between(tokenizer) -> re.Pattern[str] | None:
    """The template's words between a prompt and the reply, however a tokenizer spaces them; None if there are none."""
    question, answer = PROBE
    try:
        rendered = render(tokenizer, Conversation((Turn("user", question),)), answer)
    except InputError:
        return None
    text = tokenizer.decode(tokenize_texts(tokenizer, [rendered])[0])
    found = re.search(rf"{re.escape(question)}(.*?){re.escape(answer)}", text, re.DOTALL | re.IGNORECASE)
    words = re.findall(r"\w+|[^\w\s]", found[1]) if found else []
    return re.compile(r"\s*".join(map(re.escape, words)), re.IGNORECASE) if words else None
