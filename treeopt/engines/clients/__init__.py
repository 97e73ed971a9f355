"""Clients of engines that can be measured: one module per engine, one base class, one registry."""
