"""What runs on an Ascend node."""
