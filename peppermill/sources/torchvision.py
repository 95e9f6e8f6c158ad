"""`torchvision:NAME`: a classifier of torchvision with its default weights and their transforms."""

from __future__ import annotations

from peppermill.plumbing.optional import importing
from peppermill.plumbing.progress import is_shown
from peppermill.sources.source import Source, one_clear_line, refuse_unknown, split_query, weights_and_classes


def source(text: str, pretrained: bool = True) -> Source:
    """The network of `NAME`; `?weights=IMAGENET1K_V1` chooses among its weights.

    `?pretrained=false&classes=10` is for weights of your own.
    """
    with importing("`torchvision:` needs torchvision", "torchvision", "torchvision"):
        from torchvision import models
    name, options = split_query(text, "torchvision", ("pretrained", "classes", "weights"))
    refuse_unknown("torchvision", name, models.list_models(module=models))
    known, chosen = models.get_model_weights(name), options.get("weights", "DEFAULT")
    if chosen not in known.__members__:
        raise ValueError(f"torchvision:{name} has no weights {chosen!r}: choose one of {', '.join(known.__members__)}.")
    weights, (pretrained, sizes) = known[chosen], weights_and_classes(options, pretrained, "num_classes")
    with one_clear_line(f"torchvision:{name}"):
        model = models.get_model(name, weights=weights if pretrained else None, progress=is_shown(), **sizes).eval()
    return Source(model, weights.transforms(), None if sizes else tuple(weights.meta["categories"]))
