"""Training augmentation on a batch of image tensors, drawn for each image, on the images' device."""

from collections.abc import Callable

import torch
from torch import Tensor

Augmentation = Callable[[Tensor, torch.Generator], Tensor]
Step = Callable[[Tensor, Tensor], Tensor]


def crop_flip_jitter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return randomly cropped, flipped and recoloured images, as the paper augments CIFAR and Tiny-ImageNet.

    Reflection padding of 4 and a random crop; a horizontal flip; then brightness, contrast, saturation and hue. Every
    factor and the order of the four are drawn for each image. Hue and saturation leave grey images alone.

    Args:
        images: float, ``(n, channels, h, w)`` on [0, 1].
        generator: on the CPU, so that the draws are the same for every device.

    Source: Araujo et al. (2023); torchvision's ``RandomCrop``, ``RandomHorizontalFlip`` and ``ColorJitter``.
    """

    def draw(low: float, high: float) -> Tensor:
        u = torch.rand(len(images), 1, 1, 1, generator=generator).to(images, non_blocking=True)
        return low + (high - low) * u

    images = _crop(images, 4, generator)
    images = torch.where(draw(0, 1) < 0.5, images.flip(-1), images)
    steps: list[tuple[Step, Tensor]] = [(_brightness, draw(0.9, 1.1)), (_contrast, draw(0.5, 2.0))]
    if images.shape[1] == 3:
        steps += [(_saturation, draw(0.3, 2.0)), (_shift_hue, draw(-0.02, 0.02))]
    order = torch.rand(len(images), len(steps), generator=generator).argsort(dim=1)
    for place in range(len(steps)):
        for index, (step, factors) in enumerate(steps):
            chosen = (order[:, place] == index).nonzero().squeeze(1).to(images.device, non_blocking=True)
            images[chosen] = step(images[chosen], factors[chosen])
    return images


def _brightness(images: Tensor, ratio: Tensor) -> Tensor:
    return (ratio * images).clamp(0, 1)


def _contrast(images: Tensor, ratio: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean(dim=(1, 2, 3), keepdim=True), ratio)


def _saturation(images: Tensor, ratio: Tensor) -> Tensor:
    return _blend(images, _grey(images), ratio)


def _crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    n, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4, mode="reflect")
    offsets = torch.randint(2 * padding + 1, (2, n, 1), generator=generator).to(images.device, non_blocking=True)
    rows = offsets[0] + torch.arange(height, device=images.device)
    columns = offsets[1] + torch.arange(width, device=images.device)
    batch = torch.arange(n, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images
    weights = torch.tensor([0.2989, 0.587, 0.114], device=images.device, dtype=images.dtype)  # ITU-R 601-2
    return (images * weights[:, None, None]).sum(dim=1, keepdim=True)


def _blend(images: Tensor, other: Tensor, ratio: Tensor) -> Tensor:
    return (ratio * images + (1 - ratio) * other).clamp(0, 1)


def _shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Return the images with their hue moved by a fraction of the circle, through HSV."""
    value, largest = images.max(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    red, green, blue = images.split(1, dim=1)
    safe = chroma.clamp_min(torch.finfo(images.dtype).eps)
    sextant = torch.where(
        largest == 0,
        (green - blue) / safe,
        torch.where(largest == 1, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    offsets = torch.tensor([5, 3, 1], device=images.device, dtype=images.dtype)[:, None, None]
    k = (offsets + sextant + 6 * shift) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


AUGMENTATIONS: dict[str, Augmentation | None] = {"none": None, "crop-flip-jitter": crop_flip_jitter}


def find_augmentation(name: str) -> Augmentation | None:
    """Return an augmentation by its name, None for none.

    Raises:
        ValueError: for an unknown name.
    """
    if name not in AUGMENTATIONS:
        raise ValueError(f"no augmentation {name!r}; there are {', '.join(AUGMENTATIONS)}")
    return AUGMENTATIONS[name]
