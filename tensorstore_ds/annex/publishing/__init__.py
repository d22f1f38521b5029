"""Documents for a shared store: dataset card, Croissant, preview, citation."""
