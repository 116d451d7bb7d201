from __future__ import annotations

import numpy as np
import pytest
import torch

from elmo.errors import ElmoError
from elmo.transfer import HostCopy, to_device, usable_device

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


@pytest.mark.parametrize("device", ["meta", "cuda:77", "toaster"])
def test_a_device_that_cannot_be_computed_on_is_a_mistake(device: str) -> None:
    with pytest.raises(ElmoError, match=f"device is '{device}', which cannot be used here"):
        usable_device(device)


def test_the_gpu_is_taken_where_there_is_one() -> None:
    assert usable_device("cpu") == torch.device("cpu")
    assert usable_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
