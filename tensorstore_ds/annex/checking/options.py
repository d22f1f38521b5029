"""What can be asked of a check."""

from __future__ import annotations

from tensorstore_ds.options import declared, option


@declared
class CheckOptions:
    """Options of `check_store`.

    >>> options = tsds.checking.CheckOptions(min_class=3, mirrored=True)
    >>> [few.split for few in tsds.check_store("photos.tsds", options).classes]
    ['val', 'val']
    """

    distance: int = option(
        "Maximum number of differing bits (of 63) between the perceptual hashes of images to compare, 0 to 7. Higher "
        "values find more modified copies and take longer.",
        default=3,
        at_least=0,
        at_most=7,
        group="Copies",
    )
    similarity: float = option(
        "Minimum correlation between the thumbnails of two images to report them as copies.",
        default=0.98,
        at_least=0,
        at_most=1,
        group="Copies",
    )
    near: bool = option(
        "Also find modified copies: resized, encoded again, brighter. Without it, only equal bytes are found.",
        default=True,
        group="Essential",
    )
    mirrored: bool = option("Report images mirrored left to right as copies.", default=False, group="Essential")
    min_class: int = option(
        "Report classes with fewer samples or objects than this in a split.",
        default=5,
        at_least=0,
        at_most=2**31,
        group="Essential",
    )
    min_box: float = option(
        "Report objects whose box has a side shorter than this many pixels.",
        default=2.0,
        at_least=0,
        at_most=1e6,
        group="Annotations",
    )
    max_box: float = option(
        "Report objects whose box covers more than this fraction of the image.",
        default=1.0,
        above=0,
        at_most=1,
        group="Annotations",
    )
    max_aspect: float = option(
        "Report objects whose box has an aspect ratio above this.",
        default=20.0,
        at_least=1,
        at_most=1e6,
        group="Annotations",
    )
    min_overlap: float = option(
        "Report objects whose box and the hull of their oriented box have an intersection over union (IoU) below this.",
        default=0.3,
        at_least=0,
        at_most=1,
        group="Annotations",
    )
    absent_keypoints: bool = option(
        "Report objects with some of their keypoints, but not all.", default=True, group="Annotations"
    )

    odd_images: bool = option(
        "Report images that are blurred, dark, overexposed, or of an unusual aspect ratio.",
        default=True,
        group="Essential",
    )
    min_sharpness: float = option(
        "Report images as blurred if their sharpness is below this: about 1 for a sharp edge, 0 for a completely soft "
        "image.",
        default=0.25,
        at_least=0,
        at_most=8,
        group="Images",
    )
    min_lights: float = option(
        "Report images as dark if their 99th percentile of luminance (0 to 255) is below this.",
        default=50.0,
        at_least=0,
        at_most=255,
        group="Images",
    )
    max_shadows: float = option(
        "Report images as overexposed if their 5th percentile of luminance (0 to 255) is above this.",
        default=230.0,
        at_least=0,
        at_most=255,
        group="Images",
    )
    max_image_aspect: float = option(
        "Report images whose width / height is more than this many times the median of the store, or less than the "
        "median divided by it.",
        default=3.0,
        at_least=1,
        at_most=1e6,
        group="Images",
    )

    prediction_score: float = option(
        "Minimum score of detections of `predictions`.", default=0.8, at_least=0, at_most=1, group="Predictions"
    )
    prediction_iou: float = option(
        "Minimum intersection over union (IoU) of a detection and an object that agree.",
        default=0.5,
        at_least=0.1,
        at_most=1,
        group="Predictions",
    )
