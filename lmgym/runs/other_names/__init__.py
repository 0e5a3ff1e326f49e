"""Names of settings in other libraries: the flag here, or one sentence why there is none.

One table, from which errors about unknown flags, `lmgym from` and docs/coming_from.md are made. May import errors.
"""

from lmgym.runs.other_names import axolotl, hugging_face, llama_factory, nemo_rl, openrlhf, trl, trlx, verl

LIBRARIES = {
    "TRL": (trl, hugging_face),
    "axolotl": (axolotl, hugging_face, trl),
    "OpenRLHF": (openrlhf,),
    "verl": (verl,),
    "LLaMA-Factory": (llama_factory, hugging_face, trl),
    "NeMo-RL": (nemo_rl,),
    "trlx": (trlx,),
}
"""the tables of each library's names, of which the first where a name fits best answers"""
