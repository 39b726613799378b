"""Networks in the form that the toolkit works on: the numbers and the files are those of the standard classes."""
