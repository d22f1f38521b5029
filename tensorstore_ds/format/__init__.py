"""The bytes of a store: fields, arrays, manifest. This package opens no file."""
