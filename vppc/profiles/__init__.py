"""What really happened: profiles of Ascend and CUDA devices, and the runtime's journals."""
