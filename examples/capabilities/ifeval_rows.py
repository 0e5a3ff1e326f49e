"""The rows of IFEval that can be checked on this machine."""

import nltk
from datasets import Dataset

SENTENCES = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}
"""kinds of instructions whose checkers need NLTK's punkt_tab, which NLTK downloads"""


def checkable(rows: Dataset) -> Dataset:
    """Without punkt_tab, the rows that need it are left out: `python -m nltk.downloader punkt_tab` gets it."""
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        return rows.filter(lambda row: SENTENCES.isdisjoint(row["instruction_id_list"]))
    return rows
