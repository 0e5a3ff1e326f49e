"""The model card: README.md in the folder of a trained model."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from lmgym.aids import aid

CHAT_USAGE = """Prompts are rendered with the tokenizer's chat template, and a reply ends with an eos token.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
chat = [{"role": "user", "content": "Hello!"}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
reply = model.generate(**inputs, max_new_tokens=100, do_sample=True)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(reply, skip_special_tokens=True))
```

To serve it: `vllm serve path/to/this/folder`."""
HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:@[\w.-]+)?")


def model_card(
    name: str,
    task: Literal["text-classification", "text-generation"],
    tags: Sequence[str],
    description: str,
    figures: str,
    base: str,
    heading: str = "Measured on held-out data",
    library: Literal["transformers", "peft"] = "transformers",
) -> str:
    """Text of a model card: the hub's metadata, what the model is, how to use it, and its `figures` below a heading.

    `base` is the model that training began from; the hub wants its id, and refuses a folder's path.
    """
    hub_id = None if os.path.exists(base) else HUB_ID.fullmatch(base)
    return f"""---
library_name: {library}
pipeline_tag: {task}
{f"base_model: {hub_id[1]}{chr(10)}" if hub_id else ""}tags:
{chr(10).join(f"- {tag}" for tag in tags)}
---

# {name}

{description}

## {heading}

{figures}
"""


@aid("the policy's model card", str)
def policy_card(name: str, model: str, how: str, figures: str, is_adapter: bool) -> str:
    """The model card of a policy or of its adapter: `how` it was trained from `model`, ending in a full stop."""
    kind = "A LoRA adapter of" if is_adapter else "A causal language model, trained from"
    library: Literal["peft", "transformers"] = "peft" if is_adapter else "transformers"
    usage = CHAT_USAGE
    if is_adapter:
        usage = usage.replace("serve path", f"serve {model} --enable-lora --lora-modules NAME=path")
    description = f"{kind} `{model}`: {how} {usage}"
    return model_card(name, "text-generation", ["lmgym"], description, figures, model, library=library)


@aid("the figures of a model card", str)
def figures_table(metrics: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Metrics by name as a Markdown table, beside those before step 1 if there are any."""
    if not before:
        return "\n".join(["| measure | value |", "|---|---|", *(f"| {n} | {v:.4f} |" for n, v in metrics.items())])
    first = {name: f"{before[name]:.4f}" if name in before else "" for name in metrics}
    rows = [f"| {name} | {first[name]} | {value:.4f} |" for name, value in metrics.items()]
    return "\n".join(["| measure | before training | after |", "|---|---|---|", *rows])
