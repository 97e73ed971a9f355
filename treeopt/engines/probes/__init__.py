"""Probes: engines that can be run and asked, one module each, behind one client protocol."""
