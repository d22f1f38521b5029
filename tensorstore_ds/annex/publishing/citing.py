"""How the data are cited, for programs: CITATION.cff."""

from __future__ import annotations

from tensorstore_ds.annex.publishing.escaping import yaml
from tensorstore_ds.annex.publishing.facts import Facts


def citation_cff(facts: Facts) -> str:
    """CITATION.cff, version 1.2.0; empty without creators, which it requires."""
    if not facts.creators:
        return ""
    url, license = facts.answers.get("url", ""), facts.store.manifest.license or ""
    texts = {
        "cff-version": "1.2.0",
        "message": "If you use these data, please cite them.",
        "type": "dataset",
        "title": facts.title,
        "abstract": facts.description,
        "version": facts.version,
        "date-released": facts.published,
        "doi": facts.answers.get("doi", ""),
        "url": url if url.startswith(("https://", "http://")) else "",
        "license": license if license_url(license) else "",
    }
    lines = [f"{name}: {yaml(text)}" for name, text in texts.items() if text]
    lines.append("authors:")
    for creator in facts.creators:
        family, given = person(creator)
        named = [f"- family-names: {yaml(family)}", f"  given-names: {yaml(given)}"]
        lines += named if given else [f"- name: {yaml(creator)}"]
    tags = dict.fromkeys(facts.answers.get("tags", ()))
    lines += ["keywords:", *(f"- {yaml(tag)}" for tag in tags)] if tags else []
    return "\n".join(lines) + "\n"


def license_url(license: str) -> str:
    """The SPDX page of a license; empty for an expression of several, and for a custom one."""
    is_plain = license.replace("-", "").replace(".", "").replace("+", "").isalnum() and license.isascii()
    return f"https://spdx.org/licenses/{license}.html" if is_plain and not license.startswith("LicenseRef-") else ""


def person(name: str) -> tuple[str, str]:
    """Family and given names of ``Family, Given``; an organization has no given name."""
    family, _, given = name.partition(",")
    return family.strip(), given.strip()
