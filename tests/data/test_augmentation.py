"""Augmentation: random, seeded, different for each image; its pieces and the whole are torchvision's.

Libraries made for it don't draw all of that for each image: torchvision's v2 draws once a batch (called image by image
it takes over four times as long, for 256 images of 3 x 32 x 32), kornia's one order of the colour steps (1.3 times).
"""

from itertools import permutations
from math import factorial

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, ks_2samp, kstest
from torchvision import transforms
from torchvision.transforms import functional as reference

from lbdn.data import augmentation
from lbdn.data.augmentation import AUGMENTATIONS, _blend, _crop, _grey, _shift_hue, crop_flip_jitter

STEPS = {  # and torchvision's names for them
    "_brightness": "brightness",
    "_contrast": "contrast",
    "_saturation": "saturation",
    "_shift_hue": "hue",
}
JITTER = {"brightness": 0.1, "contrast": (0.5, 2.0), "saturation": (0.3, 2.0), "hue": 0.02}  # the paper's
FACTORS = [0.3, 0.5, 0.9, 1.0, 1.1, 2.0]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int = 6, channels: int = 3, size: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, channels, size, size, generator=generator(seed))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [8, 32])
def test_shape_type_and_range_stay(channels, size):
    images = pictures(50, channels, size)
    images[0], images[1] = 0, 1
    result = crop_flip_jitter(images, generator())
    assert (result.shape, result.dtype) == (images.shape, images.dtype)
    assert result.min() >= 0
    assert result.max() <= 1
    assert not torch.equal(result, images)


def test_the_images_that_go_in_stay_as_they_are():
    images = pictures()
    crop_flip_jitter(images, generator())
    assert torch.equal(images, pictures())


def test_the_generator_determines_the_result():
    images = pictures()
    torch.manual_seed(1)
    first = crop_flip_jitter(images, generator(5))
    torch.manual_seed(2)
    assert torch.equal(crop_flip_jitter(images, generator(5)), first)
    assert not torch.equal(crop_flip_jitter(images, generator(6)), first)


def test_equal_images_of_a_batch_become_different():
    result = crop_flip_jitter(pictures(1).expand(20, 3, 16, 16), generator())
    assert torch.cdist(result.flatten(1), result.flatten(1)).fill_diagonal_(1).min() > 0.1


