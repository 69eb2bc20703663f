"""The light models that the onnx package ships import with the published sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from raptor_cp.errors import MalformedInput
from raptor_cp.network.onnx_import import import_onnx

onnx = pytest.importorskip("onnx")
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

#: Multiply-accumulates and parameters in millions (the networks' papers and
#: torchvision; SqueezeNet is version 1.0).
PUBLISHED = {
    "light_densenet121": (2834, 7.98),
    "light_resnet50": (4089, 25.53),
    "light_squeezenet": (349, 1.235),
    "light_vgg19": (19632, 143.67),
    "light_bvlc_alexnet": (655, 60.97),
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_sizes_are_the_published_ones(name: str) -> None:
    network = import_onnx(LIGHT / f"{name}.onnx")
    macs, parameters = PUBLISHED[name]
    assert network.macs == pytest.approx(macs * 1e6, rel=0.01)
    assert network.parameters == pytest.approx(parameters * 1e6, rel=0.01)


def test_all_light_models_import() -> None:
    files = sorted(LIGHT.glob("*.onnx"))
    assert len(files) == 9
    for path in files:
        network = import_onnx(path)
        assert network.macs > 0
        assert all(min(network.tensors[t].shape) > 0 for t in network.outputs)


def test_what_is_no_model_is_one_sentence(tmp_path: Path) -> None:
    text = tmp_path / "a.onnx"
    text.write_text("not a model")
    whole = (LIGHT / "light_squeezenet.onnx").read_bytes()
    cut = tmp_path / "b.onnx"
    cut.write_bytes(whole[: len(whole) // 2])
    for path in (text, cut, tmp_path / "none.onnx"):
        with pytest.raises(MalformedInput) as caught:
            import_onnx(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
