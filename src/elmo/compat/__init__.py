"""Old names over this library: one module for each of the old packages."""
