"""MosaicML Streaming's shards, MDS: formats/sources/mds.md."""
