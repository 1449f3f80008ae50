"""The live page: what the browser gets. ``vendor/LIBRARIES.md`` says where its libraries are from."""
