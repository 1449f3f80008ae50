"""The live page: what the browser gets. ``vendor/libraries.json`` says where its libraries are from."""
