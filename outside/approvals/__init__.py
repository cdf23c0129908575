"""Attempts to reuse, alter or outlive an approval, at gateways in memory and in processes."""
