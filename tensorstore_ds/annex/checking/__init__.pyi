from .findings import (
    AbsentKeypoints as AbsentKeypoints,
    CheckedSample as CheckedSample,
    CheckFindings as CheckFindings,
    Copies as Copies,
    FewSamples as FewSamples,
    OddBox as OddBox,
    OddImage as OddImage,
    SharedImages as SharedImages,
    SuspectLabel as SuspectLabel,
    SuspectObject as SuspectObject,
)
from .options import CheckOptions as CheckOptions
from .picture import draw_copies as draw_copies
