"""How the data are cited, for programs: CITATION.cff, and DataCite's JSON, by which a DOI is registered."""

from __future__ import annotations

import json
from typing import Any

from tensorstore_ds.annex.publishing.escaping import yaml
from tensorstore_ds.annex.publishing.facts import Facts
from tensorstore_ds.errors import one_line

_MESSAGE = "If you use these data, please cite them."


def citation_cff(facts: Facts) -> str:
    """CITATION.cff, version 1.2.0; None without creators, which it requires."""
    if not facts.creators:
        return ""
    url = facts.answers.get("url", "")
    texts = {
        "cff-version": "1.2.0",
        "message": _MESSAGE,
        "type": "dataset",
        "title": facts.title,
        "abstract": facts.description,
        "version": facts.version,
        "date-released": facts.published,
        "doi": facts.answers.get("doi", ""),
        "url": url if url.startswith(("https://", "http://")) else "",
        "license": _single_license(facts),
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


def datacite_json(facts: Facts) -> str:
    """DataCite's JSON, schema 4; None without creators or year, which it requires."""
    if not facts.creators or not facts.published:
        return ""
    record: dict[str, Any] = {
        "schemaVersion": "http://datacite.org/schema/kernel-4",
        "types": {"resourceTypeGeneral": "Dataset", "resourceType": "Images"},
        "creators": [_creator(name) for name in facts.creators],
        "titles": [{"title": facts.title}],
        "publisher": {"name": facts.answers.get("publisher") or "; ".join(facts.creators)},
        "publicationYear": facts.published[:4],
        "dates": [{"date": facts.published, "dateType": "Issued"}],
        "version": facts.version,
        "formats": ["application/vnd+zarr"],
        "sizes": [f"{facts.rows} images", f"{facts.store.nbytes} bytes"],
    }
    if "doi" in facts.answers:
        record["doi"] = facts.answers["doi"]
    if facts.description:
        record["descriptions"] = [{"description": facts.description, "descriptionType": "Abstract"}]
    license = facts.store.manifest.license
    if license:
        rights = {"rights": license}
        if _single_license(facts):
            rights |= {"rightsIdentifier": license, "rightsIdentifierScheme": "SPDX"}
            rights |= {"schemeUri": "https://spdx.org/licenses/", "rightsUri": license_url(license)}
        record["rightsList"] = [rights]
    if facts.answers.get("tags"):
        record["subjects"] = [{"subject": tag} for tag in dict.fromkeys(facts.answers["tags"])]
    return json.dumps(record, indent=1, ensure_ascii=True) + "\n"


def license_url(license: str) -> str:
    """The SPDX page of a license; None for an expression of several, and for a custom one."""
    is_plain = license.replace("-", "").replace(".", "").replace("+", "").isalnum() and license.isascii()
    return f"https://spdx.org/licenses/{license}.html" if is_plain and not license.startswith("LicenseRef-") else ""


def _single_license(facts: Facts) -> str:
    license = facts.store.manifest.license or ""
    return license if license_url(license) else ""


def _creator(name: str) -> dict[str, str]:
    family, given = person(name)
    more = {"nameType": "Personal", "familyName": family, "givenName": given}
    return {"name": one_line(name), **(more if given else {"nameType": "Organizational"})}


def person(name: str) -> tuple[str, str]:
    """Family and given names of ``Family, Given``; an organization has no given name."""
    family, _, given = name.partition(",")
    return family.strip(), given.strip()
