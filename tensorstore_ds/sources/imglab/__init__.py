"""dlib's imglab: formats/sources/imglab.md."""
