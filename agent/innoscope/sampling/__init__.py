"""Take stack snapshots, by default without stopping any thread; classify, fold and render them."""
