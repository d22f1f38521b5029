"""What can be asked of a check."""

from __future__ import annotations

from tensorstore_ds.options import check, declared, option


@declared
class CheckOptions:
    """Options of a check of a store's content.

    >>> options = tsds.CheckOptions(min_class=3, mirrored=True)
    >>> [few.split for few in tsds.check_store("photos.tsds", options).classes]
    ['val', 'val']
    """

    distance: int = option(
        "Images are compared if their perceptual hashes differ in at most so many of 63 bits, 0 to 7. More finds more "
        "changed copies, and takes longer.",
        default=3,
        at_least=0,
        at_most=7,
    )
    similarity: float = option(
        "Images are copies of each other if the correlation of their thumbnails is at least this.",
        default=0.98,
        at_least=0,
        at_most=1,
    )
    near: bool = option(
        "Look for changed copies, too: resized, encoded again, brighter. Else for equal bytes alone.", default=True
    )
    mirrored: bool = option("Take images that are mirrored left to right for copies.", default=False)
    min_class: int = option(
        "Name classes of fewer samples, or objects, in a split.", default=5, at_least=0, at_most=2**31
    )
    min_box: float = option(
        "Name objects whose box is narrower or lower than so many pixels.", default=2.0, at_least=0, at_most=1e6
    )
    max_box: float = option(
        "Name objects whose box has more than this share of the image's area.", default=1.0, above=0, at_most=1
    )
    max_aspect: float = option(
        "Name objects whose box is so many times as long as it is wide.", default=20.0, at_least=1, at_most=1e6
    )
    min_overlap: float = option(
        "Name objects whose box and the hull of whose oriented box have an intersection over union below this.",
        default=0.3,
        at_least=0,
        at_most=1,
    )
    absent_keypoints: bool = option("Name objects that have some of their keypoints, but not all.", default=True)

    odd_images: bool = option(
        "Name images that are blurred, dark, overexposed, or of an odd aspect ratio.", default=True
    )
    min_sharpness: float = option(
        "Name images as blurred whose sharpness is below this: about 1 at a sharp edge, 0 where everything is soft.",
        default=0.25,
        at_least=0,
        at_most=8,
    )
    min_lights: float = option(
        "Name images as dark whose 99th percentile of luminance is below this, of 255.",
        default=50.0,
        at_least=0,
        at_most=255,
    )
    max_shadows: float = option(
        "Name images as overexposed whose 5th percentile of luminance is above this, of 255.",
        default=230.0,
        at_least=0,
        at_most=255,
    )
    max_image_aspect: float = option(
        "Name images whose width / height is more than so many times the median of the store, or less than the median "
        "divided by this.",
        default=3.0,
        at_least=1,
        at_most=1e6,
    )

    prediction_score: float = option(
        "Detections of `predictions` count if their score is at least this.", default=0.8, at_least=0, at_most=1
    )
    prediction_iou: float = option(
        "A detection agrees with an object if their intersection over union is at least this.",
        default=0.5,
        at_least=0.1,
        at_most=1,
    )

    def __post_init__(self) -> None:
        check(self)
