"""Settings that the features refuse in each other, by their run-config keys."""

from task.config.attack_section import INFORMED
from task.features.refusals import Setting, algorithm_is, policy_is
from task.secagg.fixed_point import EXACT

ALA = Setting("ala", lambda c: c.train.ala, "false")
ATTACK_INFORMED = Setting("attack.kind", lambda c: c.attack.kind in INFORMED)
CANARIES = Setting("audit.canaries", lambda c: c.audit.canaries > 0)
CODEC_DOWN = Setting("codec.down", lambda c: c.codec.down != "none", '"none"')
CODEC_UP = Setting("codec.up", lambda c: c.codec.up != "none", '"none"')
COARSE = Setting("secagg-bits", lambda c: c.server.secagg and c.server.secagg_bits < EXACT, f"{EXACT}")
COLLUDING = Setting("dp.colluding", lambda c: c.dp.colluding >= c.server.secagg_min_nodes, "less")
DP_CENTRAL = Setting("dp.noise", lambda c: c.dp.central)
DP_LOCAL = Setting("dp.unit", lambda c: c.dp.local)
DP_ROWS = Setting("dp.unit", lambda c: c.dp.local and c.entry.statistics)  # of an analysis
DP_STEPS = Setting("dp.unit", lambda c: c.dp.local and not c.entry.statistics)  # of a training
ENOUGH = Setting("enough-replies", lambda c: c.server.enough_replies > 0, "0")
HELD_OUT = Setting("fraction-heldout", lambda c: c.server.fraction_heldout > 0, "0")
ENCRYPTED = Setting("he", lambda c: c.server.he, "false")
MEANS_FILLED = Setting("missing", lambda c: c.data.missing == "mean", '"zero"')
SECURE = Setting("secagg", lambda c: c.server.secagg, "false")
SHARP = Setting("sam.rho", lambda c: c.sam.rho > 0, "0")
STANDARDISED = Setting("standardise", lambda c: c.data.standardise, "false")
STRUCTURED = Setting("structured.kind", lambda c: c.structured.kind != "none", '"none"')
STRAGGLERS = Setting("stragglers", lambda c: c.server.stragglers > 0, "0")
TRANSCRIPT = Setting("transcript", lambda c: c.server.transcript != "none", '"none"')

# Which part of the model a client has. Of a run that has several the first counts.
KINDS = Setting("models.levels", lambda c: c.by_kind, '""')
WIDTHS = Setting("width.levels", lambda c: c.narrow and c.width.levels, "1")
DROPOUT = Setting("dropout-width", lambda c: c.narrow and not c.width.levels, "1")
PARTS = (KINDS, WIDTHS, DROPOUT)

ASYNCHRONOUS = algorithm_is(lambda entry: entry.asynchronous)
VERTICAL = algorithm_is(lambda entry: entry.vertical)
BY_LOSS = policy_is(lambda policy: policy.needs_losses)
RING = policy_is(lambda policy: policy.ring)
OWN_MU = Setting(
    "fedprox.adaptive", lambda c: c.entry.owns("fedprox.adaptive") and c.fedprox.adaptive, "false"
)
