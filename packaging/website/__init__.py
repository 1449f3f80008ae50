"""Build the documentation as a web site with mkdocs."""
