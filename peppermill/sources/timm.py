"""`timm:NAME`: a classifier of timm with its pre-trained weights and its own image preparation."""

from __future__ import annotations

from peppermill.plumbing.optional import importing
from peppermill.sources.source import Source, one_clear_line, refuse_unknown, split_query, weights_and_classes


def source(text: str, pretrained: bool = True) -> Source:
    """The network of `NAME`, `NAME.TAG` or `hf-hub:REPO`; `?pretrained=false&classes=10` for weights of your own."""
    with importing("`timm:` needs timm", "timm", "timm"):
        import timm
        import timm.data
    name, options = split_query(text, "timm", ("pretrained", "classes"))
    pretrained, sizes = weights_and_classes(options, pretrained, "num_classes")
    architecture, _, tag = name.partition(".")
    if ":" not in name:
        refuse_unknown("timm", architecture, timm.list_models())
        tagged = [known for known in timm.list_pretrained() if known.partition(".")[0] == architecture]
        if tag:
            refuse_unknown("timm", name, tagged)
        elif pretrained and not tagged:
            raise ValueError(f"timm:{name} has no pre-trained weights: give your own with `--weights FILE`.")
    with one_clear_line(f"timm:{name}"):
        model = timm.create_model(name, pretrained=pretrained, **sizes).eval()
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    names, subset = (model.pretrained_cfg or {}).get("label_names"), timm.data.infer_imagenet_subset(model)
    if not names and subset:  # the network has ImageNet's classes
        names = timm.data.ImageNetInfo(subset).label_descriptions()
    return Source(model, prepare, tuple(names) if names and len(names) == model.num_classes else None)
