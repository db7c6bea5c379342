"""Networks as people write them for devices: blocks of torchvision, tutorials and papers."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class TutorialLeNet(nn.Module):
    """The network of PyTorch's tutorial on neural networks."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


class ConvNormActivation(nn.Sequential):
    """torchvision.ops.misc.Conv2dNormActivation."""

    def __init__(self, channels, filters, kernel=3, stride=1, groups=1, activation=nn.ReLU6):
        layers = [
            nn.Conv2d(channels, filters, kernel, stride, (kernel - 1) // 2, 1, groups, bias=False),
            nn.BatchNorm2d(filters),
        ]
        if activation is not None:
            layers.append(activation(inplace=True))
        super().__init__(*layers)


class InvertedResidual(nn.Module):
    """torchvision.models.mobilenetv2.InvertedResidual."""

    def __init__(self, inp, oup, stride, expand_ratio):
        super().__init__()
        hidden = round(inp * expand_ratio)
        self.use_res_connect = stride == 1 and inp == oup
        layers = []
        if expand_ratio != 1:
            layers.append(ConvNormActivation(inp, hidden, 1))
        layers.extend(
            [
                ConvNormActivation(hidden, hidden, stride=stride, groups=hidden),
                nn.Conv2d(hidden, oup, 1, 1, 0, bias=False),
                nn.BatchNorm2d(oup),
            ]
        )
        self.conv = nn.Sequential(*layers)

    def forward(self, x):
        if self.use_res_connect:
            return x + self.conv(x)
        return self.conv(x)


class SqueezeExcitation(nn.Module):
    """torchvision.ops.misc.SqueezeExcitation."""

    def __init__(self, channels, squeezed, activation=nn.ReLU, scale_activation=nn.Hardsigmoid):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = activation()
        self.scale_activation = scale_activation()

    def _scale(self, x):
        scale = self.avgpool(x)
        scale = self.fc1(scale)
        scale = self.activation(scale)
        scale = self.fc2(scale)
        return self.scale_activation(scale)

    def forward(self, x):
        scale = self._scale(x)
        return scale * x


class SELayer(nn.Module):
    """Squeeze-and-excite with linear layers, as in many repositories."""

    def __init__(self, channel, reduction=2):
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channel, channel // reduction, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(channel // reduction, channel, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class Fire(nn.Module):
    """torchvision.models.squeezenet.Fire."""

    def __init__(self, inplanes, squeeze_planes, expand1x1_planes, expand3x3_planes):
        super().__init__()
        self.squeeze = nn.Conv2d(inplanes, squeeze_planes, kernel_size=1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze_planes, expand1x1_planes, kernel_size=1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeeze_planes, expand3x3_planes, kernel_size=3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat(
            [
                self.expand1x1_activation(self.expand1x1(x)),
                self.expand3x3_activation(self.expand3x3(x)),
            ],
            1,
        )


class ShuffleUnit(nn.Module):
    """torchvision.models.shufflenetv2.InvertedResidual with stride 1."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.branch2 = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        out = torch.cat((x1, self.branch2(x2)), dim=1)
        batchsize, num_channels, height, width = out.size()
        out = out.view(batchsize, 2, num_channels // 2, height, width)
        out = torch.transpose(out, 1, 2).contiguous()
        return out.view(batchsize, num_channels, height, width)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, then layer norm and linear layers with the channels last."""

    def __init__(self, dim):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.gamma = nn.Parameter(torch.rand(dim))

    def forward(self, x):
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(x))))
        return shortcut + x.permute(0, 3, 1, 2)


class Attention(nn.Module):
    """timm.models.vision_transformer.Attention."""

    def __init__(self, dim, num_heads=2, *, fused=True):
        super().__init__()
        self.num_heads, self.head_dim, self.fused = num_heads, dim // num_heads, fused
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape  # noqa: N806
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused:
            x = F.scaled_dot_product_attention(q, k, v)
        else:
            q = q * self.scale
            attn = q @ k.transpose(-2, -1)
            x = attn.softmax(dim=-1) @ v
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Vit(nn.Module):
    """Patches, a class token, learned positions, one block, and a head on the class token."""

    def __init__(self, dim=8, *, fused=True):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, dim))
        self.norm1, self.norm2, self.norm = (nn.LayerNorm(dim) for _ in range(3))
        self.attn = Attention(dim, fused=fused)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x)[:, 0])


