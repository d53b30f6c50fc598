"""Servers on loopback that stand in for Vane: one plays recordings, one plays scripts."""
