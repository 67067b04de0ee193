"""What circular convolution layers share: emulated strides, a matrix a frequency."""

from torch import Tensor, nn

from lbdn.circular import convolve, images_of, kernel_spectrum, space_first
from lbdn.layers.base import Activation, ConvLayer, positive_scale, positive_size


class CircularConv(ConvLayer):
    """A circular convolution layer. With stride 2, 2 x 2 blocks of pixels become channels and the kernel is halved.

    Subclasses make their parameters, with ``bias`` among them, from ``columns`` (input channels after the blocks) and
    ``kernel_size``.
    """

    bias: Tensor | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int,
        scale: float,
        activation: Activation | None,
    ) -> None:
        super().__init__()
        positive_size(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size)
        if stride not in (1, 2):
            raise ValueError(f"stride takes 1 or 2, got {stride!r}")
        self.inputs, self.outputs, self.stride = in_channels, out_channels, stride
        self.scale = positive_scale(scale)
        self.activation = nn.ReLU() if activation is None else activation
        self.columns = in_channels * stride**2
        self.kernel_size = kernel_size if stride == 1 else max(kernel_size // 2, 1)

    def image_size(self, x: Tensor) -> tuple[int, ...]:
        """Check the input's shape; return height and width after the stride.

        Raises:
            ValueError: if the layer can't take the input.
        """
        height, width = super().image_size(x)
        if height % self.stride or width % self.stride:
            raise ValueError(
                f"a layer with stride 2 takes images of even height and width, got {height} x {width}; "
                f"pad or resize the images, or use stride 1"
            )
        return height // self.stride, width // self.stride

    def transform(self, x: Tensor, *operators: Tensor) -> Tensor:
        """Return the output of a layer with one matrix a frequency, a bias and an activation."""
        hidden = convolve(self.blocks(x), operators[0])
        return self.activation(hidden if self.bias is None else hidden + self.bias[:, None, None])

    def matrices(self, kernel: Tensor, *size: int) -> Tensor:
        """Return the kernel's matrix at each frequency; its one matrix, if it is of size one."""
        return kernel[:, :, 0, 0] if self.kernel_size == 1 else kernel_spectrum(kernel, *size)

    def blocks(self, x: Tensor) -> Tensor:
        """Return the input, its 2 x 2 blocks as channels at stride 2."""
        if self.stride == 1:
            return x
        pixels = space_first(x).unflatten(1, (-1, 2)).unflatten(0, (-1, 2))  # (h, 2, w, 2, channels, n)
        return images_of(pixels.permute(0, 2, 4, 1, 3, 5).flatten(2, 4))
