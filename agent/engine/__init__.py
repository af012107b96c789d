"""The engine: performs calls and runs, and hands out their events."""
