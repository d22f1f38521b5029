"""The papers that go with a shared store: card, Croissant, preview, citation."""
