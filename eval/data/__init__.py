"""Data sets: readers of files, checks of single items, and the task that follows from them."""
