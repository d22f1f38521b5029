"""Oriented boxes by complex numbers x + iy, for tests: the product with e^ia turns to the side of y."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def turned(box: Any) -> NDArray[np.float64]:
    """(4, 2) corners of cx, cy, w, h, angle."""
    cx, cy, w, h, angle = box
    signs = [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    places = [complex(cx, cy) + complex(x * w / 2, y * h / 2) * np.exp(1j * angle) for x, y in signs]
    return np.array([(place.real, place.imag) for place in places])


def same(found: Any, expected: Any, atol: float = 1e-4) -> None:
    """Equal oriented boxes (M, 5), NaN at the same places; angles are compared as directions."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_allclose(found[:, :4], expected[:, :4], rtol=0, atol=atol)
    np.testing.assert_allclose(np.exp(1j * found[:, 4]), np.exp(1j * expected[:, 4]), rtol=0, atol=atol)


def area_at(points: NDArray[np.float64], angle: float) -> float:
    """Area of the rectangle around points whose sides have this direction."""
    turned_back = (points[:, 0] + 1j * points[:, 1]) * np.exp(-1j * angle)
    return float(np.ptp(turned_back.real) * np.ptp(turned_back.imag))


def smallest_area(corners: NDArray[np.float64]) -> float:
    """Smallest area of a rectangle around corners that has the direction of one of their edges."""
    return min(area_at(corners, float(np.arctan2(y, x))) for x, y in np.roll(corners, -1, 0) - corners)
