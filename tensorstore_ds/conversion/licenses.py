"""Licenses as SPDX expressions, which programs can parse."""

from __future__ import annotations

from tensorstore_ds.options import meant, refusal


def license_expression(text: str) -> str:
    """Normalize an SPDX expression. Raises `OptionError` for any other text.

    >>> license_expression("cc-by-4.0"), license_expression("mit or LicenseRef-Ours")
    ('CC-BY-4.0', 'MIT OR LicenseRef-Ours')
    """
    from packaging import licenses  # here, because few conversions name one

    try:
        return str(licenses.canonicalize_license_expression(text))
    except licenses.InvalidLicenseExpression:
        known = {key: value["id"] for key, value in getattr(licenses, "LICENSES", {}).items()}
        near = meant(text.lower().removesuffix("license").strip().replace(" ", "-"), known)
        for key, name in known.items():
            near = near.replace(f" {key}?", f" {name}?")
        advice = "Write LicenseRef-NAME for a license that spdx.org/licenses does not list."
        error = refusal("license", "an SPDX expression, such as CC-BY-4.0", text or "an empty text")
        raise type(error)(f"{error}{near} {advice}") from None
