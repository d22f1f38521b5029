"""A store as files in the formats of others: `export` walks through it, `EXPORT_FORMATS` lists the formats."""

from __future__ import annotations

from tensorstore_ds.plugins import Plugin, Plugins


def _built_in(module: str, exporter: str, description: str) -> Plugin:
    return Plugin(f"{__name__}.{module}", exporter, description)


#: Every format that a store is exported to, by its name. Other packages add theirs by an entry point
#: ``tsds.exporters``.
EXPORT_FORMATS = Plugins(
    "tsds.exporters",
    {
        "folders": _built_in("folders", "FoldersExporter", "images in class folders"),
        "voc": _built_in("voc", "VocExporter", "Pascal VOC: an XML file for each image"),
        "coco": _built_in("coco", "CocoExporter", "COCO's JSON"),
        "yolo": _built_in("yolo", "YoloExporter", "Ultralytics: a text file of boxes for each image"),
        "labelme": _built_in("labelme", "LabelmeExporter", "labelme: a JSON file for each image"),
        "npy": _built_in("npy", "NpyExporter", "NumPy's .npy files"),
        "webdataset": _built_in("webdataset", "WebDatasetExporter", "WebDataset: tar files"),
        "parquet": _built_in("parquet", "ParquetExporter", "Parquet, as of Hugging Face"),
        "huggingface": _built_in("parquet", "HuggingFaceExporter", "a folder for datasets.load_dataset"),
    },
)
