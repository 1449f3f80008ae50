"""What is exported: samples, and the declared metrics they belong to."""
