"""Which tensors of a model are the two factors of an adapter, by the names that `peft` gives them.

A layer W [d, k] with an adapter computes W + s B A, A [r, k], B [d, r], s = alpha / r. Below the layer's name
they are ``lora_A.default.weight`` and ``lora_B.default.weight``, of an embedding ``lora_embedding_A.default``
and ``lora_embedding_B.default``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_FACTOR = re.compile(r"(.*\.|)lora_(embedding_)?A\.(.+)")
_WRAPPED = "base_model.model."  # begins all names of a model with adapters
_ADAPTER = re.compile(r"\.lora_[a-zA-Z_]+(\.|$)")
_WRAPPER = re.compile(r"\.(base_layer|original_module|modules_to_save\.default)(?=\.|$)")


@dataclass(frozen=True)
class Factors:
    """The names of the two factors of an adapter."""

    a: str  # [r, k], of a convolution [r, k, h, w]
    b: str  # [d, r], of a convolution [d, r, 1, 1]


def bare_name(name: str) -> str:
    """Return what a tensor is called in the model without adapters; "" = it is not there.

    >>> bare_name("base_model.model.h.0.base_layer.weight")
    'h.0.weight'
    >>> bare_name("base_model.model.head.modules_to_save.default.bias")
    'head.bias'
    >>> bare_name("base_model.model.h.0.lora_A.default.weight")
    ''
    """
    if _ADAPTER.search(name):
        return ""
    return _WRAPPER.sub("", name.removeprefix(_WRAPPED))


def has_adapters(names: Iterable[str]) -> bool:
    """Return whether these are names of a model with adapters."""
    return any(name.startswith(_WRAPPED) for name in names)


def pairs_of(names: Iterable[str]) -> tuple[Factors, ...]:
    """Return the adapters of which both factors are among the names, in their order.

    >>> pairs_of(["h.0.lora_A.default.weight", "h.0.lora_B.default.weight", "head.weight"])
    (Factors(a='h.0.lora_A.default.weight', b='h.0.lora_B.default.weight'),)
    """
    listed = list(names)
    known, found = set(listed), []
    for name in listed:
        if match := _FACTOR.fullmatch(name):
            other = f"{match[1]}lora_{match[2] or ''}B.{match[3]}"
            if other in known:
                found.append(Factors(name, other))
    return tuple(found)
