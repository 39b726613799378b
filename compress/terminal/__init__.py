"""What commands share: messages and exit codes, tables, checks of options, models that an argument names."""