class Encoder(nn.Module):
    """Down and up again, with what came before beside it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.down = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.last = nn.Conv2d(12, 4, 3, padding=1)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        x = torch.relu(self.first(x))
        y = self.norm(self.up(torch.relu(self.down(x))))
        x = torch.relu(self.last(torch.cat([x, y], dim=1)))
        return self.fc(x.mean([2, 3]))


class Recurrent(nn.Module):
    """One convolution that runs three times."""

    def __init__(self):
        super().__init__()
        self.first, self.step = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.norm = nn.GroupNorm(2, 6)
        self.middle, self.last = nn.Conv2d(6, 8, 1), nn.Linear(8, 10)

    def forward(self, x):
        x = self.first(x)
        for _ in range(3):
            x = F.relu(self.norm(self.step(x)))
        return self.last(F.adaptive_avg_pool2d(self.middle(x), 1).squeeze(-1).squeeze(-1))


class TemporalBlock(nn.Module):
    """A causal, dilated convolution over time, beside an identity."""

    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return F.relu(self.norm(self.conv(self.pad(x))) + x)


def headed(*body, channels=3, width=8):
    """A stem, a body, the mean over space and a head."""
    stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    pool = (nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten())
    return nn.Sequential(stem, nn.BatchNorm2d(width), *body, *pool, nn.Linear(width, 10))


NETWORKS = {
    "LeNet": (TutorialLeNet, (1, 32, 32)),
    "MobileNetV2": (
        lambda: headed(InvertedResidual(8, 8, 1, 1), InvertedResidual(8, 8, 2, 3)),
        (3, 9, 8),
    ),
    "MobileNetV3": (
        lambda: headed(
            ConvNormActivation(8, 16, 1, activation=nn.Hardswish),
            ConvNormActivation(16, 16, 5, 2, 16, activation=nn.Hardswish),
            SqueezeExcitation(16, 4),
            ConvNormActivation(16, 8, 1, activation=None),
        ),
        (3, 9, 8),
    ),
    "squeeze-and-excite": (lambda: headed(nn.Conv2d(8, 8, 3), SELayer(8)), (3, 9, 8)),
    "SqueezeNet": (
        lambda: headed(nn.MaxPool2d(3, 2, ceil_mode=True), Fire(8, 2, 4, 4), Fire(8, 3, 5, 3)),
        (3, 10, 9),
    ),
    "ShuffleNetV2": (lambda: headed(nn.Conv2d(8, 8, 3), ShuffleUnit(8)), (3, 9, 8)),
    "grouped": (
        lambda: headed(nn.Conv2d(8, 12, 3, groups=4), nn.ReLU(), nn.Conv2d(12, 8, 1)),
        (3, 9, 8),
    ),
    "dilated": (
        lambda: headed(nn.Conv2d(8, 8, 3, dilation=2, padding=2), nn.SiLU(), nn.Conv2d(8, 8, 2)),
        (3, 9, 8),
    ),
    "ConvNeXt": (lambda: headed(ConvNeXtBlock(8)), (3, 6, 7)),
    "Vit": (Vit, (3, 8, 8)),
    "Vit by hand": (lambda: Vit(fused=False), (3, 8, 8)),
    "encoder": (Encoder, (3, 8, 6)),
    "recurrent": (Recurrent, (3, 8, 7)),
    "temporal": (
        lambda: nn.Sequential(
            nn.Conv1d(6, 8, 3, padding="same"),
            TemporalBlock(8, 1),
            TemporalBlock(8, 4),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(8, 10),
        ),
        (6, 24),
    ),
    "table": (
        lambda: nn.Sequential(
            nn.Linear(7, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 10)
        ),
        (7,),
    ),
}
