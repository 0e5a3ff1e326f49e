"""The rows: source, columns, limits, split and truncation."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from lmgym.config.meanings import First, Means, SameInEveryStage
from lmgym.config.ranges import Range
from lmgym.errors import FEWEST_TOKENS, MOST_STEPS, MOST_TOKENS, InputError, shown

TextForm = Literal["auto", "text", "transcript", "messages"]
PASSAGE = "(context)"
"""our name of the column that --context_column names: one that is called context is not read without being named"""
VERDICT = "(verdict)"
"""our name of the column that --verdict_column names"""
RATIONALE = "(rationale)"
"""our name of the column that --rationale_column names"""


@dataclass(frozen=True)
class ColumnConfig(SameInEveryStage):
    """Names of columns and forms of their texts, where they are not the usual ones. Of several data sets a name is that
    of all, or there is one for each, separated by commas."""

    prompt_column: str | None = None
    """column of the prompt, instruction or question; None: found by its name"""
    chosen_column: str | None = None
    """column of the preferred reply"""
    rejected_column: str | None = None
    """column of the other reply"""
    reply_column: str | None = None
    """column of a single reply"""
    messages_column: str | None = None
    """column of whole conversations"""
    label_column: str | None = None
    """column that says whether a reply was liked"""
    verdict_column: str | None = None
    """column that says which of two replies is the better one; None: found by its name"""
    first_wins: str | None = None
    """the verdict by which the first reply (chosen_column, or the first of two such as response_a) is the better one,
    where the words do not say it: "Response A", 0; others but ties are for the second"""
    rationale_column: str | None = None
    """column of a rater's reasons, which a judge learns (train sft judge_rationales); None: found by its name"""
    votes: Literal["soft", "majority"] = "soft"
    """of several raters: soft: their share is the preference that reward models and bon learn; majority: one side"""
    system_column: str | None = None
    """column of the system message; None: system or system_prompt"""
    context_column: str | None = None
    """column of a passage that the prompt asks about, put below the prompt; unused: leave such columns out"""
    ignore_columns: str | None = None
    """columns that stay unread, of all data sets, separated by commas: passages and options that no answer needs"""
    prompt_format: TextForm = "auto"
    """of prompts and conversations in text: plain text, transcripts with marks (User:, Human:) or JSON of messages;
    auto: decided from all rows of a data set"""
    reply_format: TextForm = "auto"
    """of replies in text"""

    @property
    def ignored(self) -> frozenset[str]:
        """The columns that stay unread."""
        return frozenset(filter(None, map(str.strip, (self.ignore_columns or "").split(","))))

    @property
    def named(self) -> dict[str, tuple[str, str]]:
        """(flag, column) of the columns that are named, by our name of each."""
        ours = {"reply": "completion", "context": PASSAGE, "verdict": VERDICT, "rationale": RATIONALE}
        flags = [field.name for field in fields(self) if field.name.endswith("_column")]
        found = {flag.removesuffix("_column"): flag for flag in flags if getattr(self, flag)}
        return {ours.get(name, name): (flag, getattr(self, flag)) for name, flag in found.items()}


@dataclass(frozen=True)
class RowsConfig:
    """Source, limits, split and truncation of the rows."""

    dataset: Annotated[str, First(), Means("rows")] = "Anthropic/hh-rlhf"
    """file (JSON, Parquet, Arrow, CSV), folder, also of save_to_disk, or hub id; several are separated by commas"""
    dataset_weights: Annotated[str | None, Means("weights of the rows")] = None
    """of several data sets: numbers separated by commas, in whose proportion rows are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all rows"""
    dataset_split: Annotated[str, Means("split")] = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_dataset: Annotated[str | None, First(), Means("held-out rows")] = None
    """rows to evaluate on; None: a part of the dataset (split_by)"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the rows")] = 0.05
    """without eval_dataset: a share below 1, or a number of rows"""
    split_by: Annotated[str, Means("unit of the split")] = "auto"
    """what is never on both sides: prompt; first_message, a conversation with all its turns; or a column's value. auto:
    first_message; prompt where many rows begin alike, or beside eval_dataset. Logs are split by user"""
    train_size: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """train on at most this many rows; None: all"""
    max_rows: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """use only the first rows of each data set"""
    max_length: Annotated[int, First(), Range(FEWEST_TOKENS, MOST_TOKENS, hint="fewer hold no conversation")] = 1024
    """tokens of a prompt with its reply; longer ones lose their oldest turns, the reply stays whole (SFT: longer
    conversations become several rows)"""
    thoughts: Literal["given", "empty"] = "given"
    """where the chat template's generation prompt opens a thought (R1), rows without one: empty: learn an empty
    thought; given: are refused"""


def check_eval_size(size: float, noun: str) -> None:
    """Raises InputError for a number of examples above 1 that is not whole; `noun`: "rows"."""
    if size > 1 and size != int(size):
        raise InputError(f"eval_size={shown(size)}; needed: a share below 1, or a whole number of {noun}")
