"""The trigger of a backdoor: a patch in a corner, whatever the inputs are.

Bagdasaryan et al., AISTATS 2020, arXiv 1807.00459, section 4; the patch is that of Gu et al. 2017, arXiv
1708.06733.
"""

import torch

SHARE = 6  # of a side: 5 pixels of 28, 1 of 8


def stamped(x: torch.Tensor) -> torch.Tensor:
    """Return inputs [N, ...] with the trigger: the last pixels or columns at each example's largest value.

    Of images [N, C, H, W] it is a square in the lower right corner, of rows [N, d] the last columns.
    """
    out = x.clone()
    most = x.flatten(1).amax(1)
    side = max(round(x.shape[-1] / SHARE), 1)
    part = out[..., -side:, -side:] if x.dim() > 3 else out[..., -side:]
    part.copy_(most.view(-1, *[1] * (x.dim() - 1)).expand_as(part))
    return out
