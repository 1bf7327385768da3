"""Work over whole data sets: scan, check, convert."""
