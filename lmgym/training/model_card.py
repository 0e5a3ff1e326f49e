"""The model card: README.md in the folder of a trained model."""

from collections.abc import Mapping, Sequence
from typing import Literal

CHAT_USAGE = """Render a chat with the tokenizer's own chat template
(`add_generation_prompt=True`) and tokenize it with `add_special_tokens=False`; a reply ends with an eos token."""


def model_card(
    name: str,
    task: Literal["text-classification", "text-generation"],
    tags: Sequence[str],
    description: str,
    figures: str,
    heading: str = "Measured on held-out data",
    library: Literal["transformers", "peft"] = "transformers",
) -> str:
    """Text of a model card: the hub's metadata, what the model is, how to use it, and its `figures` below a heading."""
    return f"""---
library_name: {library}
pipeline_tag: {task}
tags:
{chr(10).join(f"- {tag}" for tag in tags)}
---

# {name}

{description}

## {heading}

{figures}
"""


def policy_card(name: str, model: str, how: str, figures: str, is_adapter: bool) -> str:
    """The model card of a policy or of its adapter: `how` it was trained from `model`, ending in a full stop."""
    kind = "A LoRA adapter of" if is_adapter else "A causal language model, trained from"
    description = f"""{kind} `{model}`: {how} {CHAT_USAGE}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```"""
    library: Literal["peft", "transformers"] = "peft" if is_adapter else "transformers"
    return model_card(name, "text-generation", ["lmgym"], description, figures, library=library)


def figures_table(metrics: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Metrics by name as a Markdown table, beside those before step 1 if there are any."""
    if not before:
        return "\n".join(["| measure | value |", "|---|---|", *(f"| {n} | {v:.4f} |" for n, v in metrics.items())])
    first = {name: f"{before[name]:.4f}" if name in before else "" for name in metrics}
    rows = [f"| {name} | {first[name]} | {value:.4f} |" for name, value in metrics.items()]
    return "\n".join(["| measure | before training | after |", "|---|---|---|", *rows])
