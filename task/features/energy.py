"""Energy of the simulated devices, and batteries that run empty."""

from task.catalogue.entry import Algorithm
from task.config.knobs import Config
from task.features.feature import Feature
from task.features.refusals import Setting, pairs
from task.features.settings import DP_CENTRAL

_SPENT = Setting(
    "devices.watts-compute", lambda c: c.devices.watts_compute > 0 or c.devices.watts_radio > 0, "0"
)


def _active(config: Config, _: Algorithm) -> bool:
    keys = config.devices
    return keys.watts_compute > 0 or keys.watts_radio > 0 or keys.battery_joules > 0


def _refuses(config: Config, entry: Algorithm) -> str:
    if entry.asynchronous or entry.vertical or entry.statistics:
        return (
            '"devices.watts-compute": expected an algorithm whose clients train in rounds, such as fedavg, '
            f'as others have no simulated seconds by client; got algorithm = "{entry.name}"'
        )
    keys = config.devices
    if keys.battery_joules > 0 and not (keys.watts_compute or keys.watts_radio):
        return (
            '"devices.battery-joules": expected "devices.watts-compute" or "devices.watts-radio" above 0, as '
            f"nothing else uses a battery up; got {keys.battery_joules:g} J and neither"
        )
    return ""


FEATURE = Feature(
    "energy",
    place=146,
    active=_active,
    pairs=tuple(pairs(_SPENT, (DP_CENTRAL, "what a round spends tells who took part in it"))),
    refuses=_refuses,
)
