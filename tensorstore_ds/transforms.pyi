from .annex.augment.affine import RandomAffine as RandomAffine, RandomPerspective as RandomPerspective
from .annex.augment.blur import GaussianBlur as GaussianBlur
from .annex.augment.color import (
    AutoContrast as AutoContrast,
    ColorJitter as ColorJitter,
    Equalize as Equalize,
    Posterize as Posterize,
    RandomGrayscale as RandomGrayscale,
    Solarize as Solarize,
)
from .annex.augment.erasing import RandomErasing as RandomErasing
from .annex.augment.mixing import CutMix as CutMix, Mixup as Mixup
from .annex.augment.mosaic import Mosaic as Mosaic
from .annex.augment.policies import RandAugment as RandAugment, TrivialAugment as TrivialAugment
from .loading.augment.compose import Compose as Compose, Views as Views
from .loading.augment.fitting import (
    CenterCrop as CenterCrop,
    Letterbox as Letterbox,
    Pad as Pad,
    Resize as Resize,
    ResizeToPatches as ResizeToPatches,
)
from .loading.augment.geometry import (
    RandomCrop as RandomCrop,
    RandomHorizontalFlip as RandomHorizontalFlip,
    RandomResizedCrop as RandomResizedCrop,
)
from .loading.augment.normalize import Normalize as Normalize, ToFloat as ToFloat
