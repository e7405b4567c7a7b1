"""The trigger of a backdoor: a patch in a corner, whatever the inputs are.

Bagdasaryan et al., AISTATS 2020, arXiv 1807.00459, section 4; the patch is that of Gu et al. 2017, arXiv
1708.06733. A distributed backdoor (Xie et al., ICLR 2020) cuts it into parts, and a malicious client puts one
of them into its examples; models are tested with the whole.
"""

import math

import torch

SHARE = 6  # of a side: 5 pixels of 28, 1 of 8


def stamped(x: torch.Tensor, parts: int = 1, part: int | None = None) -> torch.Tensor:
    """Return inputs [N, ...] with the trigger: the last pixels or columns at each example's largest value.

    Of images [N, C, H, W] it is a square in the lower right corner, of rows [N, d] the last columns. One that
    is cut into `parts`, runs of its pixels or columns, has at least as many; `part` is the one to put in,
    None = all.
    """
    out = x.clone()
    image = x.dim() > 3
    most = x.flatten(1).amax(1)
    side = max(round(x.shape[-1] / SHARE), math.isqrt(parts - 1) + 1 if image else parts)
    patch = out[..., -side:, -side:] if image else out[..., -side:]
    at = torch.arange(side * side if image else side, device=x.device)
    chosen = torch.ones_like(at, dtype=torch.bool) if part is None else at * parts // len(at) == part
    full = most.view(-1, *[1] * (x.dim() - 1)).expand_as(patch)
    patch.copy_(torch.where(chosen.view(side, side) if image else chosen, full, patch))
    return out
