"""Files and streams: nothing is lost on writing, and nothing that is read is trusted."""
