"""Links between ranks as the α-β model sees them: a message of n bytes takes α + n/β seconds.

β is the bandwidth in ONE direction, from one device, at the signalling rate. Vendors of GPU links
usually print both directions together: that figure is halved here. Nobody reaches β: protocol and
software take their part.

α is what one step of a ring costs before its bytes flow. For GPU links it is not the wire's
latency but what a collective library pays: NCCL's own cost model has 3.4 µs a step on NVLink,
5.7 µs on PCIe and 14 µs on a network (`hwLat`, ring, protocol Simple, in its src/graph/tuning.cc,
version 2.18 and later).
"""

from dataclasses import dataclass

from zerolab.accounting.errors import unknown_name

_NCCL = "α: NCCL src/graph/tuning.cc, hwLat, ring, Simple"
_RULE = "α: rule of thumb for the kernel's TCP"


@dataclass(frozen=True)
class Link:
    """One link, one direction."""

    name: str
    latency: float  # α, seconds a message
    bandwidth: float  # β, bytes a second
    source: str

    def seconds(self, size: float, messages: int = 1) -> float:
        """Time for `size` bytes in `messages` messages, one after the other."""
        return messages * self.latency + size / self.bandwidth


LINKS = {
    link.name: link
    for link in (
        Link("nvlink5", 3.4e-6, 900e9, f"NVIDIA B200: 1.8 TB/s both directions. {_NCCL}"),
        Link("nvlink4", 3.4e-6, 450e9, f"NVIDIA H100 SXM: 900 GB/s both directions. {_NCCL}"),
        Link("nvlink3", 3.4e-6, 300e9, f"NVIDIA A100 SXM: 600 GB/s both directions. {_NCCL}"),
        # 16 lanes, 128 bits of payload in 130 on the wire
        Link("pcie5", 5.7e-6, 63.0e9, f"PCI-SIG, PCIe 5.0: 32 GT/s × 16 × 128/130. {_NCCL}"),
        Link("pcie4", 5.7e-6, 31.5e9, f"PCI-SIG, PCIe 4.0: 16 GT/s × 16 × 128/130. {_NCCL}"),
        Link("ib-ndr", 14e-6, 50e9, f"IBTA, NDR 4x: 400 Gb/s each way. {_NCCL}"),
        Link("ib-hdr", 14e-6, 25e9, f"IBTA, HDR 4x: 200 Gb/s each way. {_NCCL}"),
        Link("100gbe", 14e-6, 12.5e9, f"IEEE 802.3: 100 Gb/s each way, RDMA. {_NCCL}"),
        Link("10gbe", 30e-6, 1.25e9, f"IEEE 802.3: 10 Gb/s each way. {_RULE}"),
        Link("1gbe", 50e-6, 0.125e9, f"IEEE 802.3: 1 Gb/s each way. {_RULE}"),
        Link("loopback", 30e-6, 2e9, "rule of thumb for two processes on a laptop: measure yours"),
    )
}


def link(name: str, option: str = "--link") -> Link:
    """The link of that name. Raises InputError, nearest name first, for any other."""
    if name not in LINKS:
        raise unknown_name(option, name, LINKS)
    return LINKS[name]
