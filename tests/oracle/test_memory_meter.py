"""The memory meter against a counter preloaded beneath torch's allocator.

Alive means the same to both, to the byte. At a peak the oracle also sees what a kernel allocates
and frees within one call; those kernels are named here, and measured one by one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMED_TEMPORARIES = {
    "aten.embedding.default",
    "aten.embedding_dense_backward.default",
    "aten.gelu.default",
    "aten.gelu_backward.default",
    "aten.native_layer_norm_backward.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    "aten._foreach_add_.Scalar",
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> dict:
    if not sys.platform.startswith("linux"):
        pytest.skip("the oracle stands beneath glibc's allocator: Linux only")
    library = tmp_path_factory.mktemp("oracle") / "allocations.so"
    source = str(HERE / "allocations.c")
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), source, "-pthread"], check=True
    )
    run = subprocess.run(
        [sys.executable, str(HERE / "measure.py")],
        env={**os.environ, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("how", ["in turn", "overlapped"])
def test_live_bytes_are_equal(measured, strategy, how):
    for rows in measured[how][strategy]:
        live = [row for row in rows if row[0].startswith("live")]
        assert len(live) == 12
        assert [meter for _, meter, _ in live] == [oracle for _, _, oracle in live]
        assert min(meter for _, meter, _ in live) > 0


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_peaks_are_equal_but_for_named_temporaries(measured, strategy):
    """In turn: else the communication thread may free a buffer just when another is allocated, and
    the two do not see that in the same order."""
    largest = max(max(found.values()) for found in measured["temporaries"])
    for rows in measured["in turn"][strategy]:
        for moment, meter, oracle in rows:
            assert 0 <= oracle - meter <= largest, moment


def test_every_temporary_has_a_name(measured):
    for found in measured["temporaries"]:
        assert set(found) <= NAMED_TEMPORARIES
