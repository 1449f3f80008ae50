"""Take stack snapshots without stopping the server; classify, fold and render them."""
