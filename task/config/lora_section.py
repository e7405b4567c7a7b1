"""The run-config keys of low-rank adapters."""

from task.config.sections import Section, knob
from task.config.when import When


class LoraConfig(Section):
    """Low-rank adapters: LoRA, Hu et al. 2021, arXiv 2106.09685."""

    rank: int = knob(0, "r, rank of the adapters that the run adds to its model; 0 = none", low=0)
    alpha: float = knob(
        0.0, "alpha: an adapter's product counts alpha/r; 0 = r", low=0, when=When("lora.rank")
    )
    target_modules: str = knob(
        "",
        'layers that get adapters, by the ends of their names: "c_attn,c_proj"; "" = those that peft knows '
        "for the model",
        when=When("lora.rank"),
        several=True,
    )
    modules_to_save: str = knob(
        "",
        'layers that are trained whole besides, by the ends of their names: "classifier"; "" = none',
        when=When("lora.rank"),
        several=True,
    )
    dropout: float = knob(0.0, "dropout in front of the adapters", low=0, below=1, when=When("lora.rank"))
    average: str = knob(
        "factors",
        "what the server averages: the factors A and B each, their products B A (cut to the rank by an SVD, "
        "FlexLoRA), or the factors weighted by the norms of the products (HetLoRA)",
        choices=("factors", "product", "norms"),
    )