def test_a_crop_is_a_window_of_the_reflected_image_and_each_window_comes_up():
    image = pictures(1, 2, 6)
    n = 2000
    crops = _crop(image.expand(n, 2, 6, 6), 4, generator()).numpy()
    padded = np.pad(image[0].numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
    windows = {padded[:, i : i + 6, j : j + 6].tobytes(): (i, j) for i in range(9) for j in range(9)}
    seen = [windows[np.ascontiguousarray(crop).tobytes()] for crop in crops]
    assert len(set(seen)) == 81
    assert (np.bincount([i for i, _ in seen]) > n / 9 / 2).all()
    assert (np.bincount([j for _, j in seen]) > n / 9 / 2).all()


def test_half_of_the_images_are_flipped():
    ramp = torch.linspace(0.2, 0.4, 32).expand(1000, 1, 32, 32)
    result = crop_flip_jitter(ramp, generator())
    flipped = result[..., :16].mean(dim=(1, 2, 3)) > result[..., 16:].mean(dim=(1, 2, 3))
    assert 0.45 < flipped.double().mean() < 0.55


def test_without_an_offset_and_at_neutral_factors_each_piece_is_the_identity():
    images = pictures()
    one, zero = torch.tensor(1.0), torch.tensor(0.0)
    assert torch.equal(_crop(images, 0, generator()), images)
    for other in (torch.zeros_like(images), _grey(images), _grey(images).mean(dim=(1, 2, 3), keepdim=True)):
        assert torch.equal(_blend(images, other, one), images)
    for turn in (zero, one, -one):
        torch.testing.assert_close(_shift_hue(images, turn), images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("channels", [1, 3])
def test_brightness_and_contrast_are_torchvisions(factor, channels):
    for image in pictures(channels=channels):
        bright = _blend(image[None], torch.zeros_like(image[None]), torch.tensor(factor))[0]
        torch.testing.assert_close(bright, reference.adjust_brightness(image, factor), atol=1e-5, rtol=0)
        contrast = _blend(image[None], _grey(image[None]).mean(dim=(1, 2, 3), keepdim=True), torch.tensor(factor))[0]
        torch.testing.assert_close(contrast, reference.adjust_contrast(image, factor), atol=1e-5, rtol=0)


@pytest.mark.parametrize("factor", FACTORS)
def test_saturation_is_torchvisions(factor):
    for image in pictures():
        saturated = _blend(image[None], _grey(image[None]), torch.tensor(factor))[0]
        torch.testing.assert_close(saturated, reference.adjust_saturation(image, factor), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shift", [-0.5, -0.02, -0.005, 0.0, 0.01, 0.02, 0.3])
def test_hue_is_torchvisions(shift):
    images = pictures()
    images[0, :, :4] = 0.5  # grey
    images[1, :, :4] = torch.eye(3)[:, None, torch.arange(16) % 3]  # pure colours
    images[2, 0] = images[2, 1]  # two channels alike
    expected = torch.stack([reference.adjust_hue(image, shift) for image in images])
    torch.testing.assert_close(_shift_hue(images, torch.tensor(shift)), expected, atol=1e-5, rtol=0)


def test_pillows_operations_are_the_same_up_to_rounding():
    image = pictures(1, size=32)
    picture = reference.to_pil_image(image[0])
    image = reference.to_tensor(picture)[None]
    for result, expected, tolerance in (
        (_blend(image, torch.zeros_like(image), torch.tensor(1.1)), reference.adjust_brightness(picture, 1.1), 2),
        (_blend(image, _grey(image).mean(), torch.tensor(0.6)), reference.adjust_contrast(picture, 0.6), 2),
        (_blend(image, _grey(image), torch.tensor(1.8)), reference.adjust_saturation(picture, 1.8), 2),
    ):
        assert (result[0] - reference.to_tensor(expected)).abs().max() <= tolerance / 255


def test_hue_and_saturation_leave_grey_images_alone():
    grey = pictures(channels=1).expand(-1, 3, -1, -1)
    torch.testing.assert_close(_shift_hue(grey, torch.tensor(0.3)), grey, atol=1e-6, rtol=0)
    torch.testing.assert_close(_blend(grey, _grey(grey), torch.tensor(2.0)), grey, atol=2e-4, rtol=0)


def test_none_is_the_name_of_no_augmentation():
    assert AUGMENTATIONS["none"] is None
    assert AUGMENTATIONS["crop-flip-jitter"] is crop_flip_jitter


# the order of the steps, and the whole


@pytest.mark.parametrize(("channels", "expected"), [(1, 2 * 3), (3, 2 * 3 * 5 * 7), (4, 2 * 3)])
def test_every_image_gets_each_step_exactly_once(monkeypatch, channels, expected):
    for name, prime in zip(STEPS, (2, 3, 5, 7), strict=True):
        monkeypatch.setattr(augmentation, name, lambda images, ratio, prime=prime: prime * images)
    for n in (1, 2, 100):  # of one image, most steps at a place get none
        assert (crop_flip_jitter(torch.ones(n, channels, 8, 8), generator()) == expected).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_every_order_of_the_steps_comes_up_equally_often_within_one_batch(monkeypatch, channels):
    strengths = dict(list(zip(STEPS, (1.5, 2.0, 2.0, 0.1), strict=True))[: 2 if channels == 1 else 4])
    for name, strength in strengths.items():
        step = getattr(augmentation, name)
        fixed = lambda images, ratio, step=step, strength=strength: step(images, torch.full_like(ratio, strength))  # noqa: E731
        monkeypatch.setattr(augmentation, name, fixed)
    monkeypatch.setattr(augmentation, "_crop", lambda images, *_: images)
    half = pictures(1, channels, 8)
    image = torch.cat([half, half.flip(-1)], dim=-1)  # the same if flipped
    outcomes = []
    for order in permutations(strengths):
        outcome = image
        for name in order:
            outcome = getattr(reference, f"adjust_{STEPS[name]}")(outcome, strengths[name])
        outcomes.append(outcome.flatten())
    outcomes = torch.stack(outcomes)
    apart = torch.cdist(outcomes, outcomes, p=torch.inf) + torch.eye(len(outcomes))
    assert apart.min() > 0.01  # so that a result tells the order

    n = 100 * factorial(len(strengths))
    results = crop_flip_jitter(image.expand(n, -1, -1, -1), generator())
    distances, orders = torch.cdist(results.flatten(1), outcomes, p=torch.inf).min(dim=1)
    assert distances.max() < 1e-4
    assert chisquare(np.bincount(orders, minlength=len(outcomes))).pvalue > 1e-4


def test_factors_are_drawn_for_each_image_evenly_from_the_ranges_of_torchvisions_jitter(monkeypatch):
    drawn = {name: [] for name in STEPS}
    for name in STEPS:
        monkeypatch.setattr(
            augmentation, name, lambda images, ratio, name=name: (drawn[name].append(ratio.flatten()), images)[1]
        )
    crop_flip_jitter(torch.zeros(1000, 3, 8, 8), generator())
    jitter = transforms.ColorJitter(**JITTER)
    for name, parts in drawn.items():
        factors, (low, high) = torch.cat(parts).double().numpy(), getattr(jitter, STEPS[name])
        assert len(np.unique(factors)) > 990
        assert low <= factors.min()
        assert factors.max() <= high
        assert kstest(factors, "uniform", (low, high - low)).pvalue > 1e-4
        assert kstest(factors, "uniform", (low, 0.8 * (high - low))).pvalue < 1e-4


DRAWS = 600


@pytest.fixture(scope="module")
def picture():
    coarse = torch.rand(1, 3, 5, 5, generator=generator(3))
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic")
    return reference.to_pil_image(smooth[0].clamp(0, 1))


@pytest.fixture(scope="module")
def ours(picture):
    return crop_flip_jitter(reference.to_tensor(picture).expand(DRAWS, -1, -1, -1), generator())


def torchvisions(picture, *, padding_mode="reflect", padding=4, flip=0.5, one_order=False, **changes):
    jitter = JITTER | changes
    kinds = [transforms.ColorJitter(**{name: value}) for name, value in jitter.items()]
    pipeline = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=padding, padding_mode=padding_mode),
            transforms.RandomHorizontalFlip(flip),
            transforms.Compose(kinds[::-1]) if one_order else transforms.ColorJitter(**jitter),
        ]
    )
    return torch.stack([reference.to_tensor(pipeline(picture)) for _ in range(DRAWS)])


