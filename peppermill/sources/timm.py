"""`timm:NAME`: a classifier of timm with its pre-trained weights and its own image preparation."""

from __future__ import annotations

from typing import Any

from peppermill.plumbing.optional import importing
from peppermill.sources.source import Source, class_count, one_clear_line, refuse_unknown, split_query, wants_weights


def source(text: str, pretrained: bool = True) -> Source:
    """The network of `NAME`, `NAME.TAG` or `hf-hub:REPO`; `?pretrained=false&classes=10` for weights of your own."""
    with importing("`timm:` needs timm", "timm", "timm"):
        import timm
        import timm.data
    name, options = split_query(text, "timm", ("pretrained", "classes"))
    pretrained = wants_weights(options, pretrained)
    _refuse_unknown(timm, name, pretrained)
    sizes = class_count(options, pretrained, "num_classes")
    with one_clear_line(
        f"timm:{name}", "connect to the network once, or give weights of your own with `--weights FILE`"
    ):
        model = timm.create_model(name, pretrained=pretrained, **sizes).eval()
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    return Source(model, prepare, _class_names(timm, model))


def _refuse_unknown(timm: Any, name: str, pretrained: bool) -> None:
    if ":" in name:
        return
    architecture, _, tag = name.partition(".")
    refuse_unknown("timm", architecture, timm.list_models())
    tagged = [known for known in timm.list_pretrained() if known.partition(".")[0] == architecture]
    if tag:
        refuse_unknown("timm", name, tagged)
    elif pretrained and not tagged:
        raise ValueError(f"timm:{name} has no pre-trained weights: give your own with `--weights FILE`.")


def _class_names(timm: Any, model: Any) -> tuple[str, ...] | None:
    """Those of the weights, else ImageNet's if the network has its classes."""
    names = (model.pretrained_cfg or {}).get("label_names")
    subset = timm.data.infer_imagenet_subset(model)
    if not names and subset:
        names = timm.data.ImageNetInfo(subset).label_descriptions()
    return tuple(names) if names and len(names) == model.num_classes else None
