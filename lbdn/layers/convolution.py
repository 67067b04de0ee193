"""What circular convolution layers share: emulated strides, a matrix a frequency, a dense form for small images."""

from torch import Tensor, nn

from lbdn.circular import dense, kernel_spectrum
from lbdn.layers.base import Activation, ConvLayer, positive_scale, positive_size

DENSE_ENTRIES = 2**20  # 4 MiB of float32: above, Fourier transforms are faster than one dense product


class CircularConv(ConvLayer):
    """A circular convolution layer. With stride 2, 2 x 2 blocks of pixels become channels and the kernel is halved.

    Subclasses make their parameters from ``columns`` (input channels after the blocks) and ``kernel_size``.
    """

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

    def matrices(self, kernel: Tensor, *size: int) -> Tensor:
        """Return the kernel's matrix at each frequency; its one matrix, if it is of size one."""
        return kernel[:, :, 0, 0] if self.kernel_size == 1 else kernel_spectrum(kernel, *size)

    def blocks(self, x: Tensor) -> Tensor:
        """Return the input, its 2 x 2 blocks as channels at stride 2."""
        return nn.functional.pixel_unshuffle(x, 2) if self.stride == 2 else x

    def frozen_operators(self, *size: int) -> tuple[Tensor, ...]:
        """Return operators in the form that is fastest to use many times: a dense matrix, for small images."""
        height, width = size

        def fastest(operator: Tensor) -> Tensor:
            if not operator.is_complex() or operator[0, 0].numel() * (height * width) ** 2 > DENSE_ENTRIES:
                return operator
            return dense(operator, height, width)

        return tuple(fastest(operator) for operator in self.operators(*size))
