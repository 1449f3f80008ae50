"""The stack dump that does not stop the server: snapshot, fold, classify, render."""
