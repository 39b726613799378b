"""How far a run is: whatever takes long says it here, and one display shows it."""
