from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo.transfer import HostCopy, to_device

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="wants a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_and_tensors_come_to_a_device_as_they_are(device: str) -> None:
    values = np.arange(6).reshape(2, 3)
    for given in (values, torch.from_numpy(values)):
        there = to_device(given, torch.device(device))
        assert there.device.type == device
        assert there.dtype == torch.int64
        assert there.tolist() == values.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_keeps_what_was_there_when_it_began(device: str) -> None:
    values = torch.arange(1000.0, device=device)
    copy = HostCopy(values)
    values.zero_()
    assert copy.wait().device.type == "cpu"
    assert copy.wait().tolist() == list(range(1000))
