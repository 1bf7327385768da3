"""Finding text: which regions of a whole picture hold some."""
