"""Several adapters of one base model, whose weights are held once; one adapter at a time is switched on."""

from collections.abc import Sequence

from lmgym.errors import InputError, shown_path
from lmgym.models.damage import readable
from lmgym.models.saving import with_adapters
from lmgym.models.scorer_folders import (
    Adapter,
    ScorerModel,
    adapter_base,
    fill_adapter,
    fit_settings,
    load_base,
    read_adapter,
)


def shared_base(names: Sequence[str]) -> str | None:
    """The one base below all these adapters; None if there are several, or one is no adapter."""
    bases = {adapter_base(name) for name in names}
    return bases.pop() if len(bases) == 1 else None


def load_adapter_set(names: Sequence[str], base: str) -> ScorerModel:
    """The base with these adapters, unmerged; `switch_on` chooses one by its number.

    Raises InputError for adapters whose heads differ in size, or that have none, and for one that does not fit.
    """
    adapters = [read_adapter(name) for name in names]
    if len({adapter.labels for adapter in adapters}) > 1 or not adapters[0].labels:
        sizes = ", ".join(f"{shown_path(adapter.name)} {adapter.labels}" for adapter in adapters)
        raise InputError(f"outputs of the heads of adapters on one base: {sizes}; needed: equally many, 1 or more")
    found = load_base(adapters[0], base, {})
    adapted = found.model
    for number, adapter in enumerate(adapters):
        adapted = _added(adapted, adapter, number)
    adapted.eval()
    return found._replace(model=adapted)


def _added(model, adapter: Adapter, number: int):
    """The model with one adapter more, in the base's dtype."""
    place = _place(number)
    with readable("adapter", adapter.name):
        if number == 0:
            fit_settings(adapter, model)
            model = with_adapters(model, adapter.settings, place)
        else:
            fit_settings(adapter, model.get_base_model())
            model.add_adapter(place, adapter.settings, autocast_adapter_dtype=False)
    fill_adapter(model, adapter, place)
    return model


def switch_on(model, number: int) -> None:
    """Makes one adapter of a set the one that counts."""
    if model.active_adapter != _place(number):
        model.set_adapter(_place(number), inference_mode=True)


def _place(number: int) -> str:
    return f"member{number}"
