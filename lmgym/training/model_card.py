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


def figures_table(metrics: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Measured figures by name as a Markdown table, beside those before step 1 where there are any."""
    if not before:
        return "\n".join(["| measure | value |", "|---|---|", *(f"| {n} | {v:.4f} |" for n, v in metrics.items())])
    first = {name: f"{before[name]:.4f}" if name in before else "" for name in metrics}
    rows = [f"| {name} | {first[name]} | {value:.4f} |" for name, value in metrics.items()]
    return "\n".join(["| measure | before training | after |", "|---|---|---|", *rows])
