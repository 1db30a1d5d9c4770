"""The search verb in vectorised numpy: the backend that every machine has."""
