"""Records of the changes that gpu-rightsizer made: on the objects themselves and in its own namespace."""
