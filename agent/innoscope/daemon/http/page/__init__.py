"""The files of the live page. ``vendor/libraries.json`` lists the origin of its libraries."""
