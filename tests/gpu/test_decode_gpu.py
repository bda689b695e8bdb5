"""nvJPEG against Pillow, on a machine with a GPU and nvImageCodec."""

import io

import numpy as np
import pytest
from PIL import Image

from vtk.errors import VtkError
from vtk.preprocess.decode_gpu import GpuJpegDecoder, gpu_decoder


@pytest.fixture(scope="module")
def decoder() -> GpuJpegDecoder:
    try:
        return gpu_decoder()
    except VtkError as error:
        pytest.skip(f"needs nvImageCodec on a GPU: {error.message}")


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_pixels_are_those_of_pillow_within_rounding(
    decoder: GpuJpegDecoder, mode: str, progressive: bool, subsampling: str
) -> None:
    """2 levels of 255 on average, 40 at most: inverse DCT and chroma upsampling are nvJPEG's own."""
    noise = np.random.default_rng().integers(0, 256, (12, 16, 3), np.uint8)
    stream = io.BytesIO()
    picture = Image.fromarray(noise).resize((333, 251), Image.Resampling.BICUBIC).convert(mode)
    picture.save(stream, "JPEG", quality=90, progressive=progressive, subsampling=subsampling)
    with Image.open(stream) as opened:
        pixels = decoder.decode(stream.getvalue(), opened)  # type: ignore[arg-type]
        expected = np.asarray(opened.convert("RGB"), np.int16)
    assert pixels is not None
    difference = np.abs(pixels - expected)
    assert difference.mean() <= 2
    assert difference.max() <= 40
