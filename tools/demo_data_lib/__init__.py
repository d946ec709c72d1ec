"""Builds the demo set "Ask the flag" from packages of Debian and PyPI."""
