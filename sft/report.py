"""Rows of an SFT run as the model sees them."""

from collections.abc import Sequence

from rich.text import Text

from lmgym.console import CONSOLE
from lmgym.data.truncation import describe_truncation
from sft.tokenization import Example


def show_rows(tokenizer, examples: Sequence[Example]) -> None:
    """Prints rows as the model will see them, with targets in brackets."""
    for example in examples:
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(example.replies.dropped_turns, example.replies.shortened)
        title = f"{len(example.ids)} tokens, {len(example.targets)} of them to predict{lost and f', {lost}'}:"
        CONSOLE.print(Text(title, "bold"))
        CONSOLE.print(marked(example, tokenizer), soft_wrap=True)


def marked(example: Example, tokenizer) -> str:
    """A row's text with its targets in brackets, including those that are not read: an eos within a chat."""
    pieces: list[str] = []
    context: list[int] = [example.ids[0]]
    output: list[int] = []
    target_at = dict(zip(example.places, example.targets, strict=True))

    def close() -> None:
        if output:
            pieces.append(f"[{tokenizer.decode(output)}]")
            output.clear()

    for place, following in enumerate([*example.ids[1:], None]):
        target = target_at.get(place)
        if target is not None and not output:
            pieces.append(tokenizer.decode(context))
            context.clear()
        if target is not None:
            output.append(target)
        if target != following:
            close()
            if following is not None:
                context.append(following)
    close()
    return "".join(pieces) + tokenizer.decode(context)
