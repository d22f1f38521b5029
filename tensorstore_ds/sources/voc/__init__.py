"""Pascal VOC: formats/sources/voc.md."""
