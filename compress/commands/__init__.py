"""The commands of the command line, one file each or each close group; heavy libraries load inside of them."""
