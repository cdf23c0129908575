"""The web page of a gateway: servers, tools, changed definitions, calls, the ledger and conversations."""
