"""Jobs that people and sensors launch."""
