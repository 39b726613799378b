"""What training minimises: the base of every loss, and the losses of supervised training."""
