"""`EXPORT_FORMATS`, the list of formats that a store can be exported to."""

from __future__ import annotations

from tensorstore_ds.plugins import Plugins

#: All formats that a store can be exported to, by name. Other packages add formats with an entry point
#: ``tsds.exporters``.
EXPORT_FORMATS = Plugins(
    "tsds.exporters",
    __package__,
    {
        "folders": ("folders", "FoldersExporter", "images in class folders"),
        "voc": ("voc", "VocExporter", "Pascal VOC: an XML file for each image"),
        "coco": ("coco", "CocoExporter", "COCO's JSON"),
        "yolo": ("yolo", "YoloExporter", "Ultralytics: a text file of boxes for each image"),
        "dota": ("dota", "DotaExporter", "DOTA: a text file of four corners for each object"),
        "cvat": ("cvat", "CvatExporter", "CVAT for images 1.1: an XML file"),
        "labelme": ("labelme", "LabelmeExporter", "labelme: a JSON file for each image"),
        "csv": ("table", "CsvExporter", "a CSV file of labels, one or several per image"),
        "npy": ("npy", "NpyExporter", "NumPy's .npy files"),
        "webdataset": ("webdataset", "WebDatasetExporter", "WebDataset: tar files"),
        "parquet": ("parquet", "ParquetExporter", "Parquet, as of Hugging Face"),
        "huggingface": ("parquet", "HuggingFaceExporter", "a folder for datasets.load_dataset"),
    },
)
