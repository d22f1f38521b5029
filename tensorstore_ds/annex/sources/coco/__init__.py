"""COCO's JSON: formats/sources/coco.md."""
