"""docs/settings.md is what its script makes of the measured rates and the estimate."""

import pages
import pytest
import settings_page

PAGE = pages.ROOT / "docs/settings.md"
RUNS = settings_page.with_adapters(pages.read_result("on_gpu.json"))


def table(name: str) -> list[str]:
    [found] = [found for found in pages.TABLE.finditer(PAGE.read_text()) if found[3] == name]
    return found[5].strip().splitlines()


def test_the_hours_are_those_of_the_measured_rates() -> None:
    line = next(line for line in table("hours_table") if line.startswith("| Qwen3-8B |"))
    epochs = RUNS["qwen3-8b"]["phases"]["epochs"]
    minutes = 10_000 * 500 * epochs["seconds"]["median"] / epochs["tokens"] / 60
    assert f"| {minutes:.0f} min |" in line


def test_a_size_between_two_that_were_measured_lies_between_them() -> None:
    small, middle, large = (settings_page.rates(f"qwen3-{size}", RUNS) for size in ("0.6b", "4b", "8b"))
    assert all(small[part] < middle[part] < large[part] for part in small)


@pytest.mark.slow  # a benchmark's page
@pytest.mark.parametrize("way", ["LoRA 16, one GPU", "all weights, 8 GPUs, ZeRO 3"])
def test_the_memory_is_that_of_lmgym_estimate(way: str) -> None:
    flags, ranks = settings_page.WAYS[way]
    lines = table("memory_table")
    block = lines[next(i for i, line in enumerate(lines) if f"**{way}**" in line) :]
    cells = next(line for line in block if line.startswith("| Qwen3-8B |")).split(" | ")
    for column, (word, *more) in list(settings_page.COLUMNS.items())[1::2]:
        found = settings_page.memory_cell("qwen3-8b", word, (*more, *settings_page.CHECKPOINTS, *flags), ranks)
        assert cells[2 + list(settings_page.COLUMNS).index(column)].rstrip(" |") == found


@pytest.mark.slow
def test_the_whole_page_is_what_the_script_writes() -> None:
    text = PAGE.read_text()
    assert pages.rewritten(text) == text
