"""A gateway's web page: servers, tools, changed definitions, calls, the ledger and conversations."""
