"""Bytes between the server and one device, from the codec's own size functions.

No message is built at its real size. A message is sized around a model that keeps no weight, and
what its weights take is added: four bytes a value, and the coded positions where the mask travels.
Under a real mask the outcome is exact; of one that is only counted the expected size is taken. With
secure aggregation it is a round after a device's first, in which nobody drops out.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedtiny.cost.workload import CountedMask, Workload
from fedtiny.federation.messages import Arrays, Request
from fedtiny.federation.reply_spec import expected, reply_bytes, without_weights
from fedtiny.federation.secure import Bounds, layout_for, not_summable
from fedtiny.federation.secure_gradients import table_for
from fedtiny.federation.transport import Traffic
from fedtiny.federation.verbs import Program
from fedtiny.federation.wire import Known, request_size
from fedtiny.federation.wire.indices import coded_size, expected_coded_size
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.privacy.secagg import sizes
from fedtiny.privacy.secagg.quantize import Scales
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.vector import VALUE_BYTES

PAPER_KEPT_WEIGHT = 8  # the paper's bytes for a kept weight: a value and a position
TYPICAL_LOSS = 1.8024139404296875  # a loss travels as text, so its digits matter a little

Coded = Mapping[str, int]
"""Bytes of the coded positions of each layer."""


def coded_mask(mask: Mask) -> Coded:
    """What the positions of a mask take; on average, if only their number is known."""
    sizes = mask.param_spec.sizes
    if isinstance(mask, CountedMask):
        return {layer: expected_coded_size(n, sizes[layer]) for layer, n in mask.counts.items()}
    return {layer: coded_size(mask.positions[layer], size) for layer, size in sizes.items()}


def training_round(
    work: Workload,
    round: int,
    *,
    new_mask: bool = False,
    reply_positions: Coded | None = None,
) -> Traffic:
    """A round of training; `new_mask` if the device does not hold the mask yet.

    `reply_positions` are those of the gradients (FedTiny) or of the device's own mask (FedDST)
    that an adjusting round sends up; by default those that are expected.
    """
    request = _training(work, round)
    sent = _exchange(request, work.mask, new_mask=new_mask, reply_positions=reply_positions)
    return _secured(work, request, work.mask, sent)


def unsecured_round(work: Workload) -> Traffic:
    """A plain round whose replies are not masked."""
    return _exchange(_training(work, work.plain_round), work.mask, new_mask=False)


def masked_values(work: Workload) -> int:
    """Numbers that a device masks in a plain round."""
    request, devices = _training(work, work.plain_round), work.config.fleet.asked
    return work.mask.count + _scales(work, request, devices).count


def selection(work: Workload, pool_mask: Mask | None = None) -> Traffic:
    """What devices are asked before the first round: by FedTiny to compare candidates (Alg. 1).

    They travel as one nested model, which a device holds from its first request on.
    """
    total, held = Traffic(), None
    for asked in work.coarse:
        request = _request(work, "select", asked.program, asked.arrays)
        mask = pool_mask or CountedMask(work.network.param_spec, asked.counts)
        sent = _exchange(request, mask, new_mask=True, held=asked.counts == held)
        total += _secured(work, request, mask, sent)
        held = asked.counts
    return total


def averaged(work: Workload) -> Traffic:
    """What devices are asked after the last round, if the final model is an average."""
    if work.averaged is None:
        return Traffic()
    request = _request(work, "average", work.averaged.program, work.averaged.arrays)
    return _secured(work, request, work.mask, _exchange(request, work.mask, new_mask=False))


def paper_selection(work: Workload) -> int:
    """The paper's count: every candidate by itself, 8 bytes a kept weight."""
    return PAPER_KEPT_WEIGHT * work.candidates * work.kept


def _request(
    work: Workload, action: str, program: Program, arrays: Arrays | None = None
) -> Request:
    theta = without_weights(work.network.param_spec)
    return Request(action, work.config.method, 0, program, theta, arrays or {})


def _training(work: Workload, round: int) -> Request:
    return _request(work, "train", work.program(round), work.arrays(round))


def _secured(work: Workload, request: Request, mask: Mask, plain: Traffic) -> Traffic:
    """The same under secure aggregation, in a round without dropouts: what it adds, and masks."""
    privacy, fleet = work.config.privacy, work.config.fleet
    if not privacy.secure_aggregation or not_summable(expected(request)):
        return plain
    everyone = request.action != "train" and not privacy.differential
    devices = fleet.devices if everyone else fleet.asked
    scales, many = _scales(work, request, devices), (devices, privacy.neighbors)
    numbers = scales.count + (mask.count if expected(request).theta else 0)
    down, up = sizes.down(*many, len(scales.sizes)), sizes.up(*many, numbers)
    secured, table = Traffic(plain.down + down, up), table_for(request, devices)
    return secured + (Traffic(8, 4 * (table.size + 1)) if table else Traffic())


def _scales(work: Workload, request: Request, devices: int) -> Scales:
    """What replies are rounded by, those of a model that keeps no weight."""
    privacy, mechanism = work.config.privacy, None
    if privacy.differential:
        clips = privacy.clip == "adaptive" and request.action == "train"
        mechanism = Mechanism(1.0, 1.0, devices, 0, 0, 0, counts_bits=clips)
        if privacy.noise == "devices":
            limits = (privacy.neighbors, privacy.threshold)
            mechanism = replace(mechanism, shared_by=limits)
    layout = layout_for(replace(request, mechanism=mechanism), devices)
    return layout.scales(Bounds(), devices, 1)


def _exchange(
    request: Request,
    mask: Mask,
    *,
    new_mask: bool,
    held: bool = False,
    reply_positions: Coded | None = None,
) -> Traffic:
    """A request about a model under this mask, all of which a device may hold, and the reply."""
    theta, sizes = request.theta, mask.param_spec.sizes
    down = request_size(request, Known.of(theta) if held else Known(theta.mask.version))
    if not held:
        down += VALUE_BYTES * mask.count + (sum(coded_mask(mask).values()) if new_mask else 0)

    def coded(layer: str, count: int) -> int:
        return (reply_positions or {}).get(layer) or expected_coded_size(count, sizes[layer])

    spec = expected(request)
    return Traffic(down, reply_bytes(spec, mask.param_spec, mask.counts, coded, TYPICAL_LOSS))
