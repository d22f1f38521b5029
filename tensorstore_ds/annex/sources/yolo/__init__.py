"""The format of Ultralytics and Darknet: formats/sources/yolo.md."""
