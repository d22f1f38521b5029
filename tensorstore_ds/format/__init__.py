"""What a store is, byte by byte: fields, arrays, manifest. It opens no file."""