def statistics(images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a number an image from each of several points of view."""
    red, green, blue = images.mean(dim=(2, 3)).T
    colour = (images.amax(dim=1) - images.amin(dim=1)).mean(dim=(1, 2))
    contrast = images.std(dim=(1, 2, 3))
    return {
        "brightness": images.mean(dim=(1, 2, 3)),
        "contrast": contrast,
        "largest": images.amax(dim=(1, 2, 3)),
        "saturation": colour / contrast,
        "hue": torch.atan2(3**0.5 * (green - blue), 2 * red - green - blue),
        "left against right": images[..., :16].mean(dim=(1, 2, 3)) - images[..., 16:].mean(dim=(1, 2, 3)),
        "top against bottom": images[..., :16, :].mean(dim=(1, 2, 3)) - images[..., 16:, :].mean(dim=(1, 2, 3)),
        "a corner": images[:, 0, 0, 0],
        "the middle": images[:, 1, 16, 16],
        "an edge": images[:, 2, 20, 31],
    }


def differing(images: torch.Tensor, others: torch.Tensor) -> list[str]:
    """Return which statistics' distributions differ, by the two-sample Kolmogorov-Smirnov test."""
    pairs = zip(statistics(images).items(), statistics(others).values(), strict=True)
    return [name for (name, one), other in pairs if ks_2samp(one.numpy(), other.numpy()).pvalue < 1e-4]


def test_the_whole_is_torchvisions_pipeline_on_pillow_images_in_distribution(picture, ours):
    theirs = torchvisions(picture)
    assert differing(ours, theirs) == []
    error = ((ours.var(dim=0) + theirs.var(dim=0)) / DRAWS).sqrt()
    rounding = 2 / 255  # Pillow cuts off to 8 bits after each step
    assert ((ours.mean(dim=0) - theirs.mean(dim=0)).abs() < 4.5 * error + rounding).all()


@pytest.mark.parametrize(
    ("change", "telltale"),
    [
        ({"brightness": 0.3}, "brightness"),
        ({"contrast": (0.5, 1.25)}, "contrast"),
        ({"saturation": (0.3, 1.4)}, "saturation"),
        ({"hue": 0.08}, "hue"),
        ({"padding_mode": "constant"}, "a corner"),
        ({"padding": 1}, "the middle"),
        ({"flip": 0.0}, "left against right"),
        ({"one_order": True}, "largest"),
    ],
    ids=str,
)
def test_another_pipeline_is_not_the_same_in_distribution(picture, ours, change, telltale):
    assert telltale in differing(ours, torchvisions(picture, **change))
